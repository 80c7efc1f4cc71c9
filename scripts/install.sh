#!/usr/bin/env bash
# Install lra into .venv with its development tools, or without them: `scripts/install.sh user`. Do nothing if these
# versions are installed already.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" = user ] && extras='' || extras='[dev]'
versions=$(cat pyproject.toml constraints.txt | cksum)
installed=$(cat .venv/installed 2>/dev/null || true)
if [ "$installed" != "$versions [dev]" ] && [ "$installed" != "$versions $extras" ]; then
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "install.sh: error: $python is older than Python 3.11; choose another with PYTHON=..." >&2
        exit 2
    }
    echo "installing into .venv (1 to 3 minutes)" >&2
    "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extras"
    echo "$versions $extras" > .venv/installed
fi
