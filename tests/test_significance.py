"""What may be bold in a table, and what predictions add."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reports import change, files_of, page_of

from lra.core.errors import UserError
from lra.records.run_files import RunFiles
from lra.report.columns import sections
from lra.report.published import Published
from lra.report.records import CellKey, RecordedCell
from lra.report.table import Column

NOWHERE = RunFiles(Path(__file__).parent)


def column_of(scores: dict[str, Sequence[float]], declared: int = 5, metric: str = "accuracy", **more: float) -> Column:
    """A column of complete cells from scores by seed, with trivial baselines."""

    def cell(name: str, values: Sequence[float]) -> RecordedCell:
        run = {"status": "finished", "selection": "last", "baselines": more}
        runs = {
            seed: {
                **run,
                "seed": seed,
                "path": f"{name}{seed}/record.json",
                "test": {"last": {metric: value, "step": 1}},
            }
            for seed, value in enumerate(values, start=1)
        }
        key = CellKey("paper", "last", "stub", name, "transformer", "")
        return RecordedCell(key, runs, set(range(1, declared + 1)), metric)

    [section] = sections(NOWHERE, [cell(name, values) for name, values in scores.items()], Published())
    return section.columns[0]


A, B, C = (40.0, 41.0, 42.0, 41.5, 40.5), (38.1, 39.0, 39.9, 39.6, 38.5), (37.0, 38.2, 39.0, 38.4, 37.5)


def test_a_row_that_beats_all_others_is_bold() -> None:
    column = column_of({"a": A, "b": B, "c": C}, chance=10.0)
    assert column.bold == "a, transformer"
    assert column.verdict.startswith("a, transformer is better than every other row (the closest call: +")
    assert [comparison.other for comparison in column.against] == ["b, transformer", "c, transformer", "chance"]
    assert column_of({"a": A, "b": B, "c": C}, metric="perplexity", chance=80.0).bold == "c, transformer"


def test_holms_correction_is_over_all_tests_of_the_table() -> None:
    p_values = [comparison.difference.p for comparison in column_of({"a": A, "b": B, "c": C}).against]
    adjusted = [comparison.holm for comparison in column_of({"a": A, "b": B, "c": C}).against]
    assert adjusted == pytest.approx([max(2 * min(p_values), p) for p in p_values])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (column_of({"a": A, "b": A[::-1]}), "has the best mean, but"),
        (column_of({"a": A, "b": B}, chance=40.9), "to chance, p = "),
        (column_of({"a": A, "b": B}, root=45.0), "-4.00 to root, p < 0.001"),
        (column_of({"a": A, "b": B}, declared=6), "not all seeds that a sweep declared are done of a, transformer, b"),
        (column_of({"a": A[:4], "b": B}), "not all seeds that a sweep declared are done of a, transformer."),
        (column_of({"a": A}), "there are no two systems"),
        (column_of({"a": A, "b": [score - 1 for score in A]}), "differences that vary"),
        (column_of({"a": A[:1], "b": B[:1]}, declared=1), "at least two seeds"),
    ],
)
def test_nothing_else_is_bold(column: Column, reason: str) -> None:
    assert column.bold is None
    assert column.verdict.startswith("No row is bold: ")
    assert reason in column.verdict


def test_what_no_sweep_declared_is_not_bold(small: Path) -> None:
    (small / "sweep.json").unlink()
    assert "No row is bold: not all seeds that a sweep declared are done of Transformer, Simple, mine" in page_of(small)


def test_systems_that_are_alike_are_rarely_bold_and_one_that_is_better_often() -> None:
    rng = np.random.default_rng(17)

    def some_bold(ahead: float) -> bool:
        scores = rng.normal(37, 1, 5) + rng.normal(0, 0.5, (4, 5))
        scores[0] += ahead
        return column_of(dict(zip("abcd", scores.tolist(), strict=True))).bold is not None

    assert sum(some_bold(0.0) for _ in range(300)) < 0.05 * 300
    assert sum(some_bold(2.5) for _ in range(100)) > 0.8 * 100


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
    assert "| Transformer | +0.35 |  |  |  | 1 |  | 0/1 |" in files["README.md"]


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
