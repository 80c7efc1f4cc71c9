#!/usr/bin/env bash
# Short ListOps: four systems of Table 1 with three seeds each, from generated data to a table in runs/demo. About 6
# minutes on two cores, 4 of them training. Interrupt it at any time; rerun it to resume.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh user
.venv/bin/lra-train experiment=demo "$@"

out=runs/demo
for word in "$@"; do
    case $word in out=*) out=${word#out=} ;; esac
done
.venv/bin/python - "$out" <<'END'
import sys

import lra

table = lra.load(sys.argv[1]).table
print(table[["system", "mean", "sd", "seeds", "p_holm"]].to_string(index=False, float_format="%.2f", na_rep="-"))
print(f"{sys.argv[1]}/index.html: sortable tables, every seed, learning curves")
END
