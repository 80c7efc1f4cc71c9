#!/usr/bin/env bash
# Makes .venv and installs lra with its development tools; does nothing when that is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/installed
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "install.sh: error: ${PYTHON:-python3} is older than Python 3.11; name another with PYTHON=..." >&2
        exit 2
    }
    echo "installing into .venv (about 2 minutes)" >&2
    "${PYTHON:-python3}" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    echo "$wanted" > "$stamp"
fi
