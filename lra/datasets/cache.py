"""Prepare each task once and cache it: build it under a lock, in a staging folder that is renamed when it is complete.

A prepared task is a folder of `.npy` files and a `manifest.json` with the SHA-256 of each file. The SHA-256 are checked
when the task is first opened, and again after its files have changed. The folder is named after a hash of everything
that determines the data. The SHA-256 and other summaries of files are stored next to the tasks; a stored value is valid
as long as path, inode, size and times of its files are unchanged.
"""

import hashlib
import math
import os
import shutil
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.core import code
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import check_access, denied, digest, read_json, sha256, write_json
from lra.core.paths import __version__
from lra.datasets.splits import LMWindows, Pictures, PositionLabels, contradictions
from lra.datasets.task import DataConfig, Split, Task, TaskSpec

if TYPE_CHECKING:
    from lra.datasets.builder import TaskBuilder

LAYOUT = 4  # version of the file format of arrays and manifest; it is part of the hash in the folder's name
MANIFEST = "manifest.json"
ARRAY = ".npy"
STORED = "raw"  # name of the folder that holds the values of `stored`, next to the folders of the tasks
SPLITS = ("train", "val", "test")
MAX_CLASSES = 2**16  # maximum number of classes, and of token ids, since labels and tokens are stored as uint16
LOCK_TIMEOUT_SECONDS = 3600
REMEDY = "choose another folder with cache=... or LRA_CACHE"
# Former names of arrays; digests still use them, so that digests equal those in the records of old runs.
IN_DIGESTS = {"positions": "places", "attributes": "known"}

Splits = dict[str, Any]  # splits by name; the task's spec determines the subclass of `Split`
Identity = dict[str, Any]  # JSON values that determine the data of a task


def prepared(builder: "TaskBuilder") -> Task:
    """Return a prepared task; build it first if the cache does not have it.

    If several processes need the task, one builds it and the others wait for its lock. The operating system releases
    the lock when that process ends, even if it was killed.

    Raises:
        UserError: the data are missing or do not fit the spec, the cache cannot be read or written, another process
            holds the lock for too long, or a cached file was changed.
    """
    from filelock import FileLock, Timeout  # here, because the import takes 15 ms, and --help prepares nothing

    identity = identity_of(builder)
    folder = _folder(builder, identity)
    if not (folder / MANIFEST).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / f".{folder.name}.lock", timeout=LOCK_TIMEOUT_SECONDS):
                # Check again: another process may have built the task while this one waited for the lock.
                if not (folder / MANIFEST).exists():
                    _build(builder, folder, identity)
        except Timeout:
            raise UserError(f"{folder}: another process has been preparing this task for an hour") from None
        except OSError as error:
            if isinstance(error, PermissionError) and error.filename:
                raise denied(Path(error.filename), REMEDY) from error
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}; {REMEDY}") from error
    return _opened(builder, folder)


def identity_of(builder: "TaskBuilder") -> Identity:
    """Return what determines the data: options, versions, and SHA-256 of raw files and of code outside of lra."""
    own = code.fingerprints(type(builder).__module__)  # {} for a task of lra, which has a version instead
    return {"layout": LAYOUT, **builder.identity(), "raw": raw_sha256(builder), **({"code": own} if own else {})}


def raw_sha256(builder: "TaskBuilder") -> dict[str, str]:
    """Return the SHA-256 of each raw file, by its path relative to the common folder of the files."""
    files = builder.files()
    if not files:
        return {}
    above = os.path.commonpath([path.absolute().parent for path in files])
    names = [os.path.relpath(path, above) for path in files]  # relative, so that the folder may be moved
    return stored(builder.config, files, "sha256", lambda: dict(zip(names, map(sha256, files), strict=True)))


def is_prepared(builder: "TaskBuilder") -> bool:
    """Return True if the cache has the data of the task."""
    return (_folder(builder, identity_of(builder)) / MANIFEST).exists()


def _folder(builder: "TaskBuilder", identity: Identity) -> Path:
    folder = builder.config.cache / identity["task"] / digest(identity)[:12]  # 48 bits, enough for one task's data sets
    check_access(folder, REMEDY)
    return folder


