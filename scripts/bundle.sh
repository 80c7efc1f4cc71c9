#!/usr/bin/env bash
# One task of Table 1 for a machine without a network: code, the small packages it may lack, and prepared data, in one file.
#   bash scripts/bundle.sh text text.tar.xz           here (PYTHON_VERSION=3.12 is that of the machine there)
#   tar xf text.tar.xz && cd lra && bash scripts/reproduce.sh 9 train.micro_batch=32      there
set -euo pipefail
task=${1:?a task: listops, text, matching or acl_matching} file=$(realpath "${2:?the file to write}")
cd "$(dirname "$0")/.."
bash scripts/install.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 "file://$PWD" "$work/lra"
rm -rf "$work/lra/results"
here=$work/lra
echo "$task" > "$here/task"
packages=$(.venv/bin/python -m pip freeze --exclude-editable | grep -i -E \
    '^(hydra-core|omegaconf|antlr4-python3-runtime|PyYAML|pydantic|pydantic_core|annotated-types|typing-inspection|typing_extensions|safetensors|rich)==')
# One of them has no wheel of its own, hence two ways.
pure=$(grep antlr4 <<< "$packages")
.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$here/wheels" "$pure"
.venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$here/wheels" $(grep -v antlr4 <<< "$packages")
if [ "$task" != listops ]; then # which is generated anywhere in seconds
    .venv/bin/python -m lra prepare task="$task" cache="$here/cache" > /dev/null
fi
tar -C "$work" -c lra | xz -T0 -6 > "$file"
echo "$file: $(du -h --apparent-size "$file" | cut -f1)"
