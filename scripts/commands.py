"""Run every command of README.md and docs/ in a fresh clone; print exit code, seconds and last line of each.

    .venv/bin/python scripts/commands.py [FOLDER]            part of each long command: 40 minutes on two cores
    .venv/bin/python scripts/commands.py FOLDER train.steps=20 train.eval_every=10    trainings with these settings

A folder that exists is taken as the clone.

The commands are those that tests/test_examples.py finds. The environment of the caller holds (LRA_DATA, LRA_CACHE).
"""

import csv
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))
from test_examples import command_lines  # noqa: E402

SKIPPED = {  # what matches is not run, for this reason
    r"^(#|git |cd )": "done by this script",
    r"<|\.\.\.|TASK|DIR|=RUN|/volume|^lra-\w+( --multirun| --verify)?$": "has a placeholder",
    r"submitit_slurm|ray|reproduce\.sh|stanfordnlp": "needs SLURM, Ray, an accelerator or a network",
    r"^\.venv/|scripts/(test|docs)\.sh|transformers|my_options|average": "the tests run it",
    r"^pip install": "this script installs the extras that others need",
}
PARTS = {  # what matches is run with these words, in place of its own or added
    r"experiment=table1_(small|narrow)": "task=listops system=simple seed=1",
    r"experiment=pretraining_small": "system=simple case=from_scratch seed=1",
    r"experiment=lra|experiment=table1 ": "task=listops system=simple seed=1 sweep_minutes=1",
    r"experiment=ablations": "seed=1",
    r"experiment=small_listops.*seed=1,2,3": "seed=1 train.steps=200",
    r"sweeper=optuna": "system=simple train.lr=0.001,0.003 train.steps=200",
    r"rates=": "system=simple seed=1 train.steps=200",
    r"task=mqar": "system=simple seed=1 train.steps=300",
    r"task=(image|books) ": "train.steps=4 train.eval_every=2",
    r"torchrun": "size=small train.steps=4 train.eval_every=2",
}
REDUCIBLE = r"scripts/demo|experiment=(demo|small_listops)|task=files.*size=small"
EXPECTED = {0, 75}  # 75: stopped by sweep_minutes


def main(folder: Path, fewer: list[str]) -> int:
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", CHECKOUT, folder], check=True)
        subprocess.run(["bash", "scripts/install.sh", "user"], cwd=folder, check=True)
        extras = [".venv/bin/pip", "install", "-q", "-c", "constraints.txt", "-e", ".[optuna,submitit]"]
        subprocess.run(extras, cwd=folder, check=True)
        _write_data(folder)
    environment = os.environ | {"PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}
    wrong = 0
    for command in dict.fromkeys(re.split(r"\s+#", line)[0] for line in command_lines()):
        reason = next((reason for pattern, reason in SKIPPED.items() if re.search(pattern, command)), None)
        if reason:
            print(f"   -        {command}\n             not run: {reason}", flush=True)
            continue
        words = [words for pattern, words in PARTS.items() if re.search(pattern, command)]
        if not words and re.search(REDUCIBLE, command):
            words = fewer
        shown = _with(_with_a_run(command, folder), " ".join(words).split())
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", shown],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        last = ["", *done.stdout.strip().splitlines()][-1]
        wrong += done.returncode not in EXPECTED
        print(f"{done.returncode:4} {time.monotonic() - started:5.0f} s {shown}\n             {last[:200]}", flush=True)
    print("git status --short:")
    subprocess.run(["git", "status", "--short"], cwd=folder, check=True)
    return int(wrong > 0)


def _with(command: str, words: list[str]) -> str:
    """Set KEY=VALUE words in a command."""
    for word in words:
        own = rf"(?<=\s){re.escape(word.partition('=')[0])}=\S+"
        command = re.sub(own, word, command) if re.search(own, command) else f"{command} {word}"
    return command


def _with_a_run(command: str, folder: Path) -> str:
    """Put a finished run for CELL/seed1."""
    record = next(iter(sorted(folder.glob("runs/mine/**/seed1/record.json"))), None)
    cell = str(record.parents[1].relative_to(folder / "runs" / "mine")) if record else "CELL"
    return command.replace("CELL", f"'{cell}'")


def _write_data(folder: Path) -> None:
    """Write 600 texts of two classes as reviews.csv, my.jsonl and my_folder/train.csv and test.csv."""
    rows = [(f"number {i} is {'good and fine' if i % 2 else 'bad and poor'}", "np"[i % 2]) for i in range(600)]
    (folder / "my_folder").mkdir()
    for name, part in {"reviews": rows, "my_folder/train": rows[:500], "my_folder/test": rows[500:]}.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    lines = (f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in rows)
    (folder / "my.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    place, *settings = sys.argv[1:] or [mkdtemp()]
    sys.exit(main(Path(place).resolve(), settings))