def _build(builder: "TaskBuilder", folder: Path, identity: Identity) -> None:
    """Write all files into a staging folder, and rename the complete folder to `folder`; the caller holds the lock."""
    task, spec = identity["task"], builder.spec
    if max(spec.vocab_size, spec.classes) > MAX_CLASSES:
        raise UserError(
            f"{task}: {spec.vocab_size:,} tokens, {spec.classes:,} classes; expected at most {MAX_CLASSES:,} of each"
        )
    staging = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)  # a killed process may have left this folder
    staging.mkdir()
    splits = ("train", "test") if builder.validates_on_test else SPLITS
    writers = {split: Writer(staging, split, spec) for split in splits}
    try:
        source = builder.write(writers, staging)
        for split, writer in writers.items():
            writer.close()
            if len(writer) == 0:
                raise UserError(f"{task}: the {split} split is empty; expected at least one example")
        mapped = splits_of(staging, spec)
        doubts = contradictions({split: mapped[split] for split in splits})
        baselines = {name: float(score) for name, score in builder.baselines(mapped).items()}
        if not all(map(math.isfinite, baselines.values())):
            raise UserError(f"{task}: baselines {baselines}, expected finite numbers")
        values = {}  # SHA-256 of the values of each array, which do not depend on the file format
        for path in staging.glob(f"*{ARRAY}"):
            split, name = path.stem.split(".")
            values[f"{split}.{IN_DIGESTS.get(name, name)}"] = hashlib.sha256(np.load(path, mmap_mode="r")).hexdigest()
        manifest = {
            "identity": identity,
            "digest": digest(values),
            "files": {path.name: sha256(path) for path in sorted(staging.iterdir())},
            "source": source,
            "baselines": baselines,
            "doubts": doubts,
            "created_by": f"lra {__version__}",
        }
        write_json(staging / MANIFEST, manifest)
        staging.rename(folder)  # atomic, so a folder with a manifest is always complete
        if any(doubts.values()):
            listed = ", ".join(f"{what}: {number:,}" for what, number in doubts.items() if number)
            say(f"{task}: the data contain doubtful examples, which are kept: {listed}")
    finally:
        for writer in writers.values():
            writer.discard()
        shutil.rmtree(staging, ignore_errors=True)


