"""The cache of prepared tasks: built once, in a staging folder, under a lock, then renamed.

A prepared task is a folder of flat little-endian arrays and a `manifest.json` with their types, sizes and
SHA-256, and one of itself; all are compared whenever the task is opened. The folder's name is a hash of its identity:
everything that decides its content, the SHA-256 of raw data included. So neither two configurations nor two data sets
share one, and the identity in the manifest is compared, too.
"""

import platform
import secrets
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lra.core import locks
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest, read_json, sha256, write_json
from lra.core.version import __version__
from lra.data import Place, Split, Task, TaskSpec
from lra.data.duplicates import contradictions
from lra.data.pictures import Pictures
from lra.data.splits import LMWindows, PositionLabels
from lra.data.writer import ARRAY, Writer

LAYOUT = 2  # of the arrays; a part of the folder's name
SCHEMA = 3  # of the manifest; 2 had no SHA-256 of its own, nor of other files than arrays
MANIFEST = "manifest.json"
DTYPES = ("|u1", "<u2", "<i4", "<i8")
SPLITS = ("train", "val", "test")
LARGEST = 2**16  # numbers of tokens, and of classes, that can be stored
LOCK_PATIENCE_SECONDS = 3600

NUL = "texts with a NUL byte"  # a key of the source, with their number

Splits = dict[str, Split]
Manifest = dict[str, Any]
Identity = dict[str, Any]


Make = Callable[[dict[str, Writer], Path], Any]
"""Fills the writers, may put other files (a tokenizer) into the staging folder, returns the source."""


def prepared(
    place: Place,
    facts: TaskSpec,
    identity: Identity,
    make: Make,
    baselines: Callable[[Splits], dict[str, float]],
    *,
    validates_on_test: bool = False,
) -> Task:
    """The task that `facts` and `identity` (with its `task` folder) describe, made where the cache has it not yet.

    `baselines` is computed once, from the stored splits. With `validates_on_test` there is no split `val` to fill.
    An identity with `raw: None` is that of data from the hub. Where nobody named a data folder, the only cache with the
    same options serves instead, and its raw data are said.
    Parallel jobs build once: the others wait for the lock, which dies with the process that holds it.
    """
    folder = _folder(place, identity)
    if place.data_dir is None and identity.get("raw", ...) is None and not (folder / MANIFEST).exists():
        folder, identity = _without_raw_data(folder, identity)
    if not (folder / MANIFEST).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locks.hold(folder.parent / f".{folder.name}.lock", LOCK_PATIENCE_SECONDS):
                if not (folder / MANIFEST).exists():
                    if folder.exists() or folder.is_symlink():
                        raise UserError(f"{folder}: found no {MANIFEST} in this prepared task; delete it")
                    _build(folder, facts, identity, make, baselines, validates_on_test)
        except locks.Held as other:
            raise UserError(f"{folder}: not prepared within an hour: {other}") from None
        except OSError as error:
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}") from error
    return open_cache(folder, facts, identity)


def described(place: Place, identity: Identity) -> Any:
    """What the cache says of the source of the data that `prepared` would open without raw data; None where it would
    have to fetch them, and where caches of different data have these options."""
    folder = _folder(place, identity)
    if (folder / MANIFEST).exists():
        return _manifest(folder)["source"]
    without_raw_data = place.data_dir is None and identity.get("raw", ...) is None
    manifests = list(_same_options(folder, identity).values()) if without_raw_data else []
    return manifests[0]["source"] if len({manifest["digest"] for manifest in manifests}) == 1 else None


def _folder(place: Place, identity: Identity) -> Path:
    return place.cache / identity["task"] / digest({"schema": LAYOUT, **identity})[:12]


