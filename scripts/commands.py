"""Run the commands of README.md, CONTRIBUTING.md and docs/ in a clone; print exit code, seconds and last line of each.

python scripts/commands.py FOLDER [PATTERN]    # only commands that match; clones into FOLDER unless it exists

The commands run in the order of the pages, because some need files of an earlier one.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))
from test_examples import command_lines  # noqa: E402

LIMIT_S = 600  # time limit of a command; one that takes longer has exit code 124 and should be added to PARTS
# placeholders, bare program names, installations; commands for clusters, accelerators, hubs; commands that CI runs
NOT_RUN = (
    r"<|\.\.\.|TASK|DIR|=RUN|/volume|^(#|git|cd|pip)|^lra-\w+( --multirun| --verify)?$"
    r"|submitit_slurm|ray|reproduce|stanfordnlp|^\.venv/|scripts/(test|docs)|my_options|average"
)
PARTS = {  # overrides, by pattern of command, that make it shorter: they replace those of the same key, or are added
    r"experiment=table1_": "task=listops system=simple seed=1 device=cpu",
    r"experiment=(lra|table1) ": "task=listops system=simple seed=1 sweep_minutes=1",
    r"experiment=(pretraining_small|small_listops).*seed=1,2|demo also=mine out": "seed=1",
    r"protocol=paper,strict": "system=simple",
    r"out=runs/(first|rows|protocols)": "train.steps=600",
    r"task=files .*size=small": "train.steps=200 train.eval_every=100",
    r"experiment=(pretraining_small|ablations)": "seed=1 train.steps=200 train.eval_every=100",
    r"launcher=joblib.*threads": "system=simple,linear seed=1 out=runs/joblib",
    r"launcher=submitit_local": "system=simple,linear seed=1 out=runs/submitit",
    r"other/s5": "train.steps=20 train.eval_every=10",
    r"out=runs/rates": "train.lr=0.001,0.003",
    r"rates=": "system=simple seed=1",
    r"task=mqar": "system=simple seed=1 train.steps=300",
    r"task=image": "task.limit=200 train.steps=4 train.eval_every=2",
    r"task=books": "size=smoke",
    r"torchrun": "size=small train.steps=4 train.eval_every=2",
}
OWN_FILES = "/mine.py\n/my*\n/test_m*.py\n/lra_options/\n/reviews.csv\n"  # written by the commands, ignored by git


def clone(folder: Path) -> None:
    """Clone and install lra, and write 600 texts of two classes into the files that the commands read."""
    subprocess.run(["git", "clone", "-q", CHECKOUT, folder], check=True)
    (folder / ".git/info/exclude").write_text(OWN_FILES)
    install = 'bash scripts/install.sh user && .venv/bin/pip install -q -c constraints.txt -e ".[optuna,submitit]"'
    subprocess.run(["bash", "-c", install], cwd=folder, check=True)
    texts = [f"number {i} is {'good and fine' if i % 2 else 'bad and poor'}" for i in range(600)]
    table = pd.DataFrame({"text": texts, "label": ["neg", "pos"] * 300})
    (folder / "my_folder").mkdir()
    for name, rows in {"reviews": table, "my_folder/train": table[:500], "my_folder/test": table[500:]}.items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    table.to_json(folder / "my.jsonl", orient="records", lines=True)


def part(command: str) -> str:
    """Return the command with the overrides in PARTS that are meant for it."""
    for word in " ".join(words for pattern, words in PARTS.items() if re.search(pattern, command)).split():
        own = rf"(?<=\s){word.partition('=')[0]}=\S+"
        command = re.sub(own, word, command) if re.search(own, command) else f"{command} {word}"
    return command


def main(folder: Path, pattern: str = "") -> None:
    """Run the commands that match `pattern`, and print the output of git status, which should be empty."""
    if not folder.exists():
        clone(folder)
    environment = os.environ | {"PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}
    for command in dict.fromkeys(part(re.split(r"\s+#", line)[0]) for line in command_lines()):
        if re.search(NOT_RUN, command) or not re.search(pattern, command):
            continue
        shell = ["timeout", "--kill-after=60", str(LIMIT_S), "bash", "-c", f"({command}) 2>&1"]
        started = time.monotonic()
        done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
        print(f"{done.returncode:4} {time.monotonic() - started:5.0f} s {command}")
        print(f"             {done.stdout.strip().rpartition(chr(10))[2]}", flush=True)
    subprocess.run(["git", "status", "--short"], cwd=folder, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
