#!/usr/bin/env bash
# results/attentions.md: what every attention is, adds, supports and costs. With --measure it measures the costs on this
# machine first (about 10 minutes; --measure NAME ...: those of these alone); else it takes those that
# results/attentions.json keeps.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
exec .venv/bin/python scripts/attentions_page.py results/attentions.md "$@"
