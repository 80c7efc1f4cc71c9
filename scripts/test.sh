#!/usr/bin/env bash
# The tests. Arguments go to pytest: scripts/test.sh -m slow, scripts/test.sh -m gpu, scripts/test.sh -k model.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports
.venv/bin/mypy
unset PYTHONDONTWRITEBYTECODE  # compiled tests and modules are kept
exec .venv/bin/python -m pytest -n auto --dist worksteal "$@"
