"""What may be bold in a table, and what predictions add."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reports import change, files_of, page_of
from scipy.special import stdtr

from lra.core.errors import UserError
from lra.records.run_files import RunFiles
from lra.report.columns import sections
from lra.report.published import Published
from lra.report.records import CellKey, RecordedCell
from lra.report.statistics import hochberg
from lra.report.table import Column

NOWHERE = RunFiles(Path(__file__).parent)


def column_of(scores: dict[str, Sequence[float]], declared: int = 5, metric: str = "accuracy", **more: float) -> Column:
    """A column of complete cells from scores by seed, with trivial baselines."""
    return table_of({"stub": scores}, declared, metric, **more)[0]


def table_of(
    tasks: dict[str, dict[str, Sequence[float]]], declared: int = 5, metric: str = "accuracy", **more: float
) -> list[Column]:
    """The columns of a table, by task."""

    def cell(task: str, name: str, values: Sequence[float]) -> RecordedCell:
        run = {"status": "finished", "selection": "last", "baselines": more, "config": {}}
        runs = {
            seed: {
                **run,
                "seed": seed,
                "path": f"{name}{seed}/record.json",
                "test": {"last": {metric: value, "step": 1, "correct": round(20 * value), "examples": 2000}},
            }
            for seed, value in enumerate(values, start=1)
        }
        key = CellKey("paper", "last", task, name, "transformer", "")
        return RecordedCell(key, runs, set(range(1, declared + 1)), metric)

    cells = [cell(task, name, values) for task, scores in tasks.items() for name, values in scores.items()]
    [section] = sections(NOWHERE, cells, Published())
    return sorted(section.columns, key=lambda column: list(tasks).index(column.task))


A, B, C = (40.0, 41.0, 42.0, 41.5, 40.5), (38.1, 39.0, 39.9, 39.6, 38.5), (37.0, 38.2, 39.0, 38.4, 37.5)


def test_a_row_that_beats_all_others_is_bold() -> None:
    column = column_of({"a": A, "b": B, "c": C}, chance=10.0)
    assert column.bold == "a, transformer"
    assert column.verdict.startswith("a, transformer is better than every other row (the closest call: +")
    assert [comparison.other for comparison in column.against] == ["b, transformer", "c, transformer", "chance"]
    assert column_of({"a": A, "b": B, "c": C[::-1]}, metric="perplexity", chance=80.0).bold is None
    assert column_of({"a": A, "b": B}, metric="perplexity", chance=80.0).bold == "b, transformer"


def test_hochbergs_correction_is_over_the_columns_of_a_table() -> None:
    """Nothing is corrected inside a column: the largest p of its tests counts."""
    columns = table_of({"one": {"a": A, "b": B, "c": C}, "two": {"a": A, "b": B}, "three": {"a": A, "b": A[::-1]}})
    p = [max(comparison.difference.p for comparison in column.against) for column in columns]
    assert [column.p for column in columns] == p
    assert [column.adjusted for column in columns] == pytest.approx(hochberg(p))
    assert [column.bold for column in columns] == ["a, transformer", "a, transformer", None]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (column_of({"a": A, "b": A[::-1]}), "has the best mean, but"),
        (column_of({"a": A, "b": B}, chance=40.9), "to chance, p = "),
        (column_of({"a": A, "b": B}, root=45.0), "-4.00 to root, p < 0.001"),
        (column_of({"a": A, "b": B}, declared=6), "not all seeds that a sweep declared are done of a, transformer, b"),
        (column_of({"a": A[:4], "b": B}), "not all seeds that a sweep declared are done of a, transformer."),
        (column_of({"a": A}), "there are no two systems"),
        (column_of({"a": [41.0] * 5, "b": [40.0] * 5}), "a test needs runs that vary"),
        (column_of({"a": A[:1], "b": B[:1]}, declared=1), "at least two seeds in common"),
    ],
)
def test_nothing_else_is_bold(column: Column, reason: str) -> None:
    assert column.bold is None
    assert column.verdict.startswith("No row is bold: ")
    assert reason in column.verdict


def test_what_no_sweep_declared_is_not_bold(small: Path) -> None:
    (small / "sweep.json").unlink()
    assert "No row is bold: not all seeds that a sweep declared are done of Transformer, Simple, mine" in page_of(small)


def is_bold(runs: np.ndarray) -> np.ndarray:
    """Which columns [tables, columns] of runs [tables, columns, systems, seeds] have a bold row, by arrays."""
    seeds = runs.shape[3]
    mean, part = runs.mean(axis=3), runs.var(axis=3, ddof=1) / seeds
    leader = mean.argmax(axis=2)[:, :, None]
    ahead, both = (np.take_along_axis(values, leader, axis=2) for values in (mean, part))
    statistic = (ahead - mean) / np.sqrt(both + part)
    p = 2 * stdtr((both + part) ** 2 * (seeds - 1) / (both**2 + part**2), -statistic)
    np.put_along_axis(p, leader, 0.0, axis=2)
    worst = p.max(axis=2)
    falling = np.sort(worst, axis=1)[:, ::-1]
    bounds = np.minimum.accumulate(falling * np.arange(1, runs.shape[1] + 1), axis=1)
    adjusted = np.take_along_axis(bounds, (-worst).argsort(axis=1).argsort(axis=1), axis=1)
    return adjusted < 0.05


def test_the_arrays_of_the_simulations_say_what_the_tables_say() -> None:
    runs = np.random.default_rng(3).normal(37, 1, (30, 3, 3, 5))
    runs[:, :, 0] += np.random.default_rng(4).uniform(0, 5, (30, 3, 1))
    for table, expected in zip(runs, is_bold(runs), strict=True):
        tasks = {str(number): dict(zip("abc", column.tolist(), strict=True)) for number, column in enumerate(table)}
        assert [column.bold is not None for column in table_of(tasks)] == expected.tolist()


@pytest.mark.parametrize(
    ("seeds", "spread", "least", "most"),
    [(3, 1, 0.02, 0.04), (3, 2, 0.03, 0.055), (3, 4, 0.05, 0.07), (5, 1, 0.035, 0.055), (5, 4, 0.045, 0.065)],
)
def test_two_tied_leaders_are_rarely_told_apart(seeds: int, spread: int, least: float, most: float) -> None:
    """Share of tables of three tasks with a bold row; `spread`: how much more the second of the two varies."""
    runs = np.random.default_rng(17).normal(0, 1, (10_000, 3, 3, seeds))
    runs[:, :, 1] *= spread
    runs[:, :, 2] -= 100
    assert least < is_bold(runs).any(axis=1).mean() < most


def test_a_system_far_ahead_of_nineteen_is_often_bold() -> None:
    """Three seeds, three tasks, five sd."""
    runs = np.random.default_rng(19).normal(0, 1, (1500, 3, 20, 3))
    runs[:, :, 0] += 5
    assert is_bold(runs).mean() > 0.45


def put_predictions(path: Path, right: Sequence[int], labels: Sequence[int] = (1, 2) * 1000) -> None:
    """Predictions beside a record that are right at these places alone."""
    labels = np.array(labels, dtype=np.uint8)
    predicted = labels + 1
    predicted[list(right)] -= 1
    np.save(path.with_name("predictions.npy"), np.stack([predicted, labels]))
    change(path, test={"best_val": {"correct": len(right), "accuracy": len(right) / 20}})


def test_mcnemar_counts_the_test_examples(small: Path) -> None:
    """Simple alone is right about 10 examples, the Transformer about 3: p = 2 x (1 + 13 + 78 + 286) / 2^13."""
    put_predictions(small / "listops/paper/simple/simple/seed1/record.json", range(740))
    put_predictions(small / "listops/paper/softmax/transformer/seed1/record.json", [*range(730), 800, 801, 802])
    files = files_of(small)
    found = next(pair for pair in json.loads(files["table1.json"])["pairs"] if pair["other"] == "Transformer")
    assert found["mcnemar"] == [
        {"seed": 1, "only_system": 10, "only_other": 3, "p": pytest.approx(378 / 4096)},
    ]
    assert "| Transformer | +0.35 |  |  | 1 |  | 0/1 |" in files["details.md"]


def test_predictions_belong_to_the_checkpoint_that_was_selected(small: Path) -> None:
    """The last step is another checkpoint than the best, so the predictions say nothing of it."""
    for place in ("simple/simple", "softmax/transformer"):
        put_predictions(small / f"listops/paper/{place}/seed1/record.json", range(740))
    assert "McNemar |" in page_of(small)
    assert "McNemar |" not in page_of(small, "last")


def test_predictions_of_other_labels_are_refused(small: Path) -> None:
    put_predictions(small / "listops/paper/simple/simple/seed1/record.json", range(740))
    put_predictions(small / "listops/paper/softmax/transformer/seed1/record.json", range(740), labels=(2, 1) * 1000)
    with pytest.raises(UserError, match=r"simple/seed1/record.json and .*transformer/seed1/.* on different labels"):
        page_of(small)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.uint8), np.zeros(2000, np.uint8)])
def test_predictions_of_another_shape_are_refused(small: Path, array: np.ndarray) -> None:
    np.save(small / "listops/paper/simple/simple/seed1/predictions.npy", array)
    with pytest.raises(UserError, match=r"predictions.npy: expected an array of shape \(2, 2000\), found"):
        page_of(small)


def test_damaged_predictions_are_named(small: Path) -> None:
    (small / "listops/paper/simple/simple/seed1/predictions.npy").write_bytes(b"")
    with pytest.raises(UserError, match="predictions.npy: not a readable array"):
        page_of(small)