def _same_options(folder: Path, identity: Identity) -> dict[Path, Manifest]:
    """The caches beside `folder` that have these options and any raw data, with their manifests."""
    manifests = {path.parent: _manifest(path.parent) for path in sorted(folder.parent.glob(f"[!.]*/{MANIFEST}"))}
    return {path: manifest for path, manifest in manifests.items() if {**manifest["identity"], "raw": None} == identity}


def _without_raw_data(folder: Path, identity: Identity) -> tuple[Path, Identity]:
    """The cache of the same options and any raw data, and its identity; those given where there is none.

    Raises UserError where caches of different data have these options: only the raw data could tell which is meant.
    """
    same = _same_options(folder, identity)
    if not same:
        return folder, identity
    said = [f"{path} from {_flat(manifest['identity']['raw'])}" for path, manifest in same.items()]
    if len({manifest["digest"] for manifest in same.values()}) > 1:
        raise UserError(
            f"{identity['task']}: no raw data are at hand (data_dir=null), and {len(same)} caches of different data "
            f"have these options: {'; '.join(said)}; name the data folder (data_dir=...), or delete the others"
        )
    _say_once(f"{identity['task']}: no raw data are at hand (data_dir=null); what is cached serves: {said[0]}")
    chosen, manifest = next(iter(same.items()))
    return chosen, manifest["identity"]


def _flat(raw: Any) -> str:
    """Names and first digits of the SHA-256 of raw data in one line."""
    if isinstance(raw, dict):
        if {"name", "sha256"} <= set(raw):
            return f"{raw['name']} ({str(raw['sha256'])[:12]})"
        return ", ".join(_flat(item) for item in raw.values() if item)
    return ", ".join(map(_flat, raw)) if isinstance(raw, list) else str(raw)


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
    for what, count in (("kinds of tokens", facts.vocab_size), ("classes", facts.classes)):
        if count > LARGEST:
            raise UserError(f"{identity['task']}: {count:,} {what}, expected at most {LARGEST:,}: 16 bits are stored")
    host = platform.node()
    for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(left_over)
    staging = folder.parent / f".{folder.name}.{host}.{secrets.token_hex(8)}.tmp"
    staging.mkdir()
    splits = ("train", "test") if validates_on_test else SPLITS
    writers = {split: Writer(staging, split, facts) for split in splits}
    try:
        source = make(writers, staging)
        beside = [path for path in staging.iterdir() if path.suffix != ARRAY]
        arrays: dict[str, Any] = {}
        for split, writer in writers.items():
            arrays |= writer.close()
            if len(writer) == 0:
                raise UserError(f"{identity['task']}: the {split} split is empty; expected at least one example")
        manifest = {
            "schema": SCHEMA,
            "identity": identity,
            "digest": digest({name: entry["sha256"] for name, entry in arrays.items()}),
            "arrays": arrays,
            "files": {path.name: sha256(path) for path in sorted(beside)},
            "source": source,
            "created_by": f"lra {__version__}",
        }
        made = _splits(staging, manifest, facts)
        manifest["baselines"] = baselines(made)
        manifest["doubts"] = contradictions({split: made[split] for split in splits})
        write_json(staging / MANIFEST, {"sha256": digest(manifest), **manifest})
        verify(staging)
        _put(staging, folder)
        _say_doubts(identity["task"], manifest)
    finally:
        for writer in writers.values():
            writer.discard()
        shutil.rmtree(staging, ignore_errors=True)


def _put(staging: Path, folder: Path) -> None:
    """Give a finished cache its name, unless a process on a host that shares no locks with this one was first."""
    try:
        staging.rename(folder)
    except OSError:
        if not (folder / MANIFEST).exists():
            raise


def _say_doubts(task: str, manifest: Manifest) -> None:
    """What a person should know of data that were just prepared, in one line."""
    doubts = [f"{number:,} {what}" for what, number in manifest["doubts"].items() if number]
    if isinstance(manifest["source"], dict) and manifest["source"].get(NUL):
        doubts.append(f"{manifest['source'][NUL]:,} {NUL}")
    if doubts:
        say(f"{task}: doubtful data are kept as they are: {', '.join(doubts)}")


