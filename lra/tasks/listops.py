"""ListOps: nested MIN, MAX, MED (median) and SM (sum modulo 10) over digits; the answer is a digit.

    [MAX 4 3 [MIN 2 3 ] 1 0 ]  ->  4

Expressions are made by `listops_trees`, or read from the files of Long Range Arena (Tay et al. 2021).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from lra import streams
from lra.errors import UserError, did_you_mean
from lra.files import write_atomic
from lra.tasks import Builder, Facts, Place, Progress, Split, Task, fingerprints, sources, titled
from lra.tasks.baselines import majority
from lra.tasks.groups import Group, by_value
from lra.tasks.listops_trees import CLOSE, IDS, OPERATORS, WORDS, generate
from lra.tasks.storage import SPLITS, Splits, Writer, prepared

VERSION = 1
VOCABULARY = len(WORDS) + 2

# What makes the data LRA's: only then the task may be called by its published name.
PUBLISHED = {
    "train_size": 96_000,
    "val_size": 2_000,
    "test_size": 2_000,
    "min_length": 500,
    "max_length": 2_000,
    "max_depth": 10,
    "max_args": 10,
}
CHECKED_LABELS = 1_000


class Expressions(Builder):
    """What is known of expressions, wherever they come from."""

    def groups(self, split: Split) -> dict[str, Group]:
        """Also by the operator at the root, and by depth: the levels of the tree, digits included."""
        return {
            "root operator": by_value(_roots(split), lambda root: WORDS[root - 1].removeprefix("[")),
            "depth": by_value(depths(split)),
            **super().groups(split),
        }

    def guesses(self, task: Task) -> np.ndarray:
        """For each root operator its most frequent class in train."""
        return by_root(task.train, task.test)


class ListOps(Expressions):
    """Generated expressions with `min_length` < length < `max_length`, all different, split in order."""

    def __init__(
        self,
        *,
        train_size: PositiveInt,
        val_size: PositiveInt,
        test_size: PositiveInt,
        min_length: PositiveInt,
        max_length: PositiveInt,
        max_depth: PositiveInt,
        max_args: PositiveInt,
        seed: NonNegativeInt,
    ) -> None:
        if max_length - min_length < 2:
            raise UserError(
                f"task.max_length={max_length} must exceed task.min_length={min_length} by at least 2: "
                "both bounds are exclusive"
            )
        for key, value in (("max_depth", max_depth), ("max_args", max_args)):
            if value < 2:
                raise UserError(f"task.{key}={value}: expected at least 2, an operator has two arguments or more")
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        self.bounds = {
            "min_length": min_length,
            "max_length": max_length,
            "max_depth": max_depth,
            "max_args": max_args,
        }
        self.seed = seed

    @property
    def facts(self) -> Facts:
        return _facts(self._name(), self.bounds["max_length"])

    def _name(self) -> str:
        """`listops` for LRA's data; other data say in what they differ."""
        sizes = {f"{split}_size": size for split, size in self.sizes.items()}
        notes = {
            f"length {self.bounds['min_length']}-{self.bounds['max_length']}": ("min_length", "max_length"),
            f"depth {self.bounds['max_depth']}": ("max_depth",),
            f"args {self.bounds['max_args']}": ("max_args",),
            f"{'/'.join(map(str, sizes.values()))} examples": tuple(sizes),
        }
        options = sizes | self.bounds
        own = [note for note, keys in notes.items() if any(options[key] != PUBLISHED[key] for key in keys)]
        return titled("listops", own)

    def build(self, place: Place) -> Task:
        identity = {
            "task": "listops",
            "version": VERSION,
            "sizes": self.sizes,
            **self.bounds,
            "seed": self.seed,
        }

        def make(writers: dict[str, Writer], _: Path) -> str:
            total = sum(self.sizes.values())
            tokens, offsets, labels = generate(
                total, seed=self.seed, workers=place.workers, progress=place.progress, **self.bounds
            )
            check_labels(tokens, offsets, labels, self.seed)
            start = 0
            for split, size in self.sizes.items():
                rows = slice(start, start + size)
                words_here = tokens[offsets[start] : offsets[start + size]]
                writers[split].extend(words_here, np.diff(offsets[start : start + size + 1]), labels[rows])
                start += size
            return "generated"

        return prepared(place, self.facts, identity, make, baselines)

    def export(self, task: Task, folder: Path) -> list[Path]:
        return export(task, folder)


