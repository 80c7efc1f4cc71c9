#!/usr/bin/env bash
# Table 1 at its published width, on an accelerator that is lent for a short time and has no network:
#   bash scripts/lease.sh pack              here: packages, data and the commit into carry/, at most 64 MiB, which git ignores and
#                                           which travels with the checkout; PYTHON_VERSION=3.12 is that of the machine there
#   bash scripts/lease.sh check             there, once: each mechanism's step in bf16 against the CPU, in at most 90 s
#   bash scripts/lease.sh run MINUTES OUT   there: start the next runs of scripts/lease_runs.txt and follow them. They go on
#                                           when this command is cut off, and the same command follows them again
#   bash scripts/lease.sh collect OUT       there: what is finished, in at most 8 files of 16 MiB, and a list of the rest
#   bash scripts/lease.sh merge OUT         here: into results/table1, checked, with the report
# Without an accelerator `run` is a dry run at tiny sizes, which `merge` puts into OUT/table1. LEASE_RUNS is the folder of
# the runs there (runs/lease): it has to outlive a command.
set -euo pipefail
case "${1:-}:$#" in
pack:1 | check:1 | run:3 | collect:2 | merge:2) ;;
*) sed -n '2,11p' "$0" >&2; exit 2 ;;
esac
arguments=("$@")
case $1 in
run | collect | merge) arguments[$#-1]=$(realpath -m "${!#}") ;; # OUT, before the folder changes
esac
cd "$(dirname "$0")/.."

if [ -d carry/wheels ] && [ "$1" != pack ] && [ ! -x .venv/bin/python ]; then
    packages=$PWD/runs/packages
    [ -d "$packages" ] || python3 -m pip install --quiet --no-index --no-deps --target "$packages" carry/wheels/*.whl
    [ -e .git ] || { cp -R carry/git .git && git read-tree HEAD; } || echo "lease.sh: the records will name no commit" >&2
    export PYTHONPATH=$packages:$PWD LRA_DATA=$PWD/carry/data LRA_CACHE=$PWD/runs/cache
    python=python3
else
    [ -x .venv/bin/python ] || bash scripts/install.sh
    export PYTHONPATH=$PWD
    python=$PWD/.venv/bin/python
fi

pack() {
    local data=${LRA_DATA:?the folder of raw data, with imdb and acl_pairs} names version pinned
    names=(hydra-core omegaconf pydantic pydantic_core annotated-types typing-inspection typing_extensions)
    names+=(PyYAML safetensors rich filelock)
    version=$($python -m pip freeze --exclude-editable)
    pinned=$(for name in "${names[@]}"; do grep -i "^$name==" <<< "$version" || true; done)
    $python scripts/lease.py data "$data"
    rm -rf carry
    mkdir -p carry/data
    git clone --quiet --bare --depth 1 --filter=blob:none "file://$PWD" carry/git \
        --upload-pack='git -c uploadpack.allowFilter=true upload-pack' # for the commit in each record
    git -C carry/git config core.bare false
    cp -R "$data/imdb" "$data/acl_pairs" carry/data/ # ListOps is generated
    chmod -R u+w carry/data
    $python -m pip wheel --quiet --no-deps --wheel-dir carry/wheels "$(grep antlr4 <<< "$version")" # it has no wheel
    $python -m pip download --quiet --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest carry/wheels $pinned
    du -sm carry
    [ "$(du -sm carry | cut -f1)" -le 64 ] || { echo "lease.sh: error: carry/ has more than 64 MiB" >&2; exit 2; }
}

case $1 in
pack) pack ;;
check) exec timeout 90 "$python" scripts/lease_check.py ;;
*) exec "$python" scripts/lease.py "${arguments[@]}" ;;
esac
