"""Cache of prepared tasks: built once under a lock, in a staging folder that is renamed when it is complete.

A prepared task is a folder of flat little-endian arrays and a `manifest.json` with their types, sizes and SHA-256,
which are compared when the task is opened for the first time and after its files have changed. The folder is named
after a hash of its identity. Digests and counts of files are stored beside the tasks; a stored value holds as long as
path, inode, size and times of its files are unchanged.
"""

import hashlib
import math
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from lra.core import code
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import check_access, denied, digest, read_json, sha256, write_json
from lra.core.paths import __version__
from lra.datasets.splits import LMWindows, Pictures, PositionLabels, contradictions
from lra.datasets.task import DataConfig, Split, Task, TaskSpec

LAYOUT = 3  # of arrays and manifest; part of the folder's name
MANIFEST = "manifest.json"
ARRAY = ".bin"  # the end of a file's name
STORED = "raw"  # folder of stored digests and counts, beside those of the tasks
SPLITS = ("train", "val", "test")
MAX_CLASSES = 2**16  # also of tokens: 16 bits are stored
LOCK_TIMEOUT_SECONDS = 3600
REMEDY = "choose another folder with cache=... or LRA_CACHE"

Splits = dict[str, Any]  # by name, of the class of `Split` that the objective asks for
Identity = dict[str, Any]

Make = Callable[[dict[str, "Writer"], Path], Any]
"""Fills the writers, may add files (a tokenizer) to the staging folder, and returns the source for the record."""


def prepared(
    place: DataConfig,
    spec: TaskSpec,
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
        spec: the specification that the examples are checked against.
        identity: everything that determines the content, as JSON: options, and the SHA-256 of the files that are read.
            `task` names the folder. The source of a user's task and the files that it reads are added.
        make: writes the examples.
        baselines: computed once, from the stored splits.
        validates_on_test: there is no split `val` to write; the test split serves as validation.

    Raises:
        UserError: the data are missing, do not fit the spec, or the cached files were changed.
    """
    builder = getattr(baselines, "__self__", baselines)
    if own := code.fingerprints(make.__module__, baselines.__module__, type(builder).__module__):
        identity = {**identity, "code": own}
    folder = _folder(place, identity)
    check_access(folder, REMEDY)
    if not _is_current(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / f".{folder.name}.lock", timeout=LOCK_TIMEOUT_SECONDS):
                if not _is_current(folder):
                    if folder.exists():
                        say(f"{identity['task']}: an input file has changed; preparing the data again")
                        shutil.rmtree(folder)
                    _build(folder, spec, identity, make, baselines, validates_on_test)
        except Timeout:
            raise UserError(f"{folder}: another process has been preparing this task for an hour") from None
        except OSError as error:
            if isinstance(error, PermissionError) and error.filename:
                raise denied(Path(error.filename), REMEDY) from error
            raise UserError(f"cannot prepare {identity['task']} in {folder.parent}: {error}; {REMEDY}") from error
    return _opened(place, folder, spec)


def _is_current(folder: Path) -> bool:
    """Return True if a task is prepared and the files that a user's task read are as they were."""
    return (folder / MANIFEST).exists() and _changed(_manifest(folder).get("inputs", {})) is None


def is_prepared(place: DataConfig, identity: Identity) -> bool:
    """Return True if `prepared` would find the data in the cache."""
    folder = _folder(place, identity)
    check_access(folder, REMEDY)
    return (folder / MANIFEST).exists()


def _folder(place: DataConfig, identity: Identity) -> Path:
    return place.cache / identity["task"] / digest({"layout": LAYOUT, **identity})[:12]


def _build(
    folder: Path,
    spec: TaskSpec,
    identity: Identity,
    make: Make,
    baselines: Callable[[Splits], dict[str, float]],
    validates_on_test: bool,
) -> None:
    """Write all files into a staging folder and rename it to `folder`; the caller holds the lock."""
    task = identity["task"]
    if max(spec.vocab_size, spec.classes) > MAX_CLASSES:
        raise UserError(f"{task}: {spec.vocab_size:,} tokens, {spec.classes:,} classes; at most {MAX_CLASSES:,}")
    staging = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)  # of a killed process
    staging.mkdir()
    splits = ("train", "test") if validates_on_test else SPLITS
    writers = {split: Writer(staging, split, spec) for split in splits}
    try:
        watched: AbstractContextManager[dict[str, str]]
        watched = _recorded(folder.parent.parent) if "code" in identity else nullcontext({})
        with watched as read:
            source = make(writers, staging)
        files = {path.name: sha256(path) for path in sorted(staging.iterdir()) if path.suffix != ARRAY}
        arrays: dict[str, Any] = {}
        for split, writer in writers.items():
            arrays |= writer.close()
            if len(writer) == 0:
                raise UserError(f"{task}: the {split} split is empty; expected at least one example")
        mapped = _splits(staging, arrays, spec)
        doubts = contradictions({split: mapped[split] for split in splits})
        manifest = {
            "identity": identity,
            "digest": digest({name: entry["sha256"] for name, entry in arrays.items()}),
            "arrays": arrays,
            "files": files,
            "source": source,
            **({"inputs": read} if read else {}),
            "baselines": _finite(task, baselines(mapped)),
            "doubts": doubts,
            "created_by": f"lra {__version__}",
        }
        write_json(staging / MANIFEST, manifest)
        staging.rename(folder)
        if any(doubts.values()):
            listed = ", ".join(f"{what}: {number:,}" for what, number in doubts.items() if number)
            say(f"{task}: doubtful data are kept: {listed}")
    finally:
        for writer in writers.values():
            writer.discard()
        shutil.rmtree(staging, ignore_errors=True)