class ListOpsFiles(Expressions):
    """Expressions from a folder of LRA's files basic_{train,val,test}.tsv; every label is recomputed."""

    def __init__(self, *, folder: str, max_length: PositiveInt) -> None:
        self.folder = Path(folder)
        self.max_length = max_length

    @property
    def facts(self) -> Facts:
        return _facts("listops (files)", self.max_length)

    def build(self, place: Place) -> Task:
        paths = {split: self.folder / f"basic_{split}.tsv" for split in SPLITS}
        for path in paths.values():
            if not path.is_file():
                raise UserError(f"{path}: no such file; task.folder must hold basic_train.tsv, _val and _test")
        stamps = fingerprints.stamps(place, list(paths.values()))
        identity = {
            "task": "listops",
            "version": VERSION,
            "max_length": self.max_length,
            "files": {split: stamp["sha256"] for split, stamp in zip(paths, stamps, strict=True)},
        }

        def make(writers: dict[str, Writer], _: Path) -> dict[str, str]:
            for split, path in paths.items():
                for label, tokens in read_tsv(path, self.max_length, place.progress):
                    writers[split].add(label, tokens)
            return fingerprints.confirmed(place, list(paths.values()), stamps)

        task = prepared(place, self.facts, identity, make, baselines)
        sizes = [len(getattr(task, split)) for split in SPLITS]
        official = sizes == [PUBLISHED[f"{split}_size"] for split in SPLITS]
        official = official and self.max_length == PUBLISHED["max_length"]
        return replace(task, name="listops") if official else task


def _facts(name: str, max_length: int) -> Facts:
    return Facts(name=name, version=VERSION, vocab_size=VOCABULARY, max_len=max_length, classes=10, documents=1)


def evaluate(words: Iterable[str]) -> int:
    """The value of an expression given as words without parentheses; independent of the generator.

    Raises ValueError for a word that is none and for a tree that is not balanced.
    """
    stack: list[list] = [["", []]]
    for position, word in enumerate(words, start=1):
        if word.isdigit() and len(word) == 1:
            stack[-1][1].append(int(word))
        elif word in OPERATORS:
            stack.append([word, []])
        elif word == CLOSE:
            if len(stack) == 1:
                raise ValueError(f"unbalanced: a ']' without an operator at word {position}")
            operator, operands = stack.pop()
            if not operands:
                raise ValueError(f"{operator} without arguments before word {position}")
            stack[-1][1].append(_value(operator, operands))
        else:
            raise ValueError(f"unknown word {word!r:.80} at word {position}; {did_you_mean(word[:80], WORDS)}")
    if len(stack) > 1:
        raise ValueError(f"unbalanced: {len(stack) - 1} operators are never closed")
    if len(stack[0][1]) != 1:
        raise ValueError(f"expected one expression, found {len(stack[0][1])}")
    return stack[0][1][0]


def _value(operator: str, operands: list[int]) -> int:
    if operator == "[MIN":
        return min(operands)
    if operator == "[MAX":
        return max(operands)
    if operator == "[SM":
        return sum(operands) % 10
    ordered = sorted(operands)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def words(tokens: np.ndarray) -> list[str]:
    """The words of token ids."""
    return [WORDS[token - 1] for token in tokens]


def check_labels(tokens: np.ndarray, offsets: np.ndarray, labels: np.ndarray, seed: int) -> None:
    """Compare a sample of labels with `evaluate`; a difference is our fault, not the user's."""
    size = min(CHECKED_LABELS, len(labels))
    for row in streams.generator(seed, "check").choice(len(labels), size=size, replace=False):
        expected = evaluate(words(tokens[offsets[row] : offsets[row + 1]]))
        if expected != labels[row]:
            raise AssertionError(f"expression {row}: label {labels[row]}, its value is {expected}")


def baselines(splits: Splits) -> dict[str, float]:
    """Test accuracy (percent) of answers that need no reading: fitted on train, read off on test."""
    train, test = splits["train"], splits["test"]
    return {
        "majority class": majority(train, test),
        "root operator": float(100 * np.mean(test.labels == by_root(train, test))),
    }


