#!/usr/bin/env bash
# The site of the documentation into the folder site: open site/index.html. A link, an anchor or a page that is missing
# ends it with 1. Arguments go to mkdocs: scripts/docs.sh --site-dir FOLDER.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
export NO_MKDOCS_2_WARNING=1
exec .venv/bin/python -m mkdocs build --quiet --strict "$@"
