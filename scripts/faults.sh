#!/usr/bin/env bash
# Everything that can happen to a run, to its data and to its files, injected for real: prints a table of what was
# expected and what was seen, and ends with 1 where they differ. 15 minutes; -m 'not slow' for the two-minute part.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install.sh
export PYTHONPATH=tests
exec .venv/bin/python -m pytest -n auto -p faults.table -m 'not gpu and not oracle' --tb=short \
    tests/test_faults.py tests/faults tests/test_resume.py tests/test_storage.py tests/test_train.py "$@"
