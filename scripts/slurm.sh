#!/usr/bin/env bash
# Run SLURM on this machine as its only node, to test launchers (Debian, as root: apt-get install slurm-wlm munge):
#   bash scripts/slurm.sh start; export SLURM_CONF=/var/tmp/lra-slurm/slurm.conf
#   bash scripts/slurm.sh stop
set -euo pipefail
[ "$(uname)" = Linux ] || { echo "slurm.sh: error: SLURM needs Linux" >&2; exit 2; }
folder=/var/tmp/lra-slurm
name=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
case "${1:-}" in
start)
    mkdir -p "$folder" /run/munge
    chown munge /run/munge
    [ -e /etc/munge/munge.key ] || mungekey
    cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=$name NodeAddr=127.0.0.1 CPUs=$(getconf _NPROCESSORS_ONLN) State=UNKNOWN
PartitionName=all Nodes=$name Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
    runuser -u munge -- munged --pid-file /run/munge/munged.pid || true
    cp /run/munge/munged.pid "$folder/munged.pid" 2>/dev/null || true
    slurmctld
    slurmd
    for _ in $(seq 60); do
        sinfo --noheader --format=%t 2>/dev/null | grep -q -e idle -e mix && exit 0
        sleep 0.5
    done
    echo "slurm.sh: error: no node is idle after 30 s; see $folder/*.log" >&2
    exit 1
    ;;
stop)
    for pid in "$folder"/*.pid; do
        [ -e "$pid" ] && kill "$(cat "$pid")" 2>/dev/null && rm -f "$pid" || true
    done
    ;;
*)
    echo "usage: scripts/slurm.sh start | stop" >&2
    exit 2
    ;;
esac