def open_cache(folder: Path, facts: TaskSpec, identity: Identity) -> Task:
    """Map a prepared task, whose files are compared with their SHA-256.

    Raises UserError where one was changed, and where the cache is of another identity than its place says.
    """
    manifest = _manifest(folder)
    _compare(folder, manifest, identity)
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
        raise UserError(f"{folder / MANIFEST}: not that of a prepared task: {error}; delete {folder}") from None


def _compare(folder: Path, manifest: Manifest, identity: Identity) -> None:
    stored = manifest["identity"]
    if digest(stored) != digest(identity):
        keys = sorted(key for key in {*stored, *identity} if stored.get(key, ...) != identity.get(key, ...))
        raise UserError(
            f"{folder / MANIFEST}: prepared from other data or options than its folder is named for (they differ in "
            f"{', '.join(keys)}): folders were exchanged or renamed; delete {folder} and prepare again"
        )


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
        if manifest["schema"] not in (2, SCHEMA):
            raise UserError(f"{folder}: cache of schema {manifest['schema']}, this version reads {SCHEMA}; delete it")
        sha = manifest.pop("sha256", None)
        if sha != (digest(manifest) if manifest["schema"] == SCHEMA else None):
            raise ValueError("its content is not what its SHA-256 says")
        if not isinstance(manifest["identity"], dict):
            raise TypeError("its identity is no mapping")
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}; delete {folder} and prepare again") from None


def _splits(folder: Path, manifest: Manifest, facts: TaskSpec) -> Splits:
    maps: dict[str, dict[str, np.ndarray]] = {}
    for name, entry in manifest["arrays"].items():
        split, array_name = name.split(".")
        maps.setdefault(split, {})[array_name] = _map(folder / f"{name}{ARRAY}", entry)
    splits = {name: _split(name, arrays, facts) for name, arrays in maps.items()}
    if facts.fixed_length:
        _compare_lengths(manifest["identity"]["task"], splits, facts.max_len)
    return {"val": splits["test"], **splits}


def _split(name: str, arrays: dict[str, np.ndarray], facts: TaskSpec) -> Split:
    """A split of the class that the facts ask for; windows overlap in training alone."""
    if facts.objective == "next_token":
        return LMWindows(**arrays, context=facts.max_len, stride=1 if name == "train" else facts.max_len)
    if facts.objective in ("positions", "reconstruct"):
        return PositionLabels(**arrays)
    return Pictures(**arrays) if facts.pictures else Split(**arrays)


def _compare_lengths(task: str, splits: Splits, length: int) -> None:
    """What has no padding by its facts would be read without a mask."""
    for name, split in splits.items():
        lengths = np.diff(split.offsets)
        others = np.flatnonzero(lengths != length)
        if len(others):
            raise UserError(
                f"{task}: fixed_length=True, so every document shall have {length:,} tokens; {name} document "
                f"{others[0]:,} has {lengths[others[0]]:,}, {len(others):,} of {len(lengths):,} differ"
            )


def _map(path: Path, entry: dict[str, Any]) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{path.name} has the type {entry['dtype']!r}, expected one of {', '.join(DTYPES)}")
    expected = entry["size"] * np.dtype(entry["dtype"]).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise UserError(f"{path}: {size} bytes, expected {expected}; delete {path.parent} and prepare again")
    return np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["size"],))


def verify(folder: Path) -> None:
    """Compare every file with the SHA-256 it was written with."""
    manifest = _manifest(folder)
    arrays = {f"{name}{ARRAY}": entry["sha256"] for name, entry in manifest["arrays"].items()}
    for name, expected in {**arrays, **manifest.get("files", {})}.items():
        actual = sha256(folder / name)
        if actual != expected:
            raise UserError(f"{folder / name}: SHA-256 {actual}, expected {expected}; delete {folder}")
