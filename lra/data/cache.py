"""Cache of prepared tasks: built once under a lock, in a staging folder that is renamed when it is complete.

A prepared task is a folder of flat little-endian arrays and a `manifest.json` with their types, sizes and SHA-256,
which are compared whenever the task is opened. The folder is named after a hash of its identity.
"""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from lra.core import code
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest, read_json, sha256, write_json
from lra.core.paths import __version__
from lra.data import Place, Split, Task, TaskSpec, inputs
from lra.data.splits import LMWindows, Pictures, PositionLabels, contradictions
from lra.data.writer import ARRAY, Writer

LAYOUT = 3  # of arrays and manifest; part of the folder's name
MANIFEST = "manifest.json"
SPLITS = ("train", "val", "test")
MAX_CLASSES = 2**16  # also of tokens: 16 bits are stored
LOCK_TIMEOUT_SECONDS = 3600

NUL = "texts with a NUL byte"  # a key of the source, with their number

Splits = dict[str, Split]
Identity = dict[str, Any]

Make = Callable[[dict[str, Writer], Path], Any]
"""Fills the writers, may add files (a tokenizer) to the staging folder, and returns the source for the record."""


def prepared(
    place: Place,
    facts: TaskSpec,
    identity: Identity,
    make: Make,
    baselines: Callable[[Splits], dict[str, float]],
    *,
    validates_on_test: bool = False,
) -> Task:
    """Open a prepared task, building it first if the cache does not have it.

    Parallel processes build once: the others wait for the lock, which the system releases when its holder ends.

    Args:
        place: cache folder and data folder.
        facts: the facts that the examples are checked against.
        identity: everything that determines the content, as JSON: options, and the SHA-256 of the files that are read.
            `task` names the folder. The source of a user's task and the files that it reads are added.
        make: writes the examples.
        baselines: computed once, from the stored splits.
        validates_on_test: there is no split `val` to write; the test split serves as validation.

    Raises:
        UserError: the data are missing, do not fit the facts, or the cached files were changed.
    """
    builder = getattr(baselines, "__self__", baselines)
    if own := code.fingerprints(make.__module__, baselines.__module__, type(builder).__module__):
        identity = {**identity, "code": own}
    folder = _folder(place, identity)
    if not _is_current(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / f".{folder.name}.lock", timeout=LOCK_TIMEOUT_SECONDS):
                if not _is_current(folder):
                    if folder.exists():
                        say(f"{identity['task']}: an input file has changed; preparing the data again")
                        shutil.rmtree(folder)
                    _build(folder, facts, identity, make, baselines, validates_on_test)
        except Timeout:
            raise UserError(f"{folder}: another process has been preparing this task for an hour") from None
        except OSError as error:
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}") from error
    return _opened(folder, facts)


def _is_current(folder: Path) -> bool:
    """Return True if a task is prepared and the files that a user's task read are as they were."""
    return (folder / MANIFEST).exists() and inputs.changed(_manifest(folder).get("inputs", {})) is None


def described(place: Place, identity: Identity) -> Any:
    """Return the source of the cached data that `prepared` would open; None if it would have to build them."""
    folder = _folder(place, identity)
    return _manifest(folder)["source"] if (folder / MANIFEST).exists() else None


def _folder(place: Place, identity: Identity) -> Path:
    return place.cache / identity["task"] / digest({"layout": LAYOUT, **identity})[:12]


def _build(
    folder: Path,
    facts: TaskSpec,
    identity: Identity,
    make: Make,
    baselines: Callable[[Splits], dict[str, float]],
    validates_on_test: bool,
) -> None:
    """Write all files into a staging folder and rename it to `folder`; the caller holds the lock."""
    task = identity["task"]
    if max(facts.vocab_size, facts.classes) > MAX_CLASSES:
        raise UserError(f"{task}: {facts.vocab_size:,} tokens, {facts.classes:,} classes; at most {MAX_CLASSES:,}")
    staging = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)  # of a killed process
    staging.mkdir()
    splits = ("train", "test") if validates_on_test else SPLITS
    writers = {split: Writer(staging, split, facts) for split in splits}
    try:
        with inputs.recorded(folder.parent.parent) if "code" in identity else nullcontext({}) as read:
            source = make(writers, staging)
        files = {path.name: sha256(path) for path in sorted(staging.iterdir()) if path.suffix != ARRAY}
        arrays: dict[str, Any] = {}
        for split, writer in writers.items():
            arrays |= writer.close()
            if len(writer) == 0:
                raise UserError(f"{task}: the {split} split is empty; expected at least one example")
        mapped = _splits(staging, arrays, facts)
        doubts = contradictions({split: mapped[split] for split in splits})
        manifest = {
            "identity": identity,
            "digest": digest({name: entry["sha256"] for name, entry in arrays.items()}),
            "arrays": arrays,
            "files": files,
            "source": source,
            **({"inputs": read} if read else {}),
            "baselines": baselines(mapped),
            "doubts": doubts,
            "created_by": f"lra {__version__}",
        }
        write_json(staging / MANIFEST, manifest)
        staging.rename(folder)
        _say_doubts(task, {**doubts, NUL: source.get(NUL, 0) if isinstance(source, dict) else 0})
    finally:
        for writer in writers.values():
            writer.discard()
        shutil.rmtree(staging, ignore_errors=True)


def _say_doubts(task: str, counts: dict[str, int]) -> None:
    """Report doubtful examples of freshly prepared data in one line."""
    doubts = [f"{number:,} {what}" for what, number in counts.items() if number]
    if doubts:
        say(f"{task}: doubtful data are kept: {', '.join(doubts)}")


def _opened(folder: Path, facts: TaskSpec) -> Task:
    """Map a prepared task into memory."""
    verify(folder)
    manifest = _manifest(folder)
    return Task(
        **vars(facts),
        **_splits(folder, manifest["arrays"], facts),
        baselines=manifest["baselines"],
        digest=manifest["digest"],
        folder=folder,
        source=manifest["source"],
    )


def verify(folder: Path) -> None:
    """Compare every file of a prepared task with the SHA-256 in its manifest.

    Raises:
        UserError: a file is missing or differs.
    """
    manifest = _manifest(folder)
    expected = {f"{name}{ARRAY}": entry["sha256"] for name, entry in manifest["arrays"].items()} | manifest["files"]
    for name, sha in expected.items():
        actual = sha256(folder / name)
        if actual != sha:
            raise UserError(f"{folder / name}: SHA-256 {actual}, expected {sha}; delete {folder}")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST}: damaged: {error}; delete {folder} and prepare again") from None


def _splits(folder: Path, entries: dict[str, dict[str, Any]], facts: TaskSpec) -> Splits:
    """Map the arrays of all splits; without a split `val` the test split takes its place."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, entry in entries.items():
        split, array = name.split(".")
        path = folder / f"{name}{ARRAY}"
        arrays.setdefault(split, {})[array] = np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["size"],))
    splits = {name: _split(name, arrays[name], facts) for name in arrays}
    return {"val": splits["test"], **splits}


def _split(name: str, arrays: dict[str, np.ndarray], facts: TaskSpec) -> Split:
    """Construct a split of the class that the facts ask for; only training windows overlap."""
    if facts.objective == "next_token":
        return LMWindows(**arrays, context=facts.max_len, stride=1 if name == "train" else facts.max_len)
    if facts.objective in ("positions", "reconstruct"):
        return PositionLabels(**arrays)
    return Pictures(**arrays) if facts.pictures else Split(**arrays)
