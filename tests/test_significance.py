"""What may be bold in a table, and what predictions add."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reports import change, files_of, page_of, put
from scipy.integrate import quad
from scipy.special import fdtri, stdtr, stdtrit
from scipy.stats import binom

from lra.core.errors import UserError
from lra.records.record import NAME
from lra.records.run_files import RunFiles
from lra.report import Report
from lra.report.read.published import Published
from lra.report.read.records import CellKey, RecordedCell
from lra.report.statistics.columns import sections
from lra.report.statistics.comparison import KINDS
from lra.report.statistics.inference import hochberg
from lra.report.statistics.table import Column

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
        (column_of({"a": A, "b": B}, root=45.0, chance=41.1), "-4.00 to root, p < 0.001"),  # the one furthest ahead
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
    reason = "no sweep declared which seeds there are to be of Transformer, Simple, mine"
    assert f"No row is bold: {reason}" in page_of(small)


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


def size(seeds: int, spread: float, level: float = 0.05) -> float:
    """P(p < level) of Welch's test of two systems with one mean, by quadrature; `spread`: the ratio of their sd.

    Given the share of one estimated variance in the sum of both, the statistic is Student's t of 2 (seeds - 1) degrees
    of freedom times `stretch`, whatever number of them Welch counts.
    """
    freedom = seeds - 1
    ratio = spread**2 * fdtri(freedom, freedom, (np.arange(1001) + 0.5) / 1001)
    share, true = ratio / (1 + ratio), spread**2 / (1 + spread**2)
    stretch = np.sqrt((share / true + (1 - share) / (1 - true)) / 2)
    counted = freedom / (share**2 + (1 - share) ** 2)
    return float(2 * stdtr(2 * freedom, -stdtrit(counted, 1 - level / 2) / stretch).mean())


def false_bold(seeds: int, spread: float) -> float:
    """P(a bold row) in a table of three tasks with two tied leaders each: that Hochberg's correction leaves any p."""
    third, half, whole = (size(seeds, spread, 0.05 / part) for part in (3, 2, 1))
    above, high, low = 1 - whole, whole - half, half - third
    return 1 - (above**3 + 3 * above**2 * (high + low) + 3 * above * (high**2 + 2 * high * low))


def false_bold_rates(spreads: Sequence[float], seeds: int, tables: int) -> list[float]:
    """The same, by simulation."""
    rng = np.random.default_rng(17)
    rates = []
    for spread in spreads:
        runs = rng.normal(0, 1, (tables, 3, 3, seeds))
        runs[:, :, 1] *= spread
        runs[:, :, 2] -= 100
        rates.append(is_bold(runs).any(axis=1).mean())
    return rates


@pytest.mark.parametrize(("seeds", "least", "most"), [(3, 2.9, 7.3), (4, 3.6, 6.4), (5, 4.0, 5.9), (11, 4.7, 5.1)])
def test_two_tied_leaders_are_rarely_told_apart(seeds: int, least: float, most: float) -> None:
    """From five seeds on, 4 to 6 % of tables have a bold row, however much more one leader varies than the other."""
    rates = [100 * false_bold(seeds, spread) for spread in np.geomspace(1, 1000, 41)]
    assert [round(min(rates), 1), round(max(rates), 1)] == [least, most]


def test_three_seeds_of_equal_spread_are_told_apart_least() -> None:
    """There the share of a variance is uniform, and Welch counts pi degrees of freedom on average where there are 4."""

    def counted(share: float) -> float:
        return 2 / (share**2 + (1 - share) ** 2)

    assert quad(counted, 0, 1)[0] == pytest.approx(math.pi)
    rate = quad(lambda share: 2 * stdtr(4, -stdtrit(counted(share), 0.975)), 0, 1)[0]
    assert rate == pytest.approx(0.0351, abs=1e-4)
    assert size(3, 1.0) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
def test_so_often_does_a_simulation_tell_tied_leaders_apart(seeds: int) -> None:
    spreads = (1.0, 6.0)
    expected = [false_bold(seeds, spread) for spread in spreads]
    assert false_bold_rates(spreads, seeds, 6000) == pytest.approx(expected, abs=0.009)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 4, 5, 7])
def test_so_often_do_many_tables_tell_tied_leaders_apart(seeds: int) -> None:
    spreads = (1.0, 1.5, 2.0, 4.0, 10.0)
    rates = false_bold_rates(spreads, seeds, 100_000)
    print(f"{seeds} seeds: " + ", ".join(f"spread {s:g}: {100 * r:.2f} %" for s, r in zip(spreads, rates, strict=True)))
    assert rates == pytest.approx([false_bold(seeds, spread) for spread in spreads], abs=0.003)


