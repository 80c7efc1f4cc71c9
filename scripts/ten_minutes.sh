#!/usr/bin/env bash
# The wheel in a fresh environment in an empty folder, and there all that docs/your-attention.md says: a new attention is
# written, checked, trained beside others and put into a report. Prints how many lines and how much time it takes.
#   bash scripts/ten_minutes.sh [FOLDER]
set -euo pipefail
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
cd "$(dirname "$0")/.."
bash scripts/install.sh
root=$PWD
page=$root/docs/your-attention.md

blocks() { # the fenced blocks of a language
    awk -v fence="\`\`\`$1" '$0 == "```" {on = 0} on {print} $0 == fence {on = 1}' "$page"
}

took() { # the time since $2
    echo "$1: $(((SECONDS - $2) / 60)) min $(((SECONDS - $2) % 60)) s"
}

.venv/bin/python -m build --no-isolation --outdir "$folder/dist" >/dev/null
start=$SECONDS
.venv/bin/python -m venv "$folder/.venv"
"$folder/.venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt torch "$folder"/dist/*.whl
took "installed" "$start"

cd "$folder"
start=$SECONDS
while read -r command; do
    echo "\$ $command"
    ".venv/bin/${command%% *}" ${command#* } </dev/null # its words, as they stand
    if [[ $command == lra-new* ]]; then
        cp mine.py written.txt
        blocks python >mine.py
    fi
done < <(blocks bash)
echo "lines by hand: $(diff written.txt mine.py | grep -c '^>')"
took "checked, trained and reported" "$start"
times >"$folder/times" # a pipe would have times of its own
echo "user and system time of all of it: $(tail -1 "$folder/times")"