def by_root(train: Split, test: Split) -> np.ndarray:
    """For each expression of test [n] the most frequent class of train under its root; 0 for one never seen."""
    pairs = _roots(train) * 10 + train.labels
    counts = np.bincount(pairs, minlength=VOCABULARY * 10).reshape(VOCABULARY, 10)
    return counts.argmax(axis=1)[_roots(test)]


def _roots(split: Split) -> np.ndarray:
    """The first token of each expression [n]."""
    return split.tokens[split.offsets[split.index]].astype(np.int64)


def depths(split: Split) -> np.ndarray:
    """Levels of the tree of each expression [n], digits included: a digit alone has one."""
    steps = np.zeros(VOCABULARY, dtype=np.int8)
    steps[[IDS[word] for word in OPERATORS]] = 1
    steps[IDS[CLOSE]] = -1
    inside = np.cumsum(steps[split.tokens], dtype=np.int32)  # 0 after each expression: all of them are balanced
    return 1 + np.maximum.reduceat(inside, split.offsets[:-1])[split.index]


def read_tsv(path: Path, max_length: int, progress: Progress) -> Iterator[tuple[int, np.ndarray]]:
    """Labels and token ids of a `Source<TAB>Target` file of LRA: parentheses are dropped, every label is recomputed."""
    size, read, number = path.stat().st_size, 0, 0
    for number, (where, raw) in enumerate(sources.lines(path), start=1):
        read += len(raw) + 1
        try:
            line = raw.decode("ascii")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: byte 0x{raw[error.start]:02x} at column {error.start + 1}, expected ASCII"
            ) from None
        fields = line.split("\t")
        if number == 1:
            if fields != ["Source", "Target"]:
                raise UserError(f"{where}: header {fields!s:.80}, expected ['Source', 'Target']")
            continue
        if len(fields) != 2:
            raise UserError(f"{where}: {len(fields)} tab-separated fields, expected 2")
        yield _parse(fields, where, max_length)
        if number % 1000 == 0:
            progress(read, size)
    if number < 2:
        raise UserError(f"{path}: no expressions below the header, expected at least one")
    progress(size, size)


def _parse(fields: list[str], where: str, max_length: int) -> tuple[int, np.ndarray]:
    source, target = fields
    if target not in WORDS[:10]:
        raise UserError(f"{where}: label {target!r:.80}, expected 0 to 9")
    found = source.translate({ord("("): None, ord(")"): None}).split()
    if len(found) > max_length:
        raise UserError(f"{where}: {len(found)} words, expected at most task.max_length={max_length}")
    try:
        value = evaluate(found)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if value != int(target):
        raise UserError(f"{where}: label {target}, but the expression is {value}")
    return value, np.array([IDS[word] for word in found], dtype=np.uint8)


def export(task: Task, folder: Path) -> list[Path]:
    """Write LRA's files basic_{train,val,test}.tsv, left-nested pairs in parentheses."""
    paths = []
    for split in SPLITS:
        data: Split = getattr(task, split)
        lines = ["Source\tTarget"]
        for row, label in enumerate(data.labels):
            lines.append(f"{nested(words(data.document(row)))}\t{label}")
        path = folder / f"basic_{split}.tsv"
        write_atomic(path, ("\r\n".join(lines) + "\r\n").encode("ascii"))
        paths.append(path)
    return paths


def nested(expression: list[str]) -> str:
    """LRA's serialisation: every argument and every close wraps what stands before it in a pair.

    An operator with a arguments is preceded by a + 1 opening parentheses, one for each argument and its close.
    """
    pieces: list[str] = []
    open_at: list[list[int]] = []
    for word in expression:
        if word in OPERATORS:
            open_at.append([len(pieces), 0])
            pieces.append(word)
            continue
        pieces.append(word)
        if word == CLOSE:
            start, arguments = open_at.pop()
            pieces[start] = "( " * (arguments + 1) + pieces[start]
            pieces.append(")")
        if open_at:
            open_at[-1][1] += 1
            pieces.append(")")
    return " ".join(pieces)