def healthy(columns: int, seeds: int) -> list[Column]:
    """Two systems a task, as good as each other and as the baseline: accuracies of 2,000 examples, 37 % on average."""
    runs = np.round(np.random.default_rng(43).normal(37, 1, (columns, 2, seeds)) * 20) / 20
    tasks = {f"task{number}": {"a": pair[0], "b": pair[1]} for number, pair in enumerate(runs.tolist())}
    return table_of(tasks, seeds, chance=37.0)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5, 7])
def test_false_alarms_of_every_flag(seeds: int) -> None:
    columns = healthy(4000, seeds)
    rows = [row for column in columns for row in column.rows]
    badges = Counter(badge.code[0] for row in rows for badge in row.badges)
    flags = Counter(flag for row in rows for flag in {flag for known in row.flags.values() for flag in known})
    words = Counter(column.rows[1].verdict.word for column in columns)
    told_apart = (words["better"] + words["worse"]) / len(columns)  # what is equivalent, too, is not
    significant = np.mean([column.rows[1].verdict.p < 0.05 for column in columns])
    shares = {kind: badges[kind] / len(rows) for kind in KINDS}
    print(f"{seeds} seeds: {shares}, outlier {flags['outlier'] / len(rows)}, better or worse {told_apart}")
    assert told_apart <= significant == pytest.approx(size(seeds, 1.0), abs=0.01)
    assert {kind for kind, share in shares.items() if share} == {"B", *("n" if seeds < 5 else "")}
    assert shares["B"] == pytest.approx(0.025, abs=0.006)
    assert shares["n"] == (seeds < 5)
    assert flags["outlier"] / len(rows) == pytest.approx(0.01 if seeds >= 5 else 0.0, abs=0.004)
    assert flags["collapsed"] == 0


@pytest.mark.slow
def test_false_alarms_of_one_seed_and_of_a_majority() -> None:
    """Systems with one seed and, exactly, the accuracy of the baseline: the interval is that over examples. Without
    predictions one is called collapsed where its count is the majority's by chance."""
    counts = np.random.default_rng(47).binomial(2000, 0.1705, (120, 50))
    tasks = {f"task{n}": {str(place): (count / 20,) for place, count in enumerate(row)} for n, row in enumerate(counts)}
    rows = [row for column in table_of(tasks, 1, **{"majority class": 17.05}) for row in column.rows]
    below = np.mean([any(badge.code == "B" for badge in row.badges) for row in rows])
    collapsed = np.mean([row.collapsed for row in rows])
    print(f"below baseline {below}, collapsed {collapsed}")
    assert below == pytest.approx(0.025, abs=0.007)
    assert collapsed == pytest.approx(binom.pmf(341, 2000, 0.1705), abs=0.006)
    assert binom.pmf(341, 2000, 0.1705) < 0.024


def test_one_other_answer_is_no_collapse(small: Path) -> None:
    """Where predictions are kept, a system that answers two classes is never called collapsed."""
    path = small / "listops/paper/simple/simple/seed1/record.json"
    for other, flagged in ((0, True), (1, False)):
        predicted, labels = np.ones(2000, np.uint8), np.repeat([1, 2], 1000).astype(np.uint8)
        predicted[:other] = 2
        np.save(path.with_name("predictions.npy"), np.stack([predicted, labels]))
        change(path, test={"best_val": {"correct": 1000 - other, "accuracy": (1000 - other) / 20}})
        assert ("collapsed 1/3" in page_of(small)) is flagged


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
    comparison = next(pair for pair in json.loads(files["table1.json"])["pairs"] if pair["other"] == "Transformer")
    assert comparison["mcnemar"] == [
        {"seed": 1, "only_system": 10, "only_other": 3, "p": pytest.approx(378 / 4096)},
    ]
    assert "| Transformer | +0.35 |  |  | 1 |  | 0/1 |" in files["details.md"]


def test_answers_at_positions_are_not_taken_for_examples(tmp_path: Path) -> None:
    """Those of one example are right or wrong together: neither McNemar's test nor an interval over examples holds."""
    for attention, variant, right in (("softmax", "transformer", 700), ("simple", "simple", 730)):
        for seed in (1, 2):
            path = put(tmp_path, seed, 35.0, attention=attention, variant=variant)
            put_predictions(path, range(right + 17 * seed))
    for diagnostics, is_shown in (
        ({}, True),
        ({"position": {"0-7": {"correct": 740, "examples": 2000}}}, False),
    ):
        for path in tmp_path.rglob(NAME):
            change(path, diagnostics=diagnostics)
        [row] = [row for row in Report(tmp_path).sections[0].columns[0].rows if row.verdict]
        assert (row.verdict.crossed is not None) == is_shown
        assert ("McNemar |" in page_of(tmp_path)) == is_shown


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