def _finite(task: str, values: dict[str, float]) -> dict[str, float]:
    """Leave out and print the baselines that are NaN or infinite."""
    for name, value in values.items():
        if not math.isfinite(value):
            say(f"{task}: the baseline {name!r} is {value}; it is left out")
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def stored(place: DataConfig, files: list[Path], what: str, compute: Callable[[], Any]) -> Any:
    """Return the JSON value `what` of these files; it is computed once until one of them changes."""
    try:
        status = {str(path.absolute()): path.stat() for path in files}
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    state = {name: [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in status.items()}
    memo = place.cache / STORED / f"{digest([what, state])[:16]}.json"
    with suppress(PermissionError):  # of a colleague's cache, which `prepared` refuses
        if memo.exists():
            return read_json(memo)
    value = compute()
    with suppress(UserError):  # a cache folder that is read-only
        write_json(memo, value)
    return value


def _opened(place: DataConfig, folder: Path, spec: TaskSpec) -> Task:
    """Map a prepared task into memory, and compare every file with the SHA-256 in its manifest."""
    manifest = _manifest(folder)
    expected = {f"{name}{ARRAY}": entry["sha256"] for name, entry in manifest["arrays"].items()} | manifest["files"]
    paths = [folder / name for name in expected]
    actual = stored(place, paths, "sha256", lambda: {path.name: sha256(path) for path in paths})
    for name, sha in expected.items():
        if actual[name] != sha:
            raise UserError(f"{folder / name}: SHA-256 {actual[name]}, expected {sha}; delete {folder}")
    return Task(
        **vars(spec),
        **splits_of(folder, spec),
        baselines=manifest["baselines"],
        digest=manifest["digest"],
        folder=folder,
        source=manifest["source"],
    )


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST}: damaged: {error}; delete {folder} and prepare again") from None


def splits_of(folder: Path, spec: TaskSpec) -> Splits:
    """Map the arrays of a prepared task without comparing their SHA-256."""
    return _splits(folder, _manifest(folder)["arrays"], spec)


