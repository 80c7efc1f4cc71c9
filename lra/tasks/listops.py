"""ListOps: nested MIN, MAX, MED (median) and SM (sum modulo 10) over digits; the answer is a digit.

    [MAX 4 3 [MIN 2 3 ] 1 0 ]  ->  4

Source:
    Long Range Arena (Tay et al. 2021), after Nangia and Bowman 2018.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from lra.core.errors import UserError
from lra.datasets import readers
from lra.datasets.baselines import majority
from lra.datasets.builder import GENERATED, FromSource, Generated, Source, TaskBuilder, of_splits
from lra.datasets.cache import SPLITS, Identity, Splits, Writer
from lra.datasets.groups import Group, by_value
from lra.tasks import Split, Task, TaskSpec, titled
from lra.tasks._listops_trees import CLOSE, IDS, OPERATORS, WORDS, generate

VERSION = 2  # version 1 had the same expressions, but no baseline on the first three tokens
VOCABULARY = len(WORDS) + 2  # with padding and LRA's id of unknown words, which does not occur

# Options of LRA; with other options the task's name lists the differences.
PUBLISHED = {
    "train_size": 96_000,
    "val_size": 2_000,
    "test_size": 2_000,
    "min_length": 500,
    "max_length": 2_000,
    "max_depth": 10,
    "max_args": 10,
}


class Expressions(TaskBuilder):
    """Base class of the tasks with ListOps expressions, generated or from files."""

    def groups(self, split: Split) -> dict[str, Group]:
        return {
            "root operator": by_value(_starts(split, 1), lambda root: WORDS[root - 1].removeprefix("[")),
            "depth": by_value(depths(split)),
            **super().groups(split),
        }

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        """Return the token ids of an expression such as `[MAX 2 [MIN 4 7 ] 0 ]`; parentheses are ignored."""
        return _ids_of(text, "expression").astype(np.uint16)

    def decode(self, ids: np.ndarray, tokenizer: Path) -> str:
        return " ".join(WORDS[number - 1] for number in ids.tolist())

    def export(self, task: Task, folder: Path) -> None:
        """Write basic_{train,val,test}.tsv as Long Range Arena's generator does (lra_benchmarks/data/listops.py)."""
        for split in SPLITS:
            examples: Split = getattr(task, split)
            # LRA writes with `csv.writer`, whose line end is \r\n.
            with open(folder / f"basic_{split}.tsv", "w", encoding="ascii", newline="\r\n") as file:
                file.write("Source\tTarget\n")
                for row, ids in enumerate(examples.stored(examples.index)):
                    file.write(f"{with_parentheses([WORDS[i - 1] for i in ids.tolist()])}\t{examples.labels[row]}\n")

    def baseline_predictions(self, task: Task) -> np.ndarray:
        """Return, for each test expression [n], the most frequent class of train expressions with the same root."""
        return by_start(task.train, task.test, 1)

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class, overall and given the first one or three tokens."""
        train, test = splits["train"], splits["test"]
        starts = {"root operator": 1, "first three tokens": 3}
        return {"majority class": majority(train, test)} | {
            name: float(100 * np.mean(test.labels == by_start(train, test, count))) for name, count in starts.items()
        }


@dataclass(kw_only=True)
class ListOps(Generated, Expressions):
    """Builder of a task of distinct generated expressions: the first go to train, the next to val, the last to test.

    The task's name in results is `title`, followed by the options that differ from `standard`.

    Args:
        min_length: exclusive lower bound of the length in tokens.
        max_length: exclusive upper bound of the length in tokens.
        max_depth: maximum number of levels of the tree.
        max_args: maximum number of arguments of an operator.
    """

    name = title = "listops"
    standard: ClassVar[dict[str, int]] = PUBLISHED

    min_length: PositiveInt
    max_length: PositiveInt
    # Every expression has an operator, with two or more arguments.
    max_depth: Annotated[int, Field(ge=2)]
    max_args: Annotated[int, Field(ge=2)]

    def __post_init__(self) -> None:
        if self.max_length - self.min_length < 2:
            raise UserError(
                f"task.max_length={self.max_length} must exceed task.min_length={self.min_length} by at least 2: "
                "both bounds are exclusive"
            )

    @property
    def spec(self) -> TaskSpec:
        keys_of = {
            f"length {self.min_length}-{self.max_length}": ("min_length", "max_length"),
            f"depth {self.max_depth}": ("max_depth",),
            f"args {self.max_args}": ("max_args",),
            f"{'/'.join(map(str, self.sizes.values()))} examples": ("train_size", "val_size", "test_size"),
        }
        notes = {note: any(getattr(self, key) != self.standard[key] for key in keys) for note, keys in keys_of.items()}
        return _spec_of(titled(self.title, notes), self.max_length)

    def write(self, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        total, config, bounds = sum(self.sizes.values()), self.config, self.example_options
        tokens, offsets, labels = generate(
            total, seed=self.seed, workers=config.workers, progress=config.progress, **bounds
        )
        start = 0
        for split, size in self.sizes.items():
            stop = start + size
            lengths = np.diff(offsets[start : stop + 1])
            writers[split].extend(tokens[offsets[start] : offsets[stop]], lengths, labels[start:stop])
            start = stop
        return {"from": GENERATED}


class ListOpsShort(ListOps):
    """Builder of a task with expressions that are short and shallow enough for small models."""

    title = "listops_short"
    standard: ClassVar = {
        "train_size": 20_000,
        "val_size": 1_000,
        "test_size": 2_000,
        "min_length": 10,
        "max_length": 50,
        "max_depth": 4,
        "max_args": 6,
    }


@dataclass(kw_only=True)
class ListOpsFiles(Expressions, FromSource):
    """Builder of a task with the expressions in LRA's files basic_{train,val,test}.tsv.

    Args:
        folder: path of the folder, relative to the working directory or to the data folder, or absolute.
        max_length: maximum number of tokens of an expression.
    """

    name = "listops"

    folder: str
    max_length: PositiveInt

    @property
    def spec(self) -> TaskSpec:
        note = f"length {self.max_length}"
        return _spec_of(titled(self.name, {note: self.max_length != PUBLISHED["max_length"]}), self.max_length)

    def identity(self) -> Identity:
        return {"task": self.name, "version": VERSION, "max_length": self.max_length}

    def find(self) -> Source:
        folder = self.located(self.folder, "folder")
        return of_splits(str(folder), {split: folder / f"basic_{split}.tsv" for split in SPLITS}, _read)

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        for split, examples in source.read().items():
            for label, tokens in examples:
                writers[split].add(label, tokens)
        return {"rows": {split: len(writer) for split, writer in writers.items()}}


def _ids_of(text: str, where: str) -> np.ndarray:
    """Return the token ids [L] of an expression, whose parentheses are ignored; `where` is named in errors."""
    words = text.replace("(", " ").replace(")", " ").split()
    if not words or not IDS.keys() >= {*words}:
        raise UserError(f"{where}: {text!r:.80}, expected the words {' '.join(IDS)}")
    return np.array([IDS[word] for word in words], dtype=np.uint8)


def with_parentheses(words: list[str]) -> str:
    """Return an expression as Long Range Arena writes it: `( ( ( [MAX 4 ) 3 ) ] )` for `[MAX 4 3 ]`.

    In this notation an operator takes its arguments and the closing bracket one at a time, each in a new pair of
    parentheses.
    """
    closed: list[str] = []  # expressions without an operator around them: one, unless the words are no expression
    open_: list[str] = []  # the operators that are not closed yet, each with its arguments so far
    for word in words:
        if word in OPERATORS:
            open_.append(word)
            continue
        # A closed expression is, like a digit, an argument of the operator around it; the root has none around it.
        argument = f"( {open_.pop()} {word} )" if word == CLOSE and open_ else word
        if open_:
            open_[-1] = f"( {open_[-1]} {argument} )"
        else:
            closed.append(argument)
    return " ".join([*closed, *open_])


def _read(path: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (label, token ids) of each expression in a file of LRA; the first line, `Source<TAB>Target`, is skipped."""
    for number, (where, line) in enumerate(readers.lines(path)):
        source, _, target = line.decode(errors="backslashreplace").partition("\t")
        if number == 0 and (source, target) == ("Source", "Target"):
            continue
        if target not in {*"0123456789"}:
            raise UserError(f"{where}: label {target!r:.80}, expected 0 to 9")
        yield int(target), _ids_of(source, where)


