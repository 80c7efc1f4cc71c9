"""The cache of prepared data: built once, complete or absent, refused if damaged."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import data_config, spec

from lra.core.errors import UserError
from lra.datasets.cache import MANIFEST, Writer
from lra.datasets.splits import LMWindows, seen
from lra.tasks import Task, TaskBuilder, TaskSpec

Make = Callable[[dict[str, Writer], Path], Any]


@dataclass
class Stub(TaskBuilder):
    """Examples that `make` writes."""

    make: Make
    number: Any
    kind: dict[str, Any]
    scores: dict[str, Any] | None = None
    validates_on_test: bool = False
    paths: list[Path] = field(default_factory=list)

    @property
    def spec(self) -> TaskSpec:
        return spec(**self.kind)

    def identity(self) -> dict[str, Any]:
        return {"task": "stub", "number": self.number}

    def write(self, writers: dict[str, Writer], folder: Path) -> Any:
        return self.make(writers, folder)

    def files(self) -> list[Path]:
        return self.paths

    def baselines(self, splits: dict[str, Any]) -> dict[str, Any]:
        return {"one": len(splits["train"])} if self.scores is None else self.scores


def stored(cache: Path, make: Make, *, number: Any = None, **kind: Any) -> Task:
    """The task `stub`, whose examples `make` writes."""
    return Stub(make, number, kind).build(data_config(cache))


def build(cache: Path, log: Path, examples: int = 5) -> Task:
    def make(writers: dict[str, Writer], staging: Path) -> str:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        for split, count in (("train", examples), ("val", 3), ("test", 2)):
            for number in range(count):
                writers[split].add(number, np.arange(3 * number + 1, 3 * number + 4))
        return "made up"

    return stored(cache, make, number=examples)


def test_a_task_is_prepared_once_and_memory_mapped(tmp_path: Path) -> None:
    first, second = build(tmp_path, tmp_path / "log"), build(tmp_path, tmp_path / "log")
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert isinstance(second.train.tokens.base, np.memmap)
    assert (first.digest, second.best_baseline) == (second.digest, ("one", 5.0))
    np.testing.assert_array_equal(second.train.pad(np.array([4, 0]), 5), [[13, 14, 15, 0, 0], [1, 2, 3, 0, 0]])
    other = build(tmp_path, tmp_path / "log", 3)
    assert (first.folder == other.folder, first.digest == other.digest) == (False, False)


@pytest.mark.parametrize(
    ("label", "tokens", "kind", "message"),
    [
        (5, [1], {}, "label 5, expected 0 to 4"),
        (0, [3, 17], {}, "token 17, expected 1 to 16"),
        (0, [3, 0], {}, "token 0, expected 1 to 16"),
        (0, [16, -1], {"pictures": True}, "token 16, expected 0 to 15"),
        (0, [3, 17], {"objective": "next_token"}, "token 17, expected 0 to 16"),
        (0, [1] * 12, {}, "length 12, expected 0 to 11"),
        (0, [1] * 3, {"fixed_length": True, "max_len": 2}, "length 3, expected 2 to 2"),
    ],
)
def test_examples_outside_the_spec_are_refused(
    tmp_path: Path, label: int, tokens: list[int], kind: dict[str, Any], message: str
) -> None:
    def make(writers: dict[str, Writer], staging: Path) -> None:
        writers["train"].add(4, np.array([1, 16 - bool(kind)]))
        writers["val"].add(label, np.array(tokens))

    with pytest.raises(UserError, match=f"stub: val has the {message} by the task's spec"):
        stored(tmp_path, make, **kind)


def test_data_are_prepared_again_when_a_named_file_changes(tmp_path: Path) -> None:
    """They are not prepared again when it is written again with the same content."""
    raw = tmp_path / "raw.txt"

    def make(writers: dict[str, Writer], folder: Path) -> str:
        for writer in writers.values():
            writer.add(0, np.array([int(word) for word in raw.read_text().split()]))
        return "made up"

    def digest(text: str) -> str:
        raw.write_text(text)
        return Stub(make, 0, {}, paths=[raw]).build(data_config(tmp_path / "cache")).digest

    first, changed, same = digest("1 2"), digest("1 3"), digest("1 2")
    assert (first == same, first == changed) == (True, False)
    assert len(list((tmp_path / "cache" / "stub").glob("*/manifest.json"))) == 2


# ---------------------------------------------------------------- several builders, and killed ones


def test_parallel_jobs_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=build, args=(tmp_path, tmp_path / "log")) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0, 0, 0]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_killed_builder_is_taken_over(tmp_path: Path) -> None:
    """Its lock ends with it, and the next builder deletes its files."""
    context = multiprocessing.get_context("fork")
    started = context.Event()

    def stall(writers: dict[str, Writer], staging: Path) -> str:
        writers["train"].add(0, np.array([1]))
        started.set()
        time.sleep(60)
        return "never"

    job = context.Process(target=stored, args=(tmp_path, stall), kwargs={"number": 5})
    job.start()
    assert started.wait(30)
    job.kill()
    job.join()
    assert list((tmp_path / "stub").glob(".*.tmp"))
    assert len(build(tmp_path, tmp_path / "log").train) == 5
    assert not list((tmp_path / "stub").glob(".*.tmp"))


def test_a_failing_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stub: the train split is empty"):
        build(tmp_path, tmp_path / "log", examples=0)
    assert not [path for path in (tmp_path / "stub").iterdir() if not path.name.endswith(".lock")]


@pytest.mark.parametrize("name", ["val.labels.npy", "test.tokens.npy", MANIFEST])
def test_a_damaged_cache_is_refused(tmp_path: Path, name: str) -> None:
    """The error is one line, and nothing is built in its place."""
    path = build(tmp_path, tmp_path / "log").folder / name
    path.write_bytes(path.read_bytes()[:-4] + b"\xff")
    with pytest.raises(UserError, match=f"{name}: .*; delete {path.parent}") as error:
        build(tmp_path, tmp_path / "log")
    assert "\n" not in error.value.args[0]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


# ---------------------------------------------------------------- splits


def test_a_document_is_stored_once(tmp_path: Path) -> None:
    def make(writers: dict[str, Writer], staging: Path) -> str:
        a, b, c = np.array([3, 1]), np.array([2]), np.array([], dtype=int)
        for split in ("train", "test"):
            writers[split].add(1, a, b)
            writers[split].add(0, b, c)
            writers[split].add(1, c, a)
        return "made up"

    task = Stub(make, 0, {"documents": 2}, validates_on_test=True).build(data_config(tmp_path))
    assert task.train.tokens.tolist() == [3, 1, 2]
    expected = [[0, 0, 0], [3, 1, 0], [3, 1, 0], [2, 0, 0], [2, 0, 0], [0, 0, 0]]
    assert task.train.pad(np.array([2, 0, 1]), 3).tolist() == expected
    assert task.train.lengths(np.array([0, 1])).tolist() == [[2, 1], [1, 0]]
    assert task.train.document(1, 0).tolist() == [2]
    assert task.validates_on_test


def test_windows_of_a_stream() -> None:
    tokens = np.arange(10, 21)
    kept = {"tokens": tokens, "offsets": np.array([0, 4, 11]), "index": np.array([0, 1]), "labels": np.zeros(2)}
    every, apart = (LMWindows(**kept, context=3, stride=stride) for stride in (1, 3))
    assert (len(every), len(apart)) == (8, 3)
    assert every.pad(np.array([0, 7]), 3).tolist() == [[10, 11, 12], [17, 18, 19]]
    assert every.targets(np.array([0, 7])).tolist() == [[11, 12, 13], [18, 19, 20]]
    assert apart.pad(np.arange(3), 3).ravel().tolist() == list(range(10, 19))
    assert apart.targets(np.arange(3)).ravel().tolist() == list(range(11, 20))
    assert [len(LMWindows(**kept, context=context, stride=1)) for context in (10, 11)] == [1, 0]


# ---------------------------------------------------------------- data that contradict themselves


def test_contradictions_are_counted_and_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """Pairs of documents of one letter."""
    rows = [
        ("train", 0, "a", "b"), ("train", 1, "c", "d"), ("train", 0, "c", "d"), ("train", 1, "e", "e"),
        ("val", 1, "b", "a"), ("test", 1, "a", "b"), ("test", 1, "f", "f"), ("test", 1, "f", "f"),
        ("test", 0, "d", "c"),
    ]  # fmt: skip

    def make(writers: dict[str, Writer], staging: Path) -> str:
        for split, label, *texts in rows:
            writers[split].add(label, *(np.array([ord(text) - 96]) for text in texts))
        return "made up"

    task = stored(tmp_path, make, documents=2)
    doubts = {
        "examples in more than one split": 1,
        "examples with more than one label": 2,
        "pairs of a document and itself": 3,
    }
    assert json.loads((task.folder / MANIFEST).read_text())["doubts"] == doubts
    [line] = capfd.readouterr().err.splitlines()
    assert all(f"{what}: {number}" in line for what, number in doubts.items())
    assert stored(tmp_path, make, documents=2).digest == task.digest
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("length", [2, 5])
def test_the_share_of_the_test_that_is_in_train(tmp_path: Path, length: int) -> None:
    """Words in three letters, against sets of tuples; a label is no part of an example."""
    rng = np.random.default_rng(7)
    words = {split: rng.integers(1, 4, (size, length)) for split, size in (("train", 29), ("val", 1), ("test", 23))}

    def make(writers: dict[str, Writer], staging: Path) -> str:
        for split, rows in words.items():
            for row in rows:
                writers[split].add(int(split == "test"), row)
        return "made up"

    task = stored(tmp_path, make)
    known = {tuple(row) for row in words["train"].tolist()}
    count = sum(tuple(row) in known for row in words["test"].tolist())
    assert count > 0
    assert seen(task.train, task.test) == 100 * count / 23