def stored(config: DataConfig, files: list[Path], what: str, compute: Callable[[], Any]) -> Any:
    """Return the JSON value named `what` of these files; compute and store it if none is stored or a file changed."""
    try:
        status = {str(path.absolute()): path.stat() for path in files}
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    state = {name: [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in status.items()}
    # ctime is compared, too, because `cp -p` can replace a file by another one with equal size and mtime.
    memo = config.cache / STORED / f"{digest([what, state])[:16]}.json"
    # If another user's cache is unreadable, compute the value; `prepared` reports the error.
    with suppress(PermissionError):
        if memo.exists():
            return read_json(memo)
    value = compute()
    with suppress(UserError):  # if the cache is read-only, the value is not stored
        write_json(memo, value)
    return value


def _opened(builder: "TaskBuilder", folder: Path) -> Task:
    """Return a prepared task with memory-mapped arrays; raise UserError if a file's SHA-256 is not the manifest's."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST}: damaged: {error}; delete {folder} and prepare again") from None
    paths = [folder / name for name in manifest["files"]]
    actual = stored(builder.config, paths, "sha256", lambda: {path.name: sha256(path) for path in paths})
    for name, expected in manifest["files"].items():
        if actual[name] != expected:
            raise UserError(f"{folder / name}: SHA-256 {actual[name]}, expected {expected}; delete {folder}")
    spec = builder.spec
    return Task(
        **vars(spec),
        **splits_of(folder, spec),
        baselines=manifest["baselines"],
        digest=manifest["digest"],
        folder=folder,
        source=manifest["source"],
    )


def splits_of(folder: Path, spec: TaskSpec) -> Splits:
    """Return all splits by name, with memory-mapped arrays; if the task has no split `val`, `val` is the test split."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for path in folder.glob(f"*{ARRAY}"):
        split, name = path.stem.split(".")
        # `asarray` returns a plain array on the same memory, because indexing a memmap is slower.
        arrays.setdefault(split, {})[name] = np.asarray(np.load(path, mmap_mode="r"))
    splits: Splits = {}
    for name, found in arrays.items():
        if spec.objective == "next_token":
            # Windows overlap only in train, so that no token of val and test is predicted twice.
            splits[name] = LMWindows(**found, context=spec.max_len, stride=1 if name == "train" else spec.max_len)
        elif spec.objective in ("positions", "reconstruct"):
            splits[name] = PositionLabels(**found)
        else:
            splits[name] = Pictures(**found) if spec.pictures else Split(**found)
    return {"val": splits["test"], **splits}


class Writer:
    """Writer of the arrays of one split; tokens go to the disk, all other arrays stay in memory until `close`.

    `add` stores equal documents of the split only once. If the spec has `pictures`, tokens are given as grey values.
    Methods raise UserError for tokens, labels and lengths outside of the bounds in the task's spec.
    """

    def __init__(self, folder: Path, split: str, spec: TaskSpec) -> None:
        self.split = split
        self._folder, self._spec = folder, spec
        # Pictures are stored as grey values 0 to 255, which fit into a byte although there are 257 token ids.
        # "<": little-endian on every machine, so that equal data have equal digests.
        self._dtype = np.dtype("u1" if spec.pictures or spec.vocab_size <= 256 else "<u2")
        shift = Pictures.shift if spec.pictures else 0
        self._shortest = spec.max_len if spec.fixed_length else 0
        # Minimum and maximum stored token. Windows for next-token prediction have no padding, so the id 0 is allowed.
        self._tokens = (1 - shift if spec.objective != "next_token" else 0, spec.vocab_size - 1 - shift)
        self._file = open(folder / f"{split}.tokens{ARRAY}", "wb")  # noqa: SIM115
        # `array` grows in place and needs 2 to 8 bytes per number; a list of int needs 36.
        self._offsets, self._index, self._labels = array("q", [0]), array("i"), array("H")
        self._write_header()  # reserves the bytes of the final header
        self._ends, self._positions = array("q", [0]), array("i")  # filled by `mark`
        self._attributes = array("i")  # filled by `extend`
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, label: int, *documents: np.ndarray) -> None:
        """Write one example: its label, and the token ids [L] of each of its documents."""
        if self._spec.objective == "classify":
            self._check_within("label", np.array([label]), 0, self._spec.classes - 1)
        for document in documents:
            data = self._bytes(document, [len(document)])
            # Keep digests only, because the documents of a split may not fit into memory.
            name = hashlib.blake2b(data, digest_size=16).digest()
            row = self._seen.setdefault(name, len(self._seen))
            if row == len(self._offsets) - 1:  # a new document
                self._append(data, [len(document)])
            self._index.append(row)
        self._labels.append(label)

    def extend(
        self, tokens: np.ndarray, lengths: np.ndarray, labels: np.ndarray, attributes: np.ndarray | None = None
    ) -> None:
        """Write n examples of one document each, without a search for duplicates.

        Args:
            tokens: concatenated tokens of all documents.
            lengths: lengths of the documents [n].
            labels: labels [n].
            attributes: p attributes of each example [n, p], or None.
        """
        self._check_within("label", labels, 0, self._spec.classes - 1)
        first = len(self._offsets) - 1
        self._append(self._bytes(tokens, lengths), lengths)
        self._index.extend(range(first, first + len(labels)))
        self._labels.extend(labels.tolist())
        if attributes is not None:
            self._attributes.frombytes(attributes.astype(np.int32).tobytes())

    def mark(self, tokens: np.ndarray, answers: np.ndarray) -> None:
        """Write n examples, each with one document of L tokens and with answers at some of its positions.

        Args:
            tokens: token ids [n, L].
            answers: answers [n, L], -1 at positions without an answer.
        """
        rows, positions = np.nonzero(answers >= 0)  # [m] both, sorted by example, then by position
        self._check_within("answer", answers, -1, self._spec.classes - 1)
        self._index.extend(range(len(self._index), len(self._index) + len(tokens)))
        lengths = np.full(len(tokens), tokens.shape[1])  # [n]
        self._append(self._bytes(tokens, lengths), lengths)
        self._labels.frombytes(answers[rows, positions].astype(np.uint16).tobytes())
        self._positions.frombytes(positions.astype(np.int32).tobytes())
        self._ends.extend((self._ends[-1] + np.cumsum(np.bincount(rows, minlength=len(tokens)))).tolist())

    def _bytes(self, tokens: np.ndarray, lengths: Any) -> bytes:
        """Return the tokens as bytes of the stored dtype; raise UserError if a token or length is out of bounds."""
        self._check_within("token", tokens, *self._tokens)
        if self._spec.objective != "next_token":
            self._check_within("length", lengths, self._shortest, self._spec.max_len)
        return np.ascontiguousarray(tokens, dtype=self._dtype).tobytes()

    def _check_within(self, what: str, values: Any, lowest: int, highest: int) -> None:
        values = np.asarray(values)
        if values.size and not lowest <= values.min() <= values.max() <= highest:
            other = values[(values < lowest) | (values > highest)][0]
            raise UserError(
                f"{self._spec.name}: {self.split} has the {what} {other}, expected {lowest} to {highest} by the task's "
                f"spec (vocab_size={self._spec.vocab_size}, classes={self._spec.classes}, "
                f"max_len={self._spec.max_len})"
            )

    def _append(self, data: bytes, lengths: Any) -> None:
        self._file.write(data)
        self._offsets.extend((self._offsets[-1] + np.cumsum(lengths)).tolist())

    def discard(self) -> None:
        """Close the file without finishing it; a no-op after `close`."""
        with suppress(OSError):  # closing fails if the buffered data do not fit on the disk, but they are not needed
            self._file.close()

    def close(self) -> None:
        """Write the final header of the tokens file, and write all other arrays."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        arrays = {"offsets": ("<i8", self._offsets), "index": ("<i4", self._index), "labels": ("<u2", self._labels)}
        if self._positions:
            arrays |= {"ends": ("<i8", self._ends), "positions": ("<i4", self._positions)}
        if self._attributes:
            arrays |= {"attributes": ("<i4", self._attributes)}
        for name, (dtype, values) in arrays.items():
            np.save(self._folder / f"{self.split}.{name}{ARRAY}", np.asarray(values).astype(dtype))

    def _write_header(self) -> None:
        """Write the header of the tokens file; NumPy pads it to a fixed size, so `close` can overwrite it."""
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._offsets[-1],)}
        np.lib.format.write_array_header_1_0(self._file, header)
