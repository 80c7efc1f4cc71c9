#!/usr/bin/env bash
# Train Table 1 at the published size into runs/table1, the most valuable runs first, in parts of any length:
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

worst=0
run() { # task, rows of conf/table1.yaml: all seeds of each
    local limit=() status=0
    if [ -n "$minutes" ]; then
        limit=("sweep_minutes=$($python -c "print(max(0.01, $minutes - $SECONDS / 60))")")
    fi
    $python -m lra train experiment=table1 max_hours=null "task=$1" "system=$2" ${limit[@]+"${limit[@]}"} "${@:3}" >/dev/null || status=$?
    case $status in
    0) ;;
    1) worst=1 ;; # some runs failed; the others are worth going on for
    *) exit "$status" ;;
    esac
}
run listops simple "$@"
run text simple,simple_res,simple_resl "$@"
run $pairs simple,simple_res,simple_resl "$@"
run listops simple_res,simple_resl "$@"
for task in listops text $pairs; do
    run $task transformer "$@"
done
for task in listops text $pairs; do
    run $task 'glob(*,exclude=[simple,simple_res,simple_resl,transformer])' "$@"
done
exit $worst
