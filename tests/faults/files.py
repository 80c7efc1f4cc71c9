"""Files that were exchanged, damaged, or replaced by what is no file: noticed in one line, or without consequence."""

import os
import shutil
import tempfile
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from faults.kinds import HERE, PHASE, Kind, left, packed, reported, undrawn
from faults.runs import TINY, Ended
from faults.trial import Case, Outcome, Verdict, equal, state

import lra.__main__ as commands
from lra.records.names import (
    CHECKPOINTS,
    CONFIG,
    GENERATIONS,
    LOCK,
    METRICS,
    PREDICTIONS,
    RECEIPTS,
    RECORD,
    SWEEP,
    SWEEP_LOCK,
    WEIGHTS,
)

SYSTEM = ("attention=softmax", "variant=simple")
RUN = (*TINY, *HERE, *SYSTEM)
FAULTS, REPORT = ("error: ", "failed: ", "refused: "), "lra-report: error: "
COPY = "copy of "  # the name of what a link leads to
OUTSIDE = Path("../precious/deep/thesis.txt")


def paused(folder: Path, *options: str, kind: Kind = Kind(RUN), fault: str = "step:16:term", **how: Any) -> None:
    """Lets a command stop there."""
    with chdir(folder):
        ended = kind.command(*options, fault=fault, **how)
    assert ended.code == 75, ended.err


def half_pretrained(folder: Path) -> None:
    """A run that was paused in its pretraining."""
    paused(folder, kind=PRETRAINED, fault="step:9:term")


def swept(folder: Path) -> None:
    """A finished sweep of two runs."""
    with chdir(folder):
        ended = SWEEP_OF_TWO.command()
    assert ended.code == 0, ended.err


def half_swept(folder: Path) -> None:
    """The same, and one of the runs is gone."""
    swept(folder)
    shutil.rmtree(next(folder.joinpath("runs").rglob("seed2")))


PRETRAINED = Kind((*TINY, *HERE, *SYSTEM, "pretrain=masked", *PHASE), arrange=half_pretrained)
SWEEP_OF_TWO = Kind(("--multirun", *RUN, "seed=1,2", "train.steps=12"), arrange=half_swept)
STATES = {
    "paused run": Kind(RUN, arrange=paused),
    "pretraining": PRETRAINED,
    "sweep": SWEEP_OF_TWO,
    "verified sweep": Kind(("runs", "--verify"), commands.report, swept, undrawn),
    "report": Kind(("done",), commands.report, reported, undrawn),
    "verification": Kind(("done", "--verify"), commands.report, reported, undrawn),
    "packing": Kind(("done", "--pack"), commands.report, reported, undrawn),
    "unpacking": Kind(("done", "--unpack"), commands.report, packed, undrawn),
    "preparation": Kind((*(word for word in RUN if word.startswith("task")), "cache=cache", "verify=true"),
                        commands.prepare, paused),
}  # fmt: skip
FILES = {
    "paused run": (CONFIG, RECORD, METRICS, CHECKPOINTS, GENERATIONS, LOCK, "manifest.json", "train.tokens.bin"),
    "pretraining": (CONFIG, METRICS, CHECKPOINTS, GENERATIONS),
    "sweep": (SWEEP, RECORD, CONFIG, METRICS, PREDICTIONS, "README.md", "table1.json", SWEEP_LOCK),
    "verified sweep": (SWEEP, RECORD, CONFIG, METRICS, PREDICTIONS, WEIGHTS, "README.md"),
    "report": (SWEEP, RECORD, CONFIG, METRICS, PREDICTIONS, "README.md", "index.html"),
    "verification": (SWEEP, RECORD, METRICS, PREDICTIONS, "README.md", "index.html", "table1.json"),
    "packing": (SWEEP, RECORD, METRICS, PREDICTIONS, "README.md"),
    "unpacking": (RECEIPTS, "README.md"),
    "preparation": ("manifest.json", "train.tokens.bin", "test.labels.bin"),
}

