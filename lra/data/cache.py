"""Cache of prepared tasks: built once under a lock, in a staging folder that is renamed when it is complete.

A prepared task is a folder of flat little-endian arrays and a `manifest.json` with their types, sizes and SHA-256,
which are compared whenever the task is opened. The folder is named after a hash of its identity: everything that
determines its content, the SHA-256 of raw data and of a user's own code included.
"""

import secrets
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
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

LAYOUT = 2  # of the arrays; part of the folder's name
SCHEMA = 3  # of the manifest
MANIFEST = "manifest.json"
DTYPES = ("|u1", "<u2", "<i4", "<i8")
SPLITS = ("train", "val", "test")
MAX_CLASSES = 2**16  # also of tokens: 16 bits are stored
LOCK_TIMEOUT_SECONDS = 3600

NUL = "texts with a NUL byte"  # a key of the source, with their number

Splits = dict[str, Split]
Manifest = dict[str, Any]
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
        identity: everything that determines the content, as JSON; `task` names the folder. The source of a user's
            task and the files that it reads are added. With `raw: None` (no files at hand) and without a data
            folder, the only cache that differs in `raw` alone is used instead.
        make: writes the examples.
        baselines: computed once, from the stored splits.
        validates_on_test: there is no split `val` to write; the test split serves as validation.

    Raises:
        UserError: the data are missing, do not fit the facts, or the cached files were changed.
    """
    builder = getattr(baselines, "__self__", baselines)
    if own := code.fingerprints(make.__module__, baselines.__module__, type(builder).__module__):
        identity = {**identity, "code": own}
    identity = _identity_at_hand(place, identity)
    folder = _folder(place, identity)
    if not _is_current(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / f".{folder.name}.lock", timeout=LOCK_TIMEOUT_SECONDS):
                if not _is_current(folder):
                    if (folder / MANIFEST).exists():
                        stale = inputs.changed(_manifest(folder)["inputs"])
                        say(f"{identity['task']}: {stale} has changed; preparing the data again")
                        shutil.rmtree(folder)
                    _build(folder, facts, identity, make, baselines, validates_on_test)
        except Timeout:
            raise UserError(f"{folder}: another process has been preparing this task for an hour") from None
        except OSError as error:
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}") from error
    return open_cache(folder, facts, identity)


def _is_current(folder: Path) -> bool:
    """Return True if a task is prepared, and the files that a user's task read are as they were."""
    if not (folder / MANIFEST).exists():
        return False
    return inputs.changed(_manifest(folder).get("inputs", {})) is None


def described(place: Place, identity: Identity) -> Any:
    """Return the source of the cached data that `prepared` would open; None if it would have to build them."""
    folder = _folder(place, _identity_at_hand(place, identity))
    return _manifest(folder)["source"] if (folder / MANIFEST).exists() else None


def _folder(place: Place, identity: Identity) -> Path:
    return place.cache / identity["task"] / digest({"schema": LAYOUT, **identity})[:12]


def _identity_at_hand(place: Place, identity: Identity) -> Identity:
    """Identity of the only cache with the same options and any raw data, where no raw data are at hand."""
    if place.data_dir is not None or identity.get("raw", ...) is not None:
        return identity
    if (_folder(place, identity) / MANIFEST).exists():
        return identity
    manifests = [_manifest(path.parent) for path in sorted((place.cache / identity["task"]).glob(f"[!.]*/{MANIFEST}"))]
    same = [manifest for manifest in manifests if {**manifest["identity"], "raw": None} == identity]
    if len({manifest["digest"] for manifest in same}) > 1:
        raise UserError(
            f"{identity['task']}: data_dir=null, and {len(same)} caches of different data in "
            f"{place.cache / identity['task']} have these options; name the data folder with data_dir=..."
        )
    if not same:
        return identity
    _say_once(f"{identity['task']}: data_dir=null; using the cached data {_folder(place, same[0]['identity'])}")
    return same[0]["identity"]


