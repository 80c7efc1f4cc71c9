#!/usr/bin/env bash
# A part of experiment=hour, from generated data to a report in results/demo. Under 10 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
exec .venv/bin/lra-train experiment=demo "$@"
