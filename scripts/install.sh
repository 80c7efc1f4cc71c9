#!/usr/bin/env bash
# Install lra into .venv, with its development tools or, as `scripts/install.sh user`, without them. Does nothing if that
# is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
extras='[dev]'
if [ "${1:-}" = user ]; then
    extras=
fi
versions=$(cat pyproject.toml constraints.txt | cksum)
installed=$(cat .venv/installed 2>/dev/null || true)
if [ "$installed" != "$versions [dev]" ] && [ "$installed" != "$versions $extras" ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "install.sh: error: ${PYTHON:-python3} is older than Python 3.11; name another with PYTHON=..." >&2
        exit 2
    }
    echo "installing into .venv (1 to 3 minutes)" >&2
    "${PYTHON:-python3}" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extras"
    echo "$versions $extras" > .venv/installed
fi