MAY_LACK = {(state, name) for state in ("sweep", "report") for name in (METRICS, PREDICTIONS)}
MAY_LACK |= {("report", RECORD), ("report", SWEEP)}
"""What a report does without: it says which runs are missing of those declared, if any are; only a verification says
which files are."""


@cache
def expected(at: str) -> tuple[Ended, dict[str, Any]]:
    """How the command ends where nothing was damaged, and what it leaves."""
    with tempfile.TemporaryDirectory() as place, chdir(place):
        STATES[at].lay(Path(place))
        ended = STATES[at].command()
        assert ended.code == 0, ended.err
        return ended, left(Path(place))


# ---------------------------------------------------------------- damages


def flipped(path: Path, rng: Random) -> str:
    data = bytearray(path.read_bytes() or b"\0")
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"a bit of byte {place} of {len(data)}"


def cut(path: Path, rng: Random) -> str:
    size = rng.randrange(path.stat().st_size or 1)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def emptied(path: Path, rng: Random) -> str:
    path.write_bytes(b"")
    return "empty"


def missing(path: Path, rng: Random) -> str:
    path.unlink()
    return "missing"


def fifo(path: Path, rng: Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return "a FIFO"


def link(path: Path, rng: Random) -> str:
    path.unlink()
    path.symlink_to(OUTSIDE.absolute())
    return "a link to a file outside"


def link_to_copy(path: Path, rng: Random) -> str:
    """Outside: what is written to it is noticed."""
    copy = path.with_name(f"{COPY}{path.name}")
    path.rename(copy)
    path.symlink_to(copy.absolute())
    return "a link to what was there"


def dangling(path: Path, rng: Random) -> str:
    path.unlink()
    path.symlink_to(Path("../precious/nothing").absolute())
    return "a link to nothing"


def directory(path: Path, rng: Random) -> str:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("a file")
    return "a folder"


DAMAGES = (flipped, flipped, cut, emptied, missing, fifo, link, link_to_copy, dangling, directory)


def damaged(at: str, name: str, rng: Random, folder: Path) -> Outcome:
    """One of the files of that name is damaged, and the command asked again."""
    whole, kind = expected(at), STATES[at]
    kind.lay(folder)
    path = rng.choice(sorted(folder.rglob(name)))
    place = path.relative_to(folder).as_posix()
    damages = [damage for damage in DAMAGES if (at, name) not in MAY_LACK or damage not in (missing, dangling)]
    injected = f"{place}: {rng.choice(damages)(path, rng)}"
    damage = state(folder).get(place)
    return judged(injected, kind.command(), whole, folder, {place: damage})


def judged(
    injected: str, ended: Ended, whole: tuple[Ended, dict[str, Any]], folder: Path, unread: dict[str, str | None]
) -> Outcome:
    """Refused, in one line that says so besides those that only tell, or ended as if nothing had been. A sweep goes on
    with its other runs and has a line for each thing that is wrong; a verification has them on standard output.

    `unread`: what is as it was before the command, which had no use for it."""
    faults = [line for line in ended.err.splitlines() if any(word in line for word in FAULTS)]
    several = "runs finished" in ended.err or "mismatches" in ended.out or ended.err.count(REPORT) > 1
    if ended.code > 0 and "Traceback" not in ended.err and (several or len(faults) == 1):
        return Outcome(injected, f"{ended.code}, {[*faults, *ended.out.splitlines()][0]}", Verdict.REFUSED)
    if ended.code != 0:
        return Outcome(injected, f"{ended.code}, {ended.said}", Verdict.WRONG)
    same = {name for name, what in unread.items() if state(folder).get(name) == what}
    seen, wanted = (
        {name: what for name, what in files.items() if name not in same} for files in (left(folder), whole[1])
    )
    seen = {name: what for name, what in seen.items() if not Path(name).name.startswith(COPY)}
    return equal(injected, ended, seen, wanted)


INPUTS: dict[str, Case] = {f"{at}: {name}": partial(damaged, at, name) for at, names in FILES.items() for name in names}