@cache
def _say_once(message: str) -> None:
    say(message)


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
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: found no {MANIFEST} in this prepared task; delete it")
    if max(facts.vocab_size, facts.classes) > MAX_CLASSES:
        raise UserError(f"{task}: {facts.vocab_size:,} tokens, {facts.classes:,} classes; at most {MAX_CLASSES:,}")
    for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(left_over)
    staging = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.tmp"
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
        manifest = {
            "schema": SCHEMA,
            "identity": identity,
            "digest": digest({name: entry["sha256"] for name, entry in arrays.items()}),
            "arrays": arrays,
            "files": files,
            "source": source,
            **({"inputs": read} if read else {}),
            "created_by": f"lra {__version__}",
        }
        mapped = _splits(staging, manifest, facts)
        manifest["baselines"] = baselines(mapped)
        manifest["doubts"] = contradictions({split: mapped[split] for split in splits})
        write_json(staging / MANIFEST, {"sha256": digest(manifest), **manifest})
        staging.rename(folder)
        _say_doubts(task, manifest)
    finally:
        for writer in writers.values():
            writer.discard()
        shutil.rmtree(staging, ignore_errors=True)


def _say_doubts(task: str, manifest: Manifest) -> None:
    """Report doubtful examples of freshly prepared data in one line."""
    doubts = [f"{number:,} {what}" for what, number in manifest["doubts"].items() if number]
    if isinstance(manifest["source"], dict) and manifest["source"].get(NUL):
        doubts.append(f"{manifest['source'][NUL]:,} {NUL}")
    if doubts:
        say(f"{task}: doubtful data are kept: {', '.join(doubts)}")


def open_cache(folder: Path, facts: TaskSpec, identity: Identity) -> Task:
    """Map a prepared task into memory.

    Raises:
        UserError: a file is missing or was changed, or the folder holds a task of another identity.
    """
    manifest = _manifest(folder)
    stored = manifest["identity"]
    if digest(stored) != digest(identity):
        keys = sorted(key for key in {*stored, *identity} if stored.get(key, ...) != identity.get(key, ...))
        raise UserError(
            f"{folder / MANIFEST}: prepared from other data or options than the folder is named after (they differ in "
            f"{', '.join(keys)}); delete {folder} and prepare again"
        )
    try:
        splits = _splits(folder, manifest, facts)
        verify(folder)
        return Task(
            **vars(facts),
            **splits,
            baselines=manifest["baselines"],
            digest=manifest["digest"],
            folder=folder,
            source=manifest["source"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST}: not the manifest of a task: {error}; delete {folder}") from None


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


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
        if manifest["schema"] != SCHEMA:
            raise UserError(f"{folder}: cache of schema {manifest['schema']}, this version reads {SCHEMA}; delete it")
        if manifest.pop("sha256") != digest(manifest):
            raise ValueError("its content does not match its SHA-256")
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}; delete {folder} and prepare again") from None


def _splits(folder: Path, manifest: Manifest, facts: TaskSpec) -> Splits:
    """Map the arrays of all splits; without a split `val` the test split takes its place."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, entry in manifest["arrays"].items():
        split, array = name.split(".")
        arrays.setdefault(split, {})[array] = _map(folder / f"{name}{ARRAY}", entry)
    splits = {name: _split(name, arrays[name], facts) for name in arrays}
    if facts.fixed_length:
        _check_lengths(manifest["identity"]["task"], splits, facts.max_len)
    return {"val": splits["test"], **splits}


def _split(name: str, arrays: dict[str, np.ndarray], facts: TaskSpec) -> Split:
    """Construct a split of the class that the facts ask for; only training windows overlap."""
    if facts.objective == "next_token":
        return LMWindows(**arrays, context=facts.max_len, stride=1 if name == "train" else facts.max_len)
    if facts.objective in ("positions", "reconstruct"):
        return PositionLabels(**arrays)
    return Pictures(**arrays) if facts.pictures else Split(**arrays)


def _check_lengths(task: str, splits: Splits, length: int) -> None:
    """Refuse documents of other lengths: with fixed_length no padding mask is made."""
    for name, split in splits.items():
        lengths = np.diff(split.offsets)
        others = np.flatnonzero(lengths != length)
        if len(others):
            raise UserError(
                f"{task}: fixed_length=True expects documents of {length:,} tokens; {name} document {others[0]:,} has "
                f"{lengths[others[0]]:,}, {len(others):,} of {len(lengths):,} differ"
            )


def _map(path: Path, entry: dict[str, Any]) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{path.name} has the type {entry['dtype']!r}, expected one of {', '.join(DTYPES)}")
    expected = entry["size"] * np.dtype(entry["dtype"]).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise UserError(f"{path}: {size} bytes, expected {expected}; delete {path.parent} and prepare again")
    return np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["size"],))
