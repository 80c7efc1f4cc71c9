#!/usr/bin/env bash
# The small packages that a machine with torch but without a network may lack, as wheels:
#   bash scripts/wheels.sh FOLDER        PYTHON_VERSION=3.12 is that of the machine there, which is an x86-64
set -euo pipefail
mkdir -p "${1:?the folder to write}"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
bash scripts/install.sh
packages=$(.venv/bin/python -m pip freeze --exclude-editable | grep -i -E \
    '^(hydra-core|omegaconf|antlr4-python3-runtime|PyYAML|pydantic|pydantic_core|annotated-types|typing-inspection|typing_extensions|safetensors|rich)==')
fla=$(grep -o 'flash-linear-attention==[0-9.]*' pyproject.toml) # of it, the kernels
# One of them has no wheel of its own, hence two ways.
.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$(grep antlr4 <<< "$packages")"
.venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$folder" $(grep -v antlr4 <<< "$packages") "fla-core==${fla#*==}" einops
