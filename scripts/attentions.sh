#!/usr/bin/env bash
# results/attentions.md: what every attention is, adds, supports and costs on this machine (about 10 minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
exec .venv/bin/python -m lra.bench.catalogue results/attentions.md "$@"
