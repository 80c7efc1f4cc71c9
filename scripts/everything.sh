#!/usr/bin/env bash
# Everything that this repository can check of itself, before a release; at most two hours on two cores:
#   bash scripts/everything.sh                what has not passed at this commit; the same command goes on
#   bash scripts/everything.sh PART ...       these parts alone
#   bash scripts/everything.sh --list         the parts and their commands
# A line for each part; all that it says is in runs/everything. Ends with 1 where a part failed, and writes
# results/everything.md. LRA_DATA names the raw data, without which tests are skipped. The part `launchers` wants SLURM,
# which it installs where it may (Debian, as root); --without-slurm leaves the tests with SLURM out, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
exec .venv/bin/python scripts/everything.py "$@"
