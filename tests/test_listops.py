"""ListOps: the generator against a recursion, the labels against an evaluator, the files against a serialisation."""

import hashlib
import random
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from support import builder_of, data_config, refuses

from lra.core.errors import UserError
from lra.tasks import Split, Task, no_op_progress
from lra.tasks._listops_trees import WORDS, generate
from lra.tasks.listops import ListOps, ListOpsFiles, by_start, with_parentheses

SMALL = {"min_length": 7, "max_length": 43, "max_depth": 4, "max_args": 5}
LRA = {"min_length": 500, "max_length": 2000, "max_depth": 10, "max_args": 10}


def words(tokens: np.ndarray) -> list[str]:
    return [WORDS[token - 1] for token in tokens]


def evaluate(row: list[str]) -> int:
    """The value of an expression by a stack: the reference. A median of 1.5 is 1."""
    stack: list[list] = [["", []]]
    for word in row:
        if word.isdigit():
            stack[-1][1].append(int(word))
        elif word == "]":
            operator, operands = stack.pop()
            functions = {"[MIN": min, "[MAX": max, "[SM": lambda values: sum(values) % 10}
            functions["[MED"] = lambda values: int(statistics.median(values))
            stack[-1][1].append(functions[operator](operands))
        else:
            stack.append([word, []])
    [[_, [value]]] = stack
    return value


def made(total: int, seed: int, **bounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, offsets and labels of expressions, small ones unless bounds are given."""
    return generate(total, **bounds or SMALL, seed=seed, workers=1, progress=no_op_progress)


def rows_of(tokens: np.ndarray, offsets: np.ndarray) -> list[list[str]]:
    return [words(tokens[start:stop]) for start, stop in pairwise(offsets)]


def small(**changes: int) -> ListOps:
    sizes = {"train_size": 211, "val_size": 53, "test_size": 67, "seed": 5}
    return builder_of("listops", **{**sizes, **SMALL, **changes})


@pytest.fixture(scope="module")
def lra_sample() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return made(5_000, 3, **LRA)


# ---------------------------------------------------------------- generation


def test_labels_bounds_and_distinctness() -> None:
    tokens, offsets, labels = made(3_001, 1)
    rows = rows_of(tokens, offsets)
    assert len(rows) == len(labels) == 3_001
    assert len({tuple(row) for row in rows}) == 3_001
    for row, label in zip(rows, labels, strict=True):
        assert 7 < len(row) < 43
        assert evaluate(row) == label
        assert depth(row) <= 4
        assert all(2 <= count <= 5 for count in argument_counts(row))


def depth(row: list[str]) -> int:
    """Depth of the deepest node; an operator is one deeper than what it stands in, a digit too."""
    level = deepest = 0
    for word in row:
        level += word.startswith("[")
        deepest = max(deepest, level + (word.isdigit()))
        level -= word == "]"
    return deepest


def argument_counts(row: list[str]) -> list[int]:
    counts, stack = [], [0]
    for word in row:
        if word.startswith("["):
            stack.append(0)
            continue
        if word == "]":
            counts.append(stack.pop())
        stack[-1] += 1
    return counts


def recursive(rng: random.Random, at: int, max_depth: int, max_args: int) -> list[str]:
    """LRA's distribution by plain recursion: the reference."""
    if at >= max_depth or rng.random() > 0.25:
        return [str(rng.randrange(10))]
    arguments = [recursive(rng, at + 1, max_depth, max_args) for _ in range(rng.randint(2, max_args))]
    operator = rng.choice(["[MIN", "[MAX", "[MED", "[SM"])
    return [operator, *[word for argument in arguments for word in argument], "]"]


def test_has_the_distribution_of_the_recursion() -> None:
    rng = random.Random(1)
    reference: set[tuple[str, ...]] = set()
    while len(reference) < 4_000:
        row = recursive(rng, 1, 4, 5)
        if 7 < len(row) < 43:
            reference.add(tuple(row))
    rows = rows_of(*made(4_000, 2)[:2])
    measures = {"length": len, "depth": depth, "operators": lambda row: len(argument_counts(row))}
    measures |= {word: lambda row, word=word: row.count(word) for word in WORDS}
    for name, measure in measures.items():
        ours, theirs = [measure(row) for row in rows], [measure(row) for row in reference]
        error = (statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)) ** 0.5
        assert abs(statistics.fmean(ours) - statistics.fmean(theirs)) < 4 * error, name


