"""Reader and writer of Long Range Arena's ListOps files, with an evaluator independent of the generator."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lra.core.errors import UserError, did_you_mean
from lra.core.files import write_atomic
from lra.data import readers
from lra.data.cache import SPLITS
from lra.tasks import Progress, Split, Task
from lra.tasks.listops.trees import CLOSE, IDS, OPERATORS, WORDS


def evaluate(words: Iterable[str]) -> int:
    """Return the value of an expression given as words without parentheses.

    Raises:
        ValueError: a word is unknown, or the tree is not balanced.
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
    """Return the words of token ids."""
    return [WORDS[token - 1] for token in tokens]


def read_tsv(path: Path, max_length: int, progress: Progress) -> Iterator[tuple[int, np.ndarray]]:
    """Yield labels and token ids of a `Source<TAB>Target` file of LRA; parentheses are dropped, labels recomputed."""
    size, read, number = path.stat().st_size, 0, 0
    for number, (where, raw) in enumerate(readers.lines(path), start=1):
        read += len(raw) + 1
        fields = readers.decoded(where, raw, "ASCII").split("\t")
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


def rows(path: Path) -> int:
    """Number of expressions in a file of LRA, whose first line is a header."""
    return readers.count(path) - 1


def _parse(fields: list[str], where: str, max_length: int) -> tuple[int, np.ndarray]:
    source, target = fields
    if target not in WORDS[:10]:
        raise UserError(f"{where}: label {target!r:.80}, expected 0 to 9")
    expression = source.translate({ord("("): None, ord(")"): None}).split()
    if len(expression) > max_length:
        raise UserError(f"{where}: {len(expression)} words, expected at most task.max_length={max_length}")
    try:
        value = evaluate(expression)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if value != int(target):
        raise UserError(f"{where}: label {target}, but the expression is {value}")
    return value, np.array([IDS[word] for word in expression], dtype=np.uint8)


def export(task: Task, folder: Path) -> list[Path]:
    """Write LRA's files basic_{train,val,test}.tsv, left-nested pairs in parentheses, and return their paths."""
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
    """Serialise as LRA: every argument and every close wraps the words before it in a pair.

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
