#!/usr/bin/env bash
# Does lra work with the packages at the ends of its ranges? The tests of attentions (Simple and softmax), models, training,
# commands, reports and the wheel, with the lowest versions that pyproject.toml allows, or with the newest that there are:
#   bash scripts/versions.sh lowest|newest       what follows goes to pytest
# torch is that of constraints.txt in both, since other builds for CPUs may not be at hand; the first line says so.
set -euo pipefail
cd "$(dirname "$0")/.."
end=${1:-}
[[ $end == lowest || $end == newest ]] || { echo "usage: scripts/versions.sh lowest | newest [pytest's arguments]" >&2; exit 2; }
shift
folder=runs/versions/$end
rm -rf "$folder"
mkdir -p "$folder"
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
install=("$python" -m pip install --quiet --disable-pip-version-check)
grep '^torch==' constraints.txt >"$folder/constraints.txt"
"${install[@]}" -c "$folder/constraints.txt" torch
"$python" - "$end" "$folder" <<'END'
"""What pip shall install: each requirement of lra and of its loggers, at the lower bound where that is wanted."""
import re
import sys
import tomllib
from pathlib import Path

end, folder = sys.argv[1], Path(sys.argv[2])
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
wanted = [*project["dependencies"], *(project["optional-dependencies"][name][0] for name in ("tensorboard", "wandb"))]
bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+).*", each).groups() for each in wanted]
(folder / "wanted.txt").write_text("\n".join(name for name, _ in bounds))
if end == "lowest":
    pins = [f"{name}=={version}" for name, version in bounds if name != "torch"]
    with open(folder / "constraints.txt", "a") as file:
        file.write("\n".join(pins) + "\n")
END
"${install[@]}" -c "$folder/constraints.txt" -e '.[tensorboard,wandb]' \
    pytest pytest-xdist build hatchling hatch-vcs editables twine check-wheel-contents
versions() {
    "$python" -m pip list --format freeze --disable-pip-version-check | grep -i -x -E "($(paste -sd'|' "$folder/wanted.txt"))==.*" | paste -sd' '
}
echo "torch is that of constraints.txt; pyproject.toml asks for $(grep -o '"torch[^"]*"' pyproject.toml | head -1)"
echo "$end: Python $("$python" -c 'import platform; print(platform.python_version())') $(versions)"
PYTHONPATH=$PWD exec "$python" -m pytest -n auto -k 'not test_attention or simple or softmax' tests/test_attention.py \
    tests/test_model.py tests/test_fit.py tests/test_train.py tests/test_report.py tests/test_package.py "$@"
