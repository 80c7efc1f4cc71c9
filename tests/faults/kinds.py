"""The kinds of command that the trial disturbs, each as small as it can be, and what they leave undisturbed."""

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from faults.runs import TINY, Child, Ended, command, warm, without_figures
from faults.trial import state
from reports import complete, declare, put
from support import strip_times

import lra
import lra.__main__ as commands
import lra.report.check.verify
import lra.tasks.text
from lra.core.files import PARTIALS
from lra.records import record
from lra.records.names import FIGURES, METRICS, RECORD, SWEEP

PER_CLASS = 13  # reviews, of each split
SIZES = tuple(option for option in TINY if not option.startswith("task"))
HERE = ("out=runs", "cache=cache", "workers=1", "data_dir=null", "max_hours=null")


def nothing(folder: Path) -> None:
    """Of a command that makes its data itself."""


def reviews(folder: Path) -> None:
    """The folder `data/aclImdb`, with few reviews."""
    for split in ("train", "test"):
        for number, label in enumerate(("neg", "pos")):
            place = folder / "data/aclImdb" / split / label
            place.mkdir(parents=True)
            for review in range(PER_CLASS):
                words = f"{split} {review}: {('dull', 'gripping')[number]} {'and long ' * (review % 5)}"
                (place / f"{review}_7.txt").write_text(words)


def table(folder: Path) -> None:
    """A file `own.csv` of texts with labels."""
    rng = Random(7)
    with open(folder / "own.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(71):
            rows.writerow(
                [f"{number} {' '.join(rng.choices(('one', 'two', 'three'), k=5))}", ("odd", "even")[number % 2]]
            )


def records(folder: Path) -> None:
    """A results folder `done` of four runs, with its report."""
    for seed, accuracy in enumerate((37.0, 38.0, 37.5), start=1):
        put(folder / "done", seed, accuracy)
    put(folder / "done", 1, 30.0, attention="softmax", variant="transformer")
    declare(folder / "done", {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3]})
    complete(folder / "done")


def reported(folder: Path) -> None:
    records(folder)
    _done("done", folder)


def packed(folder: Path) -> None:
    reported(folder)
    _done("done", "--pack", folder)


def _done(*words: Any) -> None:
    with chdir(words[-1]):
        ended = command(*words[:-1], main=commands.report, inside=undrawn)
    assert ended.code == 0, ended.err


def undrawn() -> None:
    """For `inside`: neither writes nor verifies figures; few reviews are as many as there are."""
    without_figures()
    lra.report.check.verify.write_figures = lambda folder, sections: []
    lra.tasks.text.ROWS_PER_CLASS = PER_CLASS


@dataclass(frozen=True)
class Kind:
    """A command line, what lies in its folder before, whether it has processes of its own, and whether each of them
    imports everything anew."""

    words: tuple[str, ...]
    main: Callable = commands.train
    arrange: Callable[[Path], None] = nothing
    inside: Callable[[], None] = undrawn
    family: bool = False
    dear: bool = False

    def start(self, *more: str, **how: Any) -> Child:
        return Child(*self.words, *more, main=self.main, **{"inside": self.inside, **how})

    def command(self, *more: str, **how: Any) -> Ended:
        return self.start(*more, **how).ends()

    def lay(self, folder: Path) -> None:
        """Empty the folder and put there what the command needs."""
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(arranged(self.arrange), folder, dirs_exist_ok=True, symlinks=True)


DATA = tuple(option for option in TINY if option.startswith("task"))
PHASE = ("pretrain.train.steps=12", "pretrain.train.warmup=3", "train.steps=12")
KINDS = {
    "probe": Kind(
        (
            "task=selective_copy",
            *("task.length=24", "task.tokens=3", "task.vocabulary=11"),
            *("task.train_size=97", "task.val_size=31", "task.test_size=37"),
            *(*SIZES, *HERE),
        )
    ),
    "text": Kind(("task=text", "task.max_length=37", *SIZES, *HERE, "data_dir=data"), arrange=reviews),
    "files": Kind(("task=files", "task.data=own.csv", "task.max_length=41", *SIZES, *HERE), arrange=table),
    "race, no progress": Kind(
        (
            *(*TINY, *HERE, "train.lr=0.01", "train.schedule=constant"),
            *("train.patience=2", "train.progress=0.999", "train.goal=100", "train.cooldown=5"),
        )
    ),
    "race, solved": Kind((*TINY, *HERE, "train.schedule=constant", "train.goal=0.001", "train.cooldown=5")),
    "pretraining, masked": Kind((*TINY, *HERE, "pretrain=masked", *PHASE)),
    "pretraining, next": Kind((*TINY, *HERE, "pretrain=next", "attention=softmax", *PHASE)),
    "sweep": Kind(("--multirun", *TINY, *HERE, "seed=1,2,3", "train.steps=12")),
    "joblib, two workers": Kind(
        ("--multirun", *TINY, *HERE, "seed=1,2,3", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        family=True,
        dear=True,
    ),
    "two ranks": Kind((*TINY, *HERE, "train.processes=2"), family=True, dear=True),
    "preparation": Kind((*DATA, "task.train_size=1997", "cache=cache", "workers=2"), commands.prepare, family=True),
    "report": Kind(("done",), commands.report, records, lambda: None),
    "pack": Kind(("done", "--pack"), commands.report, reported),
    "unpack": Kind(("done", "--unpack"), commands.report, packed),
}


@dataclass(frozen=True)
class Undisturbed:
    """What a command leaves, and the seconds that it takes."""

    left: dict[str, Any]
    seconds: float


@cache
def undisturbed(name: str) -> Undisturbed:
    """What a kind of command leaves in a folder where nothing happens to it."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as place, chdir(place):
        kind.lay(Path(place))
        warm()
        start = monotonic()
        ended = kind.command()
        assert ended.code == 0, ended.err
        return Undisturbed(left(Path(place)), monotonic() - start)


def left(folder: Path) -> dict[str, Any]:
    """Every file below a folder with its content: times left out, of a report with times in it the name alone. Nothing
    of locks, of what is remembered of raw files by their inodes, and of what a killed report, which holds no lock, had
    begun."""
    contents: dict[str, Any] = {name: what for name, what in state(folder).items() if not _passing(Path(name))}
    for path in folder.rglob(RECORD):
        kept = strip_times(record.read(path))
        kept.pop("resumes", None)
        contents[path.relative_to(folder).as_posix()] = kept
    for path in folder.rglob(METRICS):
        lines = [strip_times(json.loads(line)) for line in path.read_text().splitlines()]
        contents[path.relative_to(folder).as_posix()] = lines
    for path in folder.glob(f"runs/{SWEEP}"):
        for beside in path.parent.iterdir():
            if beside.is_file() and beside != path:
                contents[beside.relative_to(folder).as_posix()] = "report"
    return contents


def _passing(path: Path) -> bool:
    begun = path.match(PARTIALS) and path.parts[-2] in ("done", "runs", FIGURES)
    return begun or path.suffix == ".lock" or path.parts[:2] == ("cache", "raw")


_kept = tempfile.TemporaryDirectory(prefix="lra-arranged-")


@cache
def arranged(arrange: Callable[[Path], None]) -> Path:
    """The folder that `arrange` fills, once."""
    folder = Path(tempfile.mkdtemp(dir=_kept.name))
    arrange(folder)
    return folder


def children(process: int) -> list[int]:
    """The processes that one has started, and those that they have."""
    descendants = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == process:
            descendants += [int(path.parent.name), *children(int(path.parent.name))]
    return [number for number in descendants if number != os.getpid()]
