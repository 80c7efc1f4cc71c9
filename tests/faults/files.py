"""Files that were exchanged, damaged, or replaced by what is no file: noticed in one line, or without consequence."""

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from faults.kinds import HERE, PHASE, Kind, arranged, left, packed, reported, undrawn
from faults.runs import TINY, Ended, read_only, with_mounts
from faults.trial import Case, Outcome, Verdict, equal, state

import lra.__main__ as commands
from lra.records import provenance
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


def paused(*options: str) -> None:
    ended = Kind((*RUN, *options)).command(fault="step:16:term")
    assert ended.code == 75, ended.err


def half(folder: Path) -> None:
    """A run that was paused after step 16, with two checkpoints."""
    inside(folder, paused)


def half_pretrained(folder: Path) -> None:
    """A run that was paused in its pretraining."""

    def act() -> None:
        ended = PRETRAINED.command(fault="step:9:term")
        assert ended.code == 75, ended.err

    inside(folder, act)


def swept(folder: Path) -> None:
    """A finished sweep of two runs."""

    def act() -> None:
        ended = SWEEP_OF_TWO.command()
        assert ended.code == 0, ended.err

    inside(folder, act)


def half_swept(folder: Path) -> None:
    """The same, and one of the runs is gone."""
    swept(folder)
    shutil.rmtree(next(folder.joinpath("runs").rglob("seed2")))


def inside(folder: Path, act: Callable[[], None]) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        act()
    finally:
        os.chdir(before)


PRETRAINED = Kind((*TINY, *HERE, *SYSTEM, "pretrain=masked", *PHASE), arrange=half_pretrained)
SWEEP_OF_TWO = Kind(("--multirun", *RUN, "seed=1,2", "train.steps=12"), arrange=half_swept)
STATES = {
    "paused run": Kind(RUN, arrange=half),
    "pretraining": PRETRAINED,
    "sweep": SWEEP_OF_TWO,
    "verified sweep": Kind(("runs", "--verify"), commands.report, swept, undrawn),
    "report": Kind(("done",), commands.report, reported, undrawn),
    "verification": Kind(("done", "--verify"), commands.report, reported, undrawn),
    "packing": Kind(("done", "--pack"), commands.report, reported, undrawn),
    "unpacking": Kind(("done", "--unpack"), commands.report, packed, undrawn),
    "preparation": Kind((*(word for word in RUN if word.startswith("task")), "cache=cache", "verify=true"),
                        commands.prepare, half),
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

MAY_LACK = {(state, name) for state in ("sweep", "report") for name in (METRICS, PREDICTIONS)} | {("report", RECORD)}
"""What a report does without: it says which runs are missing; only a verification says which files are."""


@cache
def expected(at: str) -> tuple[Ended, dict[str, Any]]:
    """How the command ends where nothing was damaged, and what it leaves."""
    with tempfile.TemporaryDirectory() as place:
        folder, found = Path(place), []

        def act() -> None:
            STATES[at].lay(folder)
            found.append(STATES[at].command())

        inside(folder, act)
        assert found[0].code == 0, found[0].err
        return found[0], left(folder)


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
        {name: what for name, what in found.items() if name not in same} for found in (left(folder), whole[1])
    )
    seen = {name: what for name, what in seen.items() if not Path(name).name.startswith(COPY)}
    return equal(injected, ended, seen, wanted)


# ---------------------------------------------------------------- exchanges

FOREIGN = {
    "another seed": ("seed=2",),
    "another task": ("task.min_length=6",),
    "data of another seed": ("task.seed=2",),
    "an attention of equal shapes": ("attention=linear",),
    "another rate": ("train.lr=0.011",),
    "another variant of equal shapes": ("variant=simple_res",),
}


def foreign(name: str, folder: Path) -> None:
    inside(folder, lambda: paused(*FOREIGN[name], "out=other"))


def other_version(folder: Path) -> None:
    def change() -> None:
        provenance.__version__ = "0.0.1"

    ended = []
    inside(folder, lambda: ended.append(Kind((*RUN, "out=other")).command(fault="step:16:term", inside=change)))
    assert ended[0].code == 75, ended[0].err


ARRANGED = {name: partial(foreign, name) for name in FOREIGN} | {"another version of lra": other_version}


def exchanged(name: str, rng: Random, folder: Path) -> Outcome:
    """The checkpoints of another run, with what lies beside them or without, in place of those of this one."""
    whole, kind = expected("paused run"), STATES["paused run"]
    kind.lay(folder)
    own, theirs = (next(folder.joinpath(out).rglob(CHECKPOINTS)).parent for out in ("runs", laid(name, folder)))
    move = rng.choice([(CHECKPOINTS, GENERATIONS), (CHECKPOINTS, GENERATIONS, METRICS)])
    lost = rng.choice([(), (CONFIG,), (CONFIG, RECORD)])
    put(own, theirs, move, lost)
    shutil.rmtree(folder / "other")
    return judged(f"{name}; lost: {', '.join(lost) or 'nothing'}", kind.command(), whole, folder, {})


def laid(name: str, folder: Path) -> str:
    shutil.copytree(arranged(ARRANGED[name]) / "other", folder / "other")
    return "other"


def put(own: Path, theirs: Path, patterns: tuple[str, ...], lost: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in own.glob(pattern):
            path.unlink()
        for path in theirs.glob(pattern):
            shutil.copy(path, own)
    for file in lost:
        (own / file).unlink(missing_ok=True)


def phases_exchanged(rng: Random, folder: Path) -> Outcome:
    """The checkpoints of the pretraining as those of the training."""
    whole, kind = expected("pretraining"), STATES["pretraining"]
    kind.lay(folder)
    theirs = next(folder.joinpath("cache").rglob(CHECKPOINTS)).parent
    own = next(folder.joinpath("runs").rglob(CONFIG)).parent
    put(own, theirs, (CHECKPOINTS, GENERATIONS, METRICS), ())
    return judged("its own pretraining's", kind.command(), whole, folder, {})


def read_only_folder(at: str, rng: Random, folder: Path) -> Outcome:
    """Of the results, of a run or of the cache, by a mount."""
    whole, kind = expected(at), STATES[at]
    kind.lay(folder)
    places = [path for path in (folder / "runs", folder / "cache", folder / "done") if path.exists()]
    place = rng.choice([*places, *(path.parent for path in folder.rglob(CONFIG))])

    def scenario() -> list:
        read_only(place)
        ended = kind.command()
        return [ended.code, ended.out, ended.err]

    return judged(f"{place.relative_to(folder)} is read-only", Ended(*with_mounts(scenario)), whole, folder, {})


INPUTS: dict[str, Case] = {
    **{f"{state}: {name}": partial(damaged, state, name) for state, names in FILES.items() for name in names},
    **{f"checkpoint of {name}": partial(exchanged, name) for name in ARRANGED},
    "checkpoint of another phase": phases_exchanged,
    **{f"{state}: read-only": partial(read_only_folder, state) for state in STATES if "verif" not in state},
}
