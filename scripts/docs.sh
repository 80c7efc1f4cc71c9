#!/usr/bin/env bash
# Build the documentation site into the folder site; open site/index.html. A missing link, anchor or page is an error.
# Arguments go to mkdocs, such as --site-dir FOLDER.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
export NO_MKDOCS_2_WARNING=1
exec .venv/bin/python -m mkdocs build --quiet --strict "$@"