def _spec_of(name: str, max_length: int) -> TaskSpec:
    return TaskSpec(name=name, version=VERSION, vocab_size=VOCABULARY, max_len=max_length, classes=10)


def by_start(train: Split, test: Split, count: int) -> np.ndarray:
    """Return, for each test expression [n], the most frequent class of train expressions with the same first tokens.

    The first `count` tokens are compared, or fewer if no expression of train begins with them. If none has the same
    root, the class is 0.
    """
    train_starts = _starts(train, count)
    counts = np.bincount(train_starts * 10 + train.labels, minlength=10 * VOCABULARY**count).reshape(-1, 10)
    test_starts = _starts(test, count)
    answers = counts.argmax(axis=1)[test_starts]
    if count > 1:
        unseen = counts.sum(axis=1)[test_starts] == 0
        answers[unseen] = by_start(train, test, count - 1)[unseen]
    return answers


def _starts(split: Split, count: int) -> np.ndarray:
    """Return one number per expression [n] that encodes its first `count` tokens; tokens beyond its end are 0."""
    indices = split.offsets[split.index][:, None] + np.arange(count)  # [n, count]
    inside = indices < split.offsets[split.index + 1][:, None]
    tokens = np.where(inside, split.tokens[np.minimum(indices, len(split.tokens) - 1)], 0).astype(np.int64)
    return tokens @ VOCABULARY ** np.arange(count)  # [n]: the tokens as digits in base VOCABULARY


def depths(split: Split) -> np.ndarray:
    """Return the number of levels [n] of each expression's tree; a single digit has one level."""
    steps = np.zeros(VOCABULARY, dtype=np.int8)
    steps[[IDS[word] for word in OPERATORS]] = 1
    steps[IDS[CLOSE]] = -1
    # [total]: number of open operators after each token; 0 after each expression, because all brackets are balanced.
    inside = np.cumsum(steps[split.tokens], dtype=np.int32)
    return 1 + np.maximum.reduceat(inside, split.offsets[:-1])[split.index]
