#!/usr/bin/env bash
# One task of Table 1 for a machine without a network: code, the small packages it may lack, and prepared data, in one file.
#   bash scripts/bundle.sh text text.tar.xz           here (PYTHON_VERSION=3.12 is that of the machine there)
#   tar xf text.tar.xz && cd lra && bash scripts/reproduce.sh 9 train.micro_batch=32      there
set -euo pipefail
task=${1:?a task: listops, text, matching or acl_matching} file=${2:?the file to write}
case $task in
listops | text | matching | acl_matching) ;;
*) echo "bundle.sh: error: $task: expected listops, text, matching or acl_matching" >&2; exit 2 ;;
esac
file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
cd "$(dirname "$0")/.."
bash scripts/install.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 "file://$PWD" "$work/lra"
rm -rf "$work/lra/results"
here=$work/lra
echo "$task" > "$here/task"
bash scripts/wheels.sh "$here/wheels"
if [ "$task" != listops ]; then # which is generated anywhere in seconds
    .venv/bin/python -m lra prepare task="$task" cache="$here/cache" > /dev/null
fi
tar -C "$work" -c lra | xz -T0 -6 > "$file"
echo "$file: $(du -h "$file" | cut -f1)"
