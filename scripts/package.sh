#!/usr/bin/env bash
# The packages that an index would get: built, checked, and the wheel installed without any extra into a fresh
# environment, where it trains and reports.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m build --no-isolation --outdir "$folder/dist" >/dev/null
.venv/bin/python -m twine check --strict "$folder"/dist/*
.venv/bin/python -m check_wheel_contents "$folder"/dist/*.whl
.venv/bin/python -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt torch "$folder"/dist/*.whl
bytes=$(du -sb "$folder/venv/lib" | cut -f1)
packages=$("$folder/venv/bin/python" -m pip list --format freeze --disable-pip-version-check | wc -l)
export LRA_CACHE=$folder/cache
cd "$folder"
venv/bin/lra --help >/dev/null
venv/bin/lra-train --multirun experiment=smoke system=simple,transformer seed=1,2 out=smoke >/dev/null
venv/bin/lra-report --verify smoke
echo "a wheel and a source distribution; $packages packages, $((bytes / 1000000)) MB installed"
