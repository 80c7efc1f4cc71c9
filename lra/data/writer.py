"""Writer of the arrays of a split while its examples are read."""

import hashlib
import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import UserError
from lra.data import TaskSpec
from lra.data.splits import Pictures

ARRAY = ".bin"  # the end of a file's name


class Writer:
    """Streams the examples of one split to disk; memory holds offsets, labels and a digest per document.

    A document that occurs again in the split is stored once and referenced. Methods raise UserError for tokens, labels
    and lengths outside of the task's facts.
    """

    def __init__(self, folder: Path, split: str, facts: TaskSpec) -> None:
        self.split = split
        self._folder, self._facts = folder, facts
        self._dtype = np.dtype("u1" if facts.pictures or facts.vocab_size <= 256 else "<u2")
        shift = Pictures.shift if facts.pictures else 0
        self._shortest = facts.max_len if facts.fixed_length else 0
        self._tokens = (1 - shift if facts.objective != "next_token" else 0, facts.vocab_size - 1 - shift)
        self._file = open(folder / f"{split}.tokens{ARRAY}", "wb")  # noqa: SIM115
        self._sha = hashlib.sha256()
        self._offsets, self._index, self._labels = array("q", [0]), array("i"), array("H")
        self._ends, self._places = array("q", [0]), array("i")  # of the answers, where examples have several
        self._known = array("i")  # of the examples besides, where they were made here
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, label: int, *documents: np.ndarray) -> None:
        """Write one example: its label and its documents' token ids."""
        if self._facts.objective == "classify":
            self._check_within("label", np.array([label]), 0, self._facts.classes - 1)
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
        self._check_within("label", labels, 0, self._facts.classes - 1)
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
        self._check_within("answer", answers, -1, self._facts.classes - 1)
        self._index.extend(range(len(self._index), len(self._index) + len(tokens)))
        lengths = np.full(len(tokens), tokens.shape[1])
        self._append(self._bytes(tokens, lengths), lengths)
        self._labels.frombytes(answers[rows, places].astype(np.uint16).tobytes())
        self._places.frombytes(places.astype(np.int32).tobytes())
        self._ends.extend((self._ends[-1] + np.cumsum(np.bincount(rows, minlength=len(tokens)))).tolist())

    def _bytes(self, tokens: np.ndarray, lengths: Any) -> bytes:
        """Check tokens, and return them as they are stored."""
        self._check_within("token", tokens, *self._tokens)
        if self._facts.objective != "next_token":
            self._check_within("length", lengths, self._shortest, self._facts.max_len)
        return np.ascontiguousarray(tokens, dtype=self._dtype).tobytes()

    def _check_within(self, what: str, values: Any, least: int, most: int) -> None:
        values = np.asarray(values)
        if values.size and not least <= values.min() <= values.max() <= most:
            other = values[(values < least) | (values > most)][0]
            raise UserError(
                f"{self._facts.name}: {self.split} has the {what} {other}, expected {least} to {most} by the task's "
                f"facts (vocab_size={self._facts.vocab_size}, classes={self._facts.classes}, "
                f"max_len={self._facts.max_len})"
            )

    def _append(self, data: bytes, lengths: Any) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._offsets.extend((self._offsets[-1] + np.cumsum(lengths)).tolist())

    def discard(self) -> None:
        """Close the file without finishing it; a no-op after `close`."""
        with suppress(OSError):  # what is still to be written does not fit, or is not wanted
            self._file.close()

    def close(self) -> dict[str, dict[str, Any]]:
        """Finish the files, and return their entries for the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
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
            with open(self._folder / f"{self.split}.{name}{ARRAY}", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            sha = hashlib.sha256(data).hexdigest()
            entries[f"{self.split}.{name}"] = {"dtype": dtype, "size": len(values), "sha256": sha}
        return entries