def test_full_length_data_are_as_measured_on_lra(lra_sample: tuple[np.ndarray, ...]) -> None:
    """Figures of an independent sample of 72,000 trees of LRA's recursion: mean 1,039, median 960, class shares."""
    _, offsets, labels = lra_sample
    lengths = np.diff(offsets)
    error = lengths.std() * (1 / len(lengths) + 1 / 72_000) ** 0.5
    assert abs(lengths.mean() - 1_039) < 4 * error
    assert abs(np.median(lengths) - 960) < 6 * error
    shares = np.bincount(labels, minlength=10) / len(labels)
    error = (0.17 * 0.83 * (1 / len(labels) + 1 / 72_000)) ** 0.5
    assert abs(shares[[0, 9]] - 0.17).max() < 4 * error
    assert shares[1:9].min() > 0.065
    assert shares[1:9].max() < 0.095


def test_trivial_baselines_of_full_length_data(lra_sample: tuple[np.ndarray, ...]) -> None:
    """Majority class about 17 %, root operator alone 36.0 to 36.4 %, both measured independently."""
    tokens, offsets, labels = lra_sample
    index = np.arange(2_500)
    train = Split(tokens=tokens, offsets=offsets, index=index, labels=labels[:2_500])
    test = Split(tokens=tokens, offsets=offsets, index=index + 2_500, labels=labels[2_500:])
    baselines = small().baselines({"train": train, "test": test})
    error = 100 * (0.36 * 0.64 / 2_500) ** 0.5
    assert abs(baselines["majority class"] - 17.0) < 4 * error
    assert abs(baselines["root operator"] - 36.2) < 4 * error


def expressions(rows: list[tuple[str, int]]) -> Split:
    tokens = [[WORDS.index(word) + 1 for word in row.split()] for row, _ in rows]
    return Split(
        tokens=np.array([token for row in tokens for token in row], dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, tokens)]),
        index=np.arange(len(tokens)),
        labels=np.array([label for _, label in rows], dtype=np.uint8),
    )


def test_baselines_by_hand() -> None:
    starts = [("[MIN 1 2 ]", 1), ("[MIN 1 3 ]", 1), ("[MAX 9 2 ]", 9), ("[MAX 1 2 ]", 2), ("[MAX 9 9 ]", 9)]
    train = expressions(starts)
    test = expressions([("[MIN 1 5 ]", 1), ("[MAX 9 1 ]", 9), ("[MAX 3 1 ]", 3), ("[SM 1 0 ]", 1), ("[MAX 1 2 5 ]", 2)])
    # The majority class of train is 1 (a tie with 9, the smaller wins); MIN -> 1, MAX -> 9, SM was never seen.
    # After [MAX 1 2 comes 2; [MIN 1 5, [MAX 9 1 and [MAX 3 1 were never seen: as [MIN 1, [MAX 9 and [MAX.
    expected = {"majority class": 40.0, "root operator": 40.0, "first three tokens": 60.0}
    assert small().baselines({"train": train, "test": test}) == pytest.approx(expected)


def test_the_end_of_an_expression_is_a_token_of_its_start() -> None:
    """A lone digit differs from a digit that more tokens follow."""
    train = expressions([("3", 3), ("3", 3), ("[MIN 1 2 ]", 1)])
    assert by_start(train, expressions([("3", 3), ("[MIN 1 ]", 1), ("4", 4)]), 3).tolist() == [3, 1, 0]


def test_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    """The data need two chunks of candidates."""
    sizes = {"train_size": 5_007, "val_size": 303, "test_size": 299}
    serial, parallel = (small(**sizes).build(data_config(tmp_path / str(n), workers=n)) for n in (1, 2))
    assert serial.digest == parallel.digest


def test_a_worker_of_joblib_generates_with_processes_of_its_own() -> None:
    [there] = Parallel(n_jobs=2)([delayed(generate)(6000, **SMALL, seed=3, workers=2, progress=no_op_progress)])
    here = generate(6000, **SMALL, seed=3, workers=1, progress=no_op_progress)
    assert np.array_equal(there[2], here[2])


def test_the_bytes_of_a_seed_are_known() -> None:
    """The same on every machine; a change of this digest is a new version of the task."""
    tokens, offsets, labels = made(500, 11)
    parts = (tokens, offsets.astype("<i8"), labels)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    assert digest == "2e2ffe1c2d45d1cc05e43e1c585112e5f6a6d9194854f9804a2ec53715de52b0"


def test_more_expressions_than_exist_are_refused() -> None:
    bounds = {"min_length": 3, "max_length": 5, "max_depth": 2, "max_args": 2}
    with pytest.raises(UserError, match="only 400 of 401 different expressions"):
        made(401, 1, **bounds)


# ---------------------------------------------------------------- task


def test_only_lra_data_are_called_listops() -> None:
    published = {"train_size": 96_000, "val_size": 2_000, "test_size": 2_000, "seed": 9, **LRA}
    assert ListOps(**published).spec.name == "listops"
    assert ListOps(**published | {"max_args": 7}).spec.name == "listops (args 7)"
    assert small().spec.name == "listops (length 7-43, depth 4, args 5, 211/53/67 examples)"


