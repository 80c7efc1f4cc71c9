#!/usr/bin/env bash
# Sweeps by every launcher: installs submitit, Ray and, where it may (Debian, as root), SLURM, and starts a SLURM of one
# node for as long as the tests take. Without one it fails; WITHOUT_SLURM=1 leaves the tests with SLURM out.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[submitit,ray]'
[ -z "${WITHOUT_SLURM:-}" ] || exec .venv/bin/python -m pytest -m launcher -k 'not slurm' "$@"
if ! command -v slurmctld >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; } >/dev/null 2>&1 || true
fi
command -v slurmctld >/dev/null || { echo "launchers.sh: error: no SLURM here, and it could not be installed" >&2; exit 1; }
trap 'bash scripts/slurm.sh stop' EXIT
bash scripts/slurm.sh start
SLURM_CONF=/var/tmp/lra-slurm/slurm.conf .venv/bin/python -m pytest -m launcher "$@"
