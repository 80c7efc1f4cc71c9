#!/usr/bin/env bash
# Train Table 1 at the published size into runs/table1, the most valuable runs first, in one go or in parts:
#   bash scripts/reproduce.sh         all 300 runs
#   bash scripts/reproduce.sh 30      30 minutes, then save and exit with code 75; rerun it to resume
#   bash scripts/reproduce.sh 30 train.micro_batch=32      further arguments go to lra-train
# Without the data of `matching` (docs/tasks.md) it trains `acl_matching`, a different task, instead.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=
if [[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
    minutes=$1
    shift
fi
bash scripts/install.sh
python=.venv/bin/python pairs=matching
$python -m lra prepare task=matching >/dev/null 2>&1 || pairs=acl_matching

variants=simple,simple_res,simple_resl
others="glob(*,exclude=[$variants,transformer])"
code=0
for part in listops/simple {text,$pairs}/$variants listops/simple_res,simple_resl \
    {listops,text,$pairs}/transformer {listops,text,$pairs}/"$others"; do
    limit=() status=0
    if [ -n "$minutes" ]; then
        limit=("sweep_minutes=$($python -c "print(max(0.01, $minutes - $SECONDS / 60))")")
    fi
    $python -m lra train experiment=table1 max_hours=null "task=${part%%/*}" "system=${part#*/}" \
        ${limit[@]+"${limit[@]}"} "$@" >/dev/null || status=$?
    [ $status -le 1 ] || exit $status
    code=$((code | status)) # 1: some runs failed, which does not stop the others
done
exit $code
