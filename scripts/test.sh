#!/usr/bin/env bash
# Check style, imports and types, then run the tests. Arguments go to pytest: -m slow, -m gpu, -k model.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports
.venv/bin/mypy
unset PYTHONDONTWRITEBYTECODE  # keep bytecode, so that the next run starts faster
exec .venv/bin/python -m pytest -n auto --dist worksteal "$@"