def test_splits_follow_each_other_and_are_read_back(tmp_path: Path) -> None:
    task = small().build(data_config(tmp_path))
    tokens, offsets, labels = made(331, 5)
    assert [len(task.train), len(task.val), len(task.test)] == [211, 53, 67]
    np.testing.assert_array_equal(np.concatenate([task.train.tokens, task.val.tokens, task.test.tokens]), tokens)
    np.testing.assert_array_equal(np.concatenate([task.train.labels, task.val.labels, task.test.labels]), labels)
    row = task.val.pad(np.array([0, 52]), 43)
    assert words(row[0][row[0] > 0]) == words(tokens[offsets[211] : offsets[212]])
    assert words(row[1][row[1] > 0]) == words(tokens[offsets[263] : offsets[264]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 8}, "task.max_length=8 must exceed task.min_length=7"),
        ({"max_args": 1}, "task.max_args=1: "),
        ({"max_depth": 1}, "task.max_depth=1: "),
    ],
)
def test_impossible_bounds_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**change)


# ---------------------------------------------------------------- LRA's files


GOOD = "Source\tTarget\r\n( ( ( [MAX 4 ) 3 ) ] )\t4\r\n"


def nested(row: list[str]) -> str:
    """An expression as LRA serialises it: nested pairs of operator and arguments from the left, the close last."""
    stack: list[list[str]] = [[]]
    for word in row:
        if word.startswith("["):
            stack.append([word])
        elif word == "]":
            tree, *rest = [*stack.pop(), "]"]
            for item in rest:
                tree = f"( {tree} {item} )"
            stack[-1].append(tree)
        else:
            stack[-1].append(word)
    return stack[0][0]


def write_release(folder: Path, task: Task) -> None:
    folder.mkdir()
    for split in ("train", "val", "test"):
        data = getattr(task, split)
        rows = [f"{nested(words(data.document(row)))}\t{label}" for row, label in enumerate(data.labels)]
        (folder / f"basic_{split}.tsv").write_bytes("\r\n".join(["Source\tTarget", *rows, ""]).encode())


def test_parentheses_are_those_of_the_generator() -> None:
    assert with_parentheses(["[MAX", "4", "3", "]"]) == "( ( ( [MAX 4 ) 3 ) ] )"
    for row in rows_of(*made(50, 3)[:2]):
        assert with_parentheses(row) == nested(row)


def test_files_of_the_release_are_read(tmp_path: Path) -> None:
    task = small().build(data_config(tmp_path / "cache"))
    write_release(tmp_path / "files", task)
    again = ListOpsFiles(folder=str(tmp_path / "files"), max_length=43).build(data_config(tmp_path / "cache"))
    assert (again.name, again.source["rows"]["val"]) == ("listops (length 43)", 53)
    assert again.digest == task.digest
    assert again.baselines == task.baselines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"source\ttarget\n", "basic_val.tsv:1: label 'target', expected 0 to 9"),
        (b"Source\tTarget\n", "the val split is empty"),
        (GOOD.encode() + b"[MOX 1 2 ]\t2\n", r"basic_val.tsv:3: '\[MOX 1 2 \]', expected the words"),
        (GOOD.encode() + b"[MAX 1 2 ]\t10\n", "basic_val.tsv:3: label '10', expected 0 to 9"),
        (GOOD.encode() + b"\t2\n", "basic_val.tsv:3: '', expected the words"),
        (GOOD.encode() + b"[MAX " + b"1 " * 99 + b"]\t1\n", "val has the length 101, expected 0 to 100"),
        (None, "basic_val.tsv: No such file"),
    ],
)
def test_bad_files_are_refused_and_nothing_is_cached(tmp_path: Path, text: bytes | None, message: str) -> None:
    for split in ("train", "val", "test"):
        (tmp_path / f"basic_{split}.tsv").write_bytes(GOOD.encode())
    (tmp_path / "basic_val.tsv").unlink()
    if text is not None:
        (tmp_path / "basic_val.tsv").write_bytes(text)
    refuses(ListOpsFiles(folder=str(tmp_path), max_length=100), data_config(tmp_path / "cache"), message)


def test_a_script_without_a_guard_can_prepare_with_workers(tmp_path: Path) -> None:
    """Workers do not run the script again; that would wait for the lock that the script holds."""
    (tmp_path / "script.py").write_text(
        "from lra.datasets.builder import in_order\nprint('once', flush=True)\n"
        "print([*in_order(divmod, ((n, 3) for n in range(6)), workers=2)])\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"once\n{[divmod(n, 3) for n in range(6)]}\n", done.stderr


@pytest.mark.parametrize("text", ["5 6", "[MAX 1 2", "] 3", "[MAX [MIN 2 ] 3 ] 4"])
def test_an_export_keeps_all_words_of_malformed_expressions(text: str) -> None:
    assert [word for word in with_parentheses(text.split()).split() if word not in "()"] == text.split()
