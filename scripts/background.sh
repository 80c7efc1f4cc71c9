#!/usr/bin/env bash
# Table 1 at its own length, narrow first and then at full size, and Image, on spare cores, for as long as that takes:
# stopped, the runs have saved everything, and go on.
#   bash scripts/background.sh start [N]     N runs at once, 1 by default, one core each, at the lowest priority
#   bash scripts/background.sh status        what is done, and where each run is at work
#   bash scripts/background.sh stop          within seconds; `start` goes on
#   bash scripts/background.sh collect       finished runs into this checkout's results, with their reports
#   bash scripts/background.sh pack FILE     the whole state but code and packages (130 MB for each run under way) ...
#   bash scripts/background.sh unpack FILE   ... and on another machine of the same kind, before `start`
# A run ends with the code that it began with: a clone of this checkout's commit, which only `update` moves, and only
# while no run is half done. State: LRA_BACKGROUND, by default ~/.local/state/lra-background. One thread for each run,
# since the last bits of a result depend on their number; so a second core takes a second run.
set -euo pipefail
[ "$(uname)" = Linux ] || { echo "background.sh: error: it wants Linux, for its locks and sessions" >&2; exit 2; }
home=${LRA_BACKGROUND:-$HOME/.local/state/lra-background}
root=$(cd "$(dirname "$0")/.." && pwd)
case ${LRA_DATA:-} in "" | /*) ;; *) export LRA_DATA=$PWD/$LRA_DATA ;; esac

queue() { # what a reader learns most from first: whoever stops it at any hour has whole rows
    local full="experiment=table1 protocol=strict precision=bf16 threads=1 max_hours=null"
    local image="experiment=lra task=image threads=1 max_hours=null out=results/image_lra" seed task
    local systems=simple,linear,transformer,performer,other/conv,other/s4d
    local narrow="experiment=table1_narrow max_hours=null" alike="train.micro_batch=8 train.eval_batch=128" # as on the H200
    cat <<END
experiment=pretraining_small task=pathfinder_short system=simple,transformer case=from_scratch,pretrained_40 max_hours=null out=results/pretraining_pictures
$(for task in listops text; do for seed in 4 5; do echo "$narrow $alike task=$task seed=$seed"; done; done)
$(for seed in 1 2 3; do echo "$narrow $alike system=simple_res,performer seed=$seed"; done)
$(for seed in 1 2 3; do echo "$image system=$systems seed=$seed train.eval_every=875"; done)
$full task=text system=simple seed=1 train.eval_every=400
$full task=text system=simple seed=2 train.eval_every=400
$full task=text system=simple seed=3 train.eval_every=400
$full task=acl_matching system=simple seed=1 train.eval_every=750
$full task=text system=linear seed=1 train.eval_every=400
${full#experiment=table1 } out=results/table1 task=text attention=s4d variant=transformer seed=1 train.eval_every=400
$full task=listops system=simple seed=1 train.eval_every=250
END
}

swept() { # the folders of the queue's experiments
    find "$home"/runs "$home"/results -mindepth 2 -maxdepth 2 -name sweep.json -printf '%h\n' 2>/dev/null | sort || true
}

checkpoints() {
    find "$home"/runs "$home"/results -name checkpoint.json 2>/dev/null || true
}

update() {
    if [ -d "$home/code" ] && [ -n "$(checkpoints)" ]; then
        echo "background: a run is half done with the code that it began with; update when it is finished" >&2
        exit 1
    fi
    [ -d "$home/code" ] || git clone --quiet "$root" "$home/code"
    git -C "$home/code" fetch --quiet "$root" HEAD
    local commit=FETCH_HEAD
    [ -z "$(checkpoints)" ] || [ ! -f "$home/commit" ] || commit=$(cat "$home/commit") # with which what was packed began
    git -C "$home/code" checkout --quiet --detach "$commit"
}

start() {
    mkdir -p "$home"
    [ -d "$home/code" ] || update
    bash "$home/code/scripts/install.sh"
    local number
    for number in $(seq "${1:-1}"); do
        setsid nice -n 19 bash "$home/code/scripts/background.sh" work "$number" </dev/null >>"$home/worker-$number.log" 2>&1 &
    done
}

work() { # one worker: every entry of the queue in turn, until it is told to stop
    exec 9>"$home/worker-$1.lock"
    flock -n 9 || { echo "worker $1 is at work already"; exit 0; }
    echo $$ >"$home/worker-$1.pid"
    { echo 19 >/proc/self/autogroup; } 2>/dev/null || true # where Linux groups by session, nice alone yields to nobody
    local child= stopped= entry
    trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
    cd "$home"
    while read -r entry; do
        [ -z "$stopped" ] || break
        echo "$(date -u +%FT%TZ) $entry"
        # shellcheck disable=SC2086  # an entry is several overrides
        code/.venv/bin/python -m lra train --multirun $entry 9>&- </dev/null &
        child=$!
        while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
        child=
    done < <(queue)
    echo "$(date -u +%FT%TZ) $([ -n "$stopped" ] && echo stopped || echo "nothing left")"
}

stop() {
    local file
    for file in "$home"/worker-*.pid; do
        [ -e "$file" ] || continue
        if ! flock -n "${file%.pid}.lock" true; then # it lives while it holds its lock
            { echo 0 >"/proc/$(cat "$file")/autogroup"; } 2>/dev/null || true # to save takes minutes on a busy machine, else
            kill -TERM "$(cat "$file")"
        fi
        flock "${file%.pid}.lock" rm -f "$file"                         # wait for its end
    done
}

merge_sweep() { # FOLDER SWEEP: what SWEEP declares stands in FOLDER's sweep.json, too
    "$root/.venv/bin/python" - "$@" <<END
import sys
from pathlib import Path

from lra.records import record
from lra.runs import plan

plan.declare(Path(sys.argv[1]), record.parse_declared(Path(sys.argv[2]).read_bytes()))
END
}

collect() { # finished runs into this checkout's results, with their reports
    local record finished folder results
    swept | while read -r results; do
        [ "$(dirname "$results")" = "$home/results" ] || continue
        results=$(basename "$results")
        finished=$(grep -rlE --include=record.json '"status": *"finished"' "$home/results/$results" || true)
        [ -n "$finished" ] || continue
        while read -r record; do
            folder=$(dirname "${record#"$home"/}")
            mkdir -p "$root/$folder"
            find "$home/$folder" -maxdepth 1 -type f ! -name '.*' ! -name 'checkpoint*' -exec cp {} "$root/$folder/" \;
        done <<<"$finished"
        merge_sweep "$root/results/$results" "$home/results/$results/sweep.json"
        "$root/.venv/bin/lra-report" "$root/results/$results" >/dev/null
    done
}

case ${1:-} in
start) start "${2:-1}" ;;
work) work "$2" ;;
stop) stop ;;
update) update ;;
status) swept | while read -r folder; do "$home/code/.venv/bin/lra-report" "$folder" --once; done ;;
collect) collect ;;
pack)
    git -C "$home/code" rev-parse HEAD | tee "$home/commit"
    tar -C "$home" --exclude=./code --exclude='./worker-*' -czf "${2:?the file to write}" .
    ;;
unpack) mkdir -p "$home" && tar -C "$home" -xzf "${2:?the file to read}" ;;
*)
    sed -n '2,9p' "$0" >&2
    exit 2
    ;;
esac
