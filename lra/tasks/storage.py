"""The cache of prepared tasks: built once, in a staging folder, under a lock, then renamed.

A prepared task is a folder of flat little-endian arrays and a `manifest.json` with their types, sizes and
SHA-256, and one of itself; all are compared whenever the task is opened. The folder's name is a hash of its identity:
everything that decides its content, the SHA-256 of raw data included. So neither two configurations nor two data sets
share one, and the identity in the manifest is compared, too.
"""

import hashlib
import os
import platform
import secrets
import shutil
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lra import __version__, locks
from lra.console import say
from lra.errors import UserError
from lra.files import digest, read_json, write_json
from lra.tasks import Facts, Place, Split, Task, Windows
from lra.tasks.doubts import contradictions
from lra.tasks.sources import sha256

LAYOUT = 2  # of the arrays; a part of the folder's name
SCHEMA = 3  # of the manifest; 2 had no SHA-256 of its own, nor of other files than arrays
MANIFEST = "manifest.json"
ARRAY = ".bin"
DTYPES = ("|u1", "<u2", "<i4", "<i8")
SPLITS = ("train", "val", "test")
LOCK_PATIENCE_SECONDS = 3600

NUL = "texts with a NUL byte"  # a key of the source, with their number

Splits = dict[str, Split]
Manifest = dict[str, Any]
Identity = dict[str, Any]


class Writer:
    """Streams the examples of one split to disk; memory holds offsets, labels and a digest per document.

    A document that was seen before in the split is stored once and referred to.
    """

    def __init__(self, folder: Path, split: str, dtype: np.dtype) -> None:
        self.split = split
        self._folder, self._dtype = folder, np.dtype(dtype).newbyteorder("<")
        self._file = open(folder / f"{split}.tokens{ARRAY}", "wb")  # noqa: SIM115
        self._sha = hashlib.sha256()
        self._offsets, self._index, self._labels = array("q", [0]), array("i"), array("H")
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, label: int, *documents: np.ndarray) -> None:
        """One example: its label and its documents' token ids."""
        for document in documents:
            data = np.ascontiguousarray(document, dtype=self._dtype).tobytes()
            name = hashlib.blake2b(data, digest_size=16).digest()
            row = self._seen.setdefault(name, len(self._seen))
            if row == len(self._offsets) - 1:
                self._append(data, [len(document)])
            self._index.append(row)
        self._labels.append(label)

    def extend(self, tokens: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> None:
        """Many examples of one document each, known to be different."""
        first = len(self._offsets) - 1
        self._append(np.ascontiguousarray(tokens, dtype=self._dtype).tobytes(), lengths)
        self._index.extend(range(first, first + len(labels)))
        self._labels.extend(labels.tolist())

    def _append(self, data: bytes, lengths: Any) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._offsets.extend((self._offsets[-1] + np.cumsum(lengths)).tolist())

    def discard(self) -> None:
        """Let go of the file; after `close` there is nothing to do."""
        with suppress(OSError):  # what is still to be written does not fit, or is not wanted
            self._file.close()

    def close(self) -> dict[str, dict[str, Any]]:
        """Finish the files; returns their entries for the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        tokens = {"dtype": self._dtype.str, "size": self._offsets[-1], "sha256": self._sha.hexdigest()}
        arrays = {"offsets": ("<i8", self._offsets), "index": ("<i4", self._index), "labels": ("<u2", self._labels)}
        entries = {f"{self.split}.tokens": tokens}
        for name, (dtype, values) in arrays.items():
            data = np.asarray(values).astype(dtype).tobytes()
            with open(self._folder / f"{self.split}.{name}{ARRAY}", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            sha = hashlib.sha256(data).hexdigest()
            entries[f"{self.split}.{name}"] = {"dtype": dtype, "size": len(values), "sha256": sha}
        return entries


Make = Callable[[dict[str, Writer], Path], Any]
"""Fills the writers, may put other files (a tokenizer) into the staging folder, returns the source."""


def prepared(
    place: Place,
    facts: Facts,
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
    name = digest({"schema": LAYOUT, **identity})[:12]
    folder = place.cache / identity["task"] / name
    if place.data_dir is None and identity.get("raw", ...) is None and not (folder / MANIFEST).exists():
        folder, identity = _without_raw_data(folder, identity)
    if not (folder / MANIFEST).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locks.hold(folder.parent / f".{name}.lock", LOCK_PATIENCE_SECONDS):
                if not (folder / MANIFEST).exists():
                    _build(folder, facts, identity, make, baselines, validates_on_test)
        except locks.Held as other:
            raise UserError(f"{folder}: {other} has been preparing this task for an hour") from None
        except OSError as error:
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}") from error
    return open_cache(folder, facts, identity)


def _without_raw_data(folder: Path, identity: Identity) -> tuple[Path, Identity]:
    """The cache of the same options and any raw data, and its identity; those given where there is none.

    Raises UserError where caches of different data have these options: only the raw data could tell which is meant.
    """
    manifests = {path.parent: _manifest(path.parent) for path in sorted(folder.parent.glob(f"[!.]*/{MANIFEST}"))}
    same = {path: manifest for path, manifest in manifests.items() if {**manifest["identity"], "raw": None} == identity}
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
    facts: Facts,
    identity: Identity,
    make: Make,
    baselines: Callable[[Splits], dict[str, float]],
    validates_on_test: bool,
) -> None:
    host = platform.node()
    others = "*" if locks.of_one_host(folder.parent) is None else f"{host}.*"  # whose end this host can know of
    for left_over in folder.parent.glob(f".{folder.name}.{others}.tmp"):
        shutil.rmtree(left_over)
    staging = folder.parent / f".{folder.name}.{host}.{secrets.token_hex(8)}.tmp"
    staging.mkdir()
    dtype = np.uint8 if facts.vocab_size <= 256 else np.uint16
    splits = ("train", "test") if validates_on_test else SPLITS
    writers = {split: Writer(staging, split, dtype) for split in splits}
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


def open_cache(folder: Path, facts: Facts, identity: Identity) -> Task:
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


def _splits(folder: Path, manifest: Manifest, facts: Facts) -> Splits:
    maps: dict[str, dict[str, np.ndarray]] = {}
    for name, entry in manifest["arrays"].items():
        split, array_name = name.split(".")
        maps.setdefault(split, {})[array_name] = _map(folder / f"{name}{ARRAY}", entry)
    if facts.objective == "next_token":
        strides = {split: 1 if split == "train" else facts.max_len for split in maps}
        splits = {split: Windows(**maps[split], context=facts.max_len, stride=strides[split]) for split in maps}
    else:
        splits = {split: Split(**arrays) for split, arrays in maps.items()}
    return {"val": splits["test"], **splits}


def _map(path: Path, entry: dict[str, Any]) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{path.name} has the type {entry['dtype']!r}, expected one of {', '.join(DTYPES)}")
    expected = entry["size"] * np.dtype(entry["dtype"]).itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != expected:
        raise UserError(f"{path}: {found} bytes, expected {expected}; delete {path.parent} and prepare again")
    return np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["size"],))


def verify(folder: Path) -> None:
    """Compare every file with the SHA-256 it was written with."""
    manifest = _manifest(folder)
    arrays = {f"{name}{ARRAY}": entry["sha256"] for name, entry in manifest["arrays"].items()}
    for name, expected in {**arrays, **manifest.get("files", {})}.items():
        found = sha256(folder / name)
        if found != expected:
            raise UserError(f"{folder / name}: SHA-256 {found}, expected {expected}; delete {folder}")