def _splits(folder: Path, entries: dict[str, dict[str, Any]], spec: TaskSpec) -> Splits:
    """Map the arrays of all splits; without a split `val` the test split takes its place."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, entry in entries.items():
        split, array = name.split(".")
        path = folder / f"{name}{ARRAY}"
        arrays.setdefault(split, {})[array] = np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["size"],))
    splits = {name: _split(name, arrays[name], spec) for name in arrays}
    return {"val": splits["test"], **splits}


def _split(name: str, arrays: dict[str, np.ndarray], spec: TaskSpec) -> Split:
    """Construct a split of the class that the specification asks for; only training windows overlap."""
    if spec.objective == "next_token":
        return LMWindows(**arrays, context=spec.max_len, stride=1 if name == "train" else spec.max_len)
    if spec.objective in ("positions", "reconstruct"):
        return PositionLabels(**arrays)
    return Pictures(**arrays) if spec.pictures else Split(**arrays)


class Writer:
    """Writer of the arrays of one split; memory holds offsets, labels and a digest per document.

    A document that occurs again in the split is stored once and referenced. Methods raise UserError for tokens, labels
    and lengths outside of the task's spec.
    """

    def __init__(self, folder: Path, split: str, spec: TaskSpec) -> None:
        self.split = split
        self._folder, self._spec = folder, spec
        self._dtype = np.dtype("u1" if spec.pictures or spec.vocab_size <= 256 else "<u2")
        shift = Pictures.shift if spec.pictures else 0
        self._shortest = spec.max_len if spec.fixed_length else 0
        self._tokens = (1 - shift if spec.objective != "next_token" else 0, spec.vocab_size - 1 - shift)
        self._file = open(folder / f"{split}.tokens{ARRAY}", "wb")  # noqa: SIM115
        self._sha = hashlib.sha256()
        self._offsets, self._index, self._labels = array("q", [0]), array("i"), array("H")
        self._ends, self._places = array("q", [0]), array("i")  # of the answers, where examples have several
        self._known = array("i")  # attributes of generated examples
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, label: int, *documents: np.ndarray) -> None:
        """Write one example: its label and its documents' token ids."""
        if self._spec.objective == "classify":
            self._check_within("label", np.array([label]), 0, self._spec.classes - 1)
        for document in documents:
            data = self._bytes(document, [len(document)])
            name = hashlib.blake2b(data, digest_size=16).digest()
            row = self._seen.setdefault(name, len(self._seen))
            if row == len(self._offsets) - 1:
                self._append(data, [len(document)])
            self._index.append(row)
        self._labels.append(label)

    def extend(
        self, tokens: np.ndarray, lengths: np.ndarray, labels: np.ndarray, attributes: np.ndarray | None = None
    ) -> None:
        """Write many examples of one document each, without looking for duplicates.

        Args:
            tokens: of all documents, one after the other.
            lengths: [n].
            labels: [n].
            attributes: [n, p], or None.
        """
        self._check_within("label", labels, 0, self._spec.classes - 1)
        first = len(self._offsets) - 1
        self._append(self._bytes(tokens, lengths), lengths)
        self._index.extend(range(first, first + len(labels)))
        self._labels.extend(labels.tolist())
        if attributes is not None:
            self._known.frombytes(attributes.astype(np.int32).tobytes())

    def mark(self, tokens: np.ndarray, answers: np.ndarray) -> None:
        """Write examples of one document and one length each.

        Args:
            tokens: [n, L].
            answers: [n, L]; negative where there is none.
        """
        rows, places = np.nonzero(answers >= 0)
        self._check_within("answer", answers, -1, self._spec.classes - 1)
        self._index.extend(range(len(self._index), len(self._index) + len(tokens)))
        lengths = np.full(len(tokens), tokens.shape[1])
        self._append(self._bytes(tokens, lengths), lengths)
        self._labels.frombytes(answers[rows, places].astype(np.uint16).tobytes())
        self._places.frombytes(places.astype(np.int32).tobytes())
        self._ends.extend((self._ends[-1] + np.cumsum(np.bincount(rows, minlength=len(tokens)))).tolist())

    def _bytes(self, tokens: np.ndarray, lengths: Any) -> bytes:
        """Check tokens, and return them as they are stored."""
        self._check_within("token", tokens, *self._tokens)
        if self._spec.objective != "next_token":
            self._check_within("length", lengths, self._shortest, self._spec.max_len)
        return np.ascontiguousarray(tokens, dtype=self._dtype).tobytes()

    def _check_within(self, what: str, values: Any, least: int, most: int) -> None:
        values = np.asarray(values)
        if values.size and not least <= values.min() <= values.max() <= most:
            other = values[(values < least) | (values > most)][0]
            raise UserError(
                f"{self._spec.name}: {self.split} has the {what} {other}, expected {least} to {most} by the task's "
                f"spec (vocab_size={self._spec.vocab_size}, classes={self._spec.classes}, "
                f"max_len={self._spec.max_len})"
            )

    def _append(self, data: bytes, lengths: Any) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._offsets.extend((self._offsets[-1] + np.cumsum(lengths)).tolist())

    def discard(self) -> None:
        """Close the file without finishing it; a no-op after `close`."""
        with suppress(OSError):  # buffered data may not fit on the disk, and is not needed
            self._file.close()

    def close(self) -> dict[str, dict[str, Any]]:
        """Finish the files, and return their entries for the manifest."""
        self._file.close()
        tokens = {"dtype": self._dtype.str, "size": self._offsets[-1], "sha256": self._sha.hexdigest()}
        arrays = {"offsets": ("<i8", self._offsets), "index": ("<i4", self._index), "labels": ("<u2", self._labels)}
        entries = {f"{self.split}.tokens": tokens}
        if self._places:
            arrays |= {"ends": ("<i8", self._ends), "places": ("<i4", self._places)}
        if self._known:
            arrays |= {"known": ("<i4", self._known)}
        for name, (dtype, values) in arrays.items():
            data = np.asarray(values).astype(dtype).tobytes()
            (self._folder / f"{self.split}.{name}{ARRAY}").write_bytes(data)
            sha = hashlib.sha256(data).hexdigest()
            entries[f"{self.split}.{name}"] = {"dtype": dtype, "size": len(values), "sha256": sha}
        return entries


