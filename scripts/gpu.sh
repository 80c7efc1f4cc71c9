#!/usr/bin/env bash
# What results/gpu-queue.md asks of an accelerator, answered by itself in the order of value:
#   bash scripts/gpu.sh 9 OUT            9 minutes; the answers into the folder OUT (3 files, each below 16 MiB). Exit code
#                                        75: something is left, and the same command goes on where it stopped
#   bash scripts/gpu.sh --dry-run OUT    on a CPU, at tiny sizes
#   bash scripts/gpu.sh pack             here, before: packages, data and the commit into carry/ (git ignores it), which
#                                        travels with the checkout to a machine without a network (PYTHON_VERSION=3.12
#                                        is that of its python3, which has torch, triton, numpy, scipy, matplotlib, rich)
# The queue is scripts/gpu_queue.py. On a fresh machine it goes on, too, where OUT/answers.json of the last call lies in
# carry/; runs that were under way begin again there.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
pack)
    data=${LRA_DATA:?LRA_DATA: the folder of raw data, with imdb and acl_pairs}
    rm -rf carry/wheels carry/data carry/git
    git clone --quiet --bare --depth 1 --filter=blob:none "file://$PWD" carry/git \
        --upload-pack='git -c uploadpack.allowFilter=true upload-pack' # for the commit in each record
    git -C carry/git config core.bare false
    mkdir -p carry/data
    bash scripts/wheels.sh carry/wheels
    cp -R "$data/imdb" "$data/acl_pairs" carry/data/ # ListOps is generated anywhere in seconds
    chmod -R u+w carry/data
    du -sh carry | cut -f1
    exit
    ;;
--dry-run) arguments=(5 "${2:?the folder of the answers}" --dry-run) ;;
*)
    [[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || { sed -n '2,10p' "$0" >&2; exit 2; }
    arguments=("$1" "${2:?the folder of the answers}")
    ;;
esac
if [ -d carry/wheels ]; then
    packages=$PWD/runs/packages
    [ -d "$packages" ] || python3 -m pip install --quiet --no-index --no-deps --target "$packages" carry/wheels/*.whl
    [ -e .git ] || { cp -R carry/git .git && git read-tree HEAD; } || echo "gpu.sh: the records will name no commit" >&2
    export PYTHONPATH=$packages:$PWD LRA_DATA=$PWD/carry/data LRA_CACHE=$PWD/runs/cache
    python=python3
else
    bash scripts/install.sh
    python=.venv/bin/python
fi
exec $python scripts/gpu_queue.py run "${arguments[@]}"
