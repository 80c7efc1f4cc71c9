#!/usr/bin/env bash
# The attentions against other libraries' implementations, which it installs first; none may be missing.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[oracles]'
exec .venv/bin/python -m pytest -m oracle tests/oracles "$@"
