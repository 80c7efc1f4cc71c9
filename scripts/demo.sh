#!/usr/bin/env bash
# Short ListOps: four systems of Table 1 with three seeds each, from generated data to a table in runs/demo. Takes about
# 6 minutes on two cores, of which training takes 4 minutes. Interrupt it at any time; rerun it to resume.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh user
.venv/bin/lra-train experiment=demo "$@"
.venv/bin/python - "$@" <<'END'
import sys

import lra

out = next((word[4:] for word in reversed(sys.argv) if word.startswith("out=")), "runs/demo")
table = lra.load(out).table
print(table[["system", "mean", "sd", "seeds", "p_holm"]].to_string(index=False, float_format="%.2f", na_rep="-"))
print(f"{out}/index.html: sortable tables, every seed, learning curves")
END
