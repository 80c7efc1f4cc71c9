#!/usr/bin/env bash
# A trial of everything that can happen to a run, to its data and to its files: commands are killed at random moments,
# files exchanged, damaged and made to do harm. The seed draws what; it ends with 1 where anything is lost or wrong.
#   bash scripts/faults.sh                                          # 200 kills and 150 inputs: an hour on two cores
#   bash scripts/faults.sh kills=20 inputs=15 seed=3 out=trial.md   # a part; every case into a file (.md, .json)
#   bash scripts/faults.sh kills=10 inputs=0 of=race                # of the cases with "race" in their names alone
#   bash scripts/faults.sh case=kills:17 seed=3                     # one of its cases again
#   bash scripts/faults.sh table                                    # the faults of the tests, each at its one place:
#       what was expected and what was seen. 15 minutes; table -m 'not slow' for the two-minute part
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
export PYTHONPATH=tests
if [ "${1:-}" = table ]; then
    shift
    exec .venv/bin/python -m pytest -n auto -p faults.table -m 'not gpu and not oracle' --tb=short \
        tests/test_faults.py tests/faults tests/test_resume.py tests/test_storage.py tests/test_train.py "$@"
fi
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore::DeprecationWarning
exec .venv/bin/python -m faults "$@"