# ---------------------------------------------------------------- files that a user's task reads

_listeners: list[set[str]] = []  # of the preparations under way


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners and isinstance(arguments[0], str):
        _listeners[-1].add(os.path.abspath(arguments[0]))


@contextmanager
def _recorded(cache_folder: Path) -> Iterator[dict[str, str]]:
    """Fill a dictionary with the SHA-256 of each file that this process opens inside, by absolute path.

    Python's own files, modules and files below `cache_folder` are left out. Files opened by other processes
    or by libraries without Python's `open` are not recorded.
    """
    if not hasattr(_listen, "installed"):  # a hook stays until the process ends
        sys.addaudithook(_listen)
        _listen.installed = True  # type: ignore[attr-defined]
    inputs: dict[str, str] = {}
    _listeners.append(set())
    try:
        yield inputs
    finally:
        paths = [Path(name) for name in sorted(_listeners.pop())]
    elsewhere = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", cache_folder.absolute())
    for path in paths:
        if (
            path.is_file()
            and path.suffix not in (".py", ".pyc")
            and not any(path.is_relative_to(each) for each in elsewhere)
        ):
            inputs[str(path)] = sha256(path)


def _changed(inputs: dict[str, str]) -> str | None:
    """Return the first file whose content is no longer the recorded one; a file that is gone has not changed."""
    return next((name for name, sha in inputs.items() if Path(name).is_file() and sha256(Path(name)) != sha), None)
