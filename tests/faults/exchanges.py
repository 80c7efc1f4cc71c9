"""Checkpoints of other runs in place of a run's own, and folders that must not be written."""

import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from faults.files import STATES, expected, judged, paused
from faults.kinds import arranged
from faults.runs import Ended, read_only, with_mounts
from faults.trial import Case, Outcome

from lra.records import provenance
from lra.records.names import CHECKPOINTS, CONFIG, GENERATIONS, METRICS, RECORD

FOREIGN = {
    "another seed": ("seed=2",),
    "another task": ("task.min_length=6",),
    "data of another seed": ("task.seed=2",),
    "an attention of equal shapes": ("attention=linear",),
    "another rate": ("train.lr=0.011",),
    "another variant of equal shapes": ("variant=simple_res",),
}


VERSIONS: dict[str, tuple[str, Any]] = {
    "another version of lra": ("__version__", "0.0.1"),
    "another commit": ("_commit", lambda: {"commit": "0" * 40, "dirty": False}),
}


def foreign(name: str, folder: Path) -> None:
    """The other run, paused."""
    if name in FOREIGN:
        paused(folder, *FOREIGN[name], "out=other")
    else:
        paused(folder, "out=other", inside=lambda: setattr(provenance, *VERSIONS[name]))


ARRANGED = {name: partial(foreign, name) for name in (*FOREIGN, *VERSIONS)}


def exchanged(name: str, rng: Random, folder: Path) -> Outcome:
    """The checkpoints of another run, with what lies beside them or without, in place of those of this one."""
    whole, kind = expected("paused run"), STATES["paused run"]
    kind.lay(folder)
    other = arranged(ARRANGED[name]) / "other"
    ours, theirs = (next(place.rglob(CHECKPOINTS)).parent for place in (folder / "runs", other))
    move = rng.choice([(CHECKPOINTS, GENERATIONS), (CHECKPOINTS, GENERATIONS, METRICS)])
    lost = rng.choice([(), (CONFIG,), (CONFIG, RECORD)])
    put(ours, theirs, move, lost)
    return judged(f"{name}; lost: {', '.join(lost) or 'nothing'}", kind.command(), whole, folder, {})


def put(target: Path, source: Path, patterns: tuple[str, ...], lost: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in target.glob(pattern):
            path.unlink()
        for path in source.glob(pattern):
            shutil.copy(path, target)
    for file in lost:
        (target / file).unlink(missing_ok=True)


def phases_exchanged(rng: Random, folder: Path) -> Outcome:
    """The checkpoints of the pretraining as those of the training."""
    whole, kind = expected("pretraining"), STATES["pretraining"]
    kind.lay(folder)
    theirs = next(folder.joinpath("cache").rglob(CHECKPOINTS)).parent
    ours = next(folder.joinpath("runs").rglob(CONFIG)).parent
    put(ours, theirs, (CHECKPOINTS, GENERATIONS, METRICS), ())
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
    **{f"checkpoint of {name}": partial(exchanged, name) for name in ARRANGED},
    "checkpoint of another phase": phases_exchanged,
    **{f"{at}: read-only": partial(read_only_folder, at) for at in STATES if "verif" not in at},
}
