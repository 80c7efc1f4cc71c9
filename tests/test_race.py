"""Runs with a finish line: seeds that reach it, the steps of the median seed, and who is quicker."""

import math
import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reports import lines_of, put

from lra.core.errors import UserError
from lra.records.run_files import RunFiles
from lra.report import Report
from lra.report.read.records import load
from lra.report.render import layout
from lra.report.statistics import inference
from lra.report.statistics.race import Race, grouped, race_of

BUDGET = 700
TRAIN = {"lr": 0.005, "goal": 99.0, "steps": BUDGET}


def race(*steps: int, solved: int, declared: int | None = None) -> Race:
    """The first `solved` of these seeds reached the goal."""
    known = dict(enumerate(steps, start=1))
    return Race(99.0, BUDGET, declared or len(steps), known, frozenset(range(1, solved + 1)), frozenset(), {})


@pytest.mark.parametrize(
    ("steps", "solved", "word", "median"),
    [
        ((300, 200, 500), 3, "learns it", 300),
        ((300, 200, 700, 700, 700), 2, "learns it in 2 of 5 seeds", None),
        ((300, 200, 400, 700, 700), 3, "learns it in 3 of 5 seeds", 400),
        ((300, 200, 400, 150, 150), 3, "learns it in 3 of 5 seeds", 400),  # whoever gave up early is none of the quick
        ((190, 210, 240, 450, 180), 4, "learns it in 4 of 5 seeds", 240),
        ((370, 290), 0, "did not learn it in 290 to 370 steps", None),
        ((400, 150), 1, "learns it in 1 of 2 seeds", 400),
        ((400, 150, 150), 1, "learns it in 1 of 3 seeds", None),
    ],
)
def test_words_and_medians(steps: tuple[int, ...], solved: int, word: str, median: int | None) -> None:
    """The median is the step by which half of the seeds were there: counted, with those that never were behind all."""
    known = race(*steps, solved=solved)
    assert (known.word, known.median) == (word, median)
    there = sorted(steps[:solved]) + [math.inf] * (len(steps) - solved)
    assert (known.median or math.inf) == there[(len(steps) - 1) // 2]


def test_a_median_counts_exactly() -> None:
    """Of 24 seeds one is never there; the product of Kaplan and Meier is a half after 12 but for rounding."""
    assert race(*range(1, 24), 500, solved=23).median == 12


@pytest.mark.parametrize(
    ("solved", "word"),
    [(3, "learns it in 3 of 3 seeds so far (5 declared)"), (0, "has not learned it in 3 seeds so far (5 declared)")],
)
def test_seeds_that_are_missing_are_said(solved: int, word: str) -> None:
    """Whoever solves a task ends first: of a sweep that is not finished, the quick are there."""
    known = race(300, 200, 500, solved=solved, declared=5)
    assert (known.word, known.learned, known.median) == (word, False, None)


def quicker(first: Race, other: Race) -> tuple[bool, float] | None:
    return inference.log_rank(first.times, other.times)


def test_the_log_rank_test_is_that_of_its_definition() -> None:
    """Observed minus expected events over the steps at which any run reached the goal; ties have none here."""
    first, other = race(130, 170, 230, 700, solved=3), race(310, 370, 700, 700, solved=2)
    observed = expected = variance = 0.0
    for step in (130, 170, 230, 310, 370):
        mine, all_at_risk = (
            sum(s >= step for r in part for times in r.times for s in times) for part in ((first,), (first, other))
        )
        observed += step in first.steps.values()
        expected += mine / all_at_risk
        variance += mine / all_at_risk * (1 - mine / all_at_risk)
    z = (observed - expected) / math.sqrt(variance)
    assert quicker(first, other) == (True, pytest.approx(math.erfc(abs(z) / math.sqrt(2))))
    assert quicker(other, first) == (False, pytest.approx(quicker(first, other)[1]))
    assert quicker(race(700, 700, solved=0), race(700, 500, solved=0)) is None
    assert quicker(race(600, 600, solved=2), race(600, 600, solved=2)) is None  # all at once


def test_giving_up_early_makes_nobody_quick() -> None:
    """Of the first, half got there soon and the others were given up at 600 steps; all of the second got there."""
    gave_up, steady = (300, 310, 320, 330, 340), (410, 420, 430, 440, 450)
    late = race(*gave_up, *[350] * 5, solved=5)
    assert late.times == race(*gave_up, *[BUDGET] * 5, solved=5).times
    assert quicker(late, race(*gave_up, *steady, solved=10))[0] is False


@pytest.mark.parametrize(("seeds", "alarms"), [(3, 2 / 20), (4, 4 / 70), (5, 18 / 252)])
def test_false_alarms_of_the_log_rank_test(seeds: int, alarms: float) -> None:
    """All ways in which runs of no difference can fall into two groups, as docs/numbers.md says."""
    steps = range(100, 100 * (2 * seeds + 1), 100)
    splits = [(first, [step for step in steps if step not in first]) for first in combinations(steps, seeds)]
    significant = [inference.log_rank((first, ()), (other, ()))[1] < inference.ALPHA for first, other in splits]
    assert np.mean(significant) == pytest.approx(alarms)


def test_seeds_are_groups_where_a_gap_lies_between_them() -> None:
    assert grouped({1: 25.0, 2: 87.0, 3: 91.0, 4: 31.6, 5: 77.0}) == "2 at 25 to 32, 3 at 77 to 91"
    assert grouped({1: 100.0, 2: 22.0}) == "1 at 22, 1 at 100"
    assert grouped({1: 60.0, 2: 79.9, 3: 41.0}) == ""
    assert grouped({}) == ""


def test_a_race_is_read_from_records_of_one_goal(tmp_path: Path) -> None:
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    for seed, ended in ((1, "solved"), (2, "no progress"), (3, "solved")):
        put(tmp_path, seed, 37.5, ended=ended, steps=100 * seed, config={**config, "seed": seed})
    put(tmp_path, 4, None, config={**config, "seed": 4})
    [cell] = load(RunFiles(tmp_path))
    actual = race_of(cell)
    assert actual == Race(
        99.0, BUDGET, 4, {1: 100, 2: 200, 3: 300}, frozenset({1, 3}), frozenset({2}), {1: 66.0, 3: 66.0}
    )
    for seed, accuracy in ((2, 99.0), (3, 98.9)):  # what is there at its end, whyever it ends, has learned the task
        put(tmp_path, seed, accuracy, ended="no progress", steps=100 * seed, config={**config, "seed": seed})
    [cell] = load(RunFiles(tmp_path))
    assert (race_of(cell).solved, race_of(cell).stuck) == (frozenset({1, 2}), frozenset({3}))
    put(tmp_path, 1, 99.5, validation={}, steps=100, config={**config, "seed": 1})
    [cell] = load(RunFiles(tmp_path))
    assert race_of(cell).solved == {2}  # a record that says neither how it ended nor its validation
    put(tmp_path, 1, 99.5, status="diverged", ended="steps", steps=100, config={**config, "seed": 1})
    [cell] = load(RunFiles(tmp_path))
    assert race_of(cell).solved == {2}  # what was there, and then diverged, has not learned it
    put(tmp_path, 5, 37.5, config={**config, "train": TRAIN | {"goal": 90.0}, "seed": 5})
    with pytest.raises(UserError, match="differ in config.train.goal"):
        load(RunFiles(tmp_path))


@pytest.mark.parametrize("train", [TRAIN | {"goal": None}, TRAIN | {"goal": 50.0}, TRAIN | {"eval_every": 7}])
def test_rows_of_a_race_have_one_goal(train: dict, tmp_path: Path) -> None:
    """Unless they are named for it; then there is no common finish line, and accuracies are compared."""
    config = {"model": {"depth": 6}, "protocol": {"scale": "length"}, "seed": 1}
    put(tmp_path, 1, 37.5, attention="softmax", variant="transformer", ended="steps", config={**config, "train": TRAIN})
    put(tmp_path, 1, 52.5, ended="steps", config={**config, "train": train})
    with pytest.raises(UserError, match=r"share a column .* differ in config.train.(goal|eval_every)"):
        load(RunFiles(tmp_path))
    changed = {f"train.{key}": value for key, value in train.items() if TRAIN.get(key) != value}
    put(tmp_path / "named", 1, 52.5, ended="steps", config={**config, "train": train}, settings=changed)
    put(
        tmp_path / "named",
        1,
        37.5,
        attention="softmax",
        variant="transformer",
        ended="steps",
        config={**config, "train": TRAIN},
    )
    [column] = Report(tmp_path / "named").sections[0].columns
    assert column.goal == (None if "train.goal" in changed else 99)


def test_who_reached_what_and_when_stands_in_the_details(tmp_path: Path) -> None:
    """The median of the seeds that a percentage was reached in, where these are half of them or more."""
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    at = {seed: {"step": 100 * seed, "tokens": 7, "seconds": 11.0 * seed} for seed in (1, 2, 3)}
    for system, solved in (("softmax", 3), ("simple", 1)):
        variant = {"softmax": "transformer"}.get(system, system)
        for seed in (1, 2, 3):
            done = seed <= solved
            reached = {"50": at[seed]} | ({"90": at[seed], "99": at[seed]} if done else {})
            how = {"ended": "solved" if done else "no progress", "reached": reached, "steps": 100 * seed + 50}
            put(tmp_path, seed, 37.5, attention=system, variant=variant, config={**config, "seed": seed}, **how)
    report = Report(tmp_path)
    [column] = report.sections[0].columns
    assert column.goal == 99
    lines = {line[0].text: [each.text for each in line[1:]] for line in layout.race(column).rows}
    assert lines["Transformer"] == ["learns it", "3/3", "250", "200", "200", "200", "66", "", ""]
    slow = lines["Simple"]
    assert slow[:-2] == ["learns it in 1 of 3 seeds", "1/3", "", "200", "", "", "66"]
    assert float(slow[-1]) == pytest.approx(quicker(*(row.race for row in column.rows))[1], abs=5e-3)
    assert "3/3 in 250 steps; 37.50" in report.files({})["README.md"]
    table = {line["system"]: line for line in lines_of(report.files({})["table1.csv"])}
    raced = {name: [line[key] for key in ("goal", "solved", "median_steps")] for name, line in table.items()}
    assert raced == {"Transformer": ["99.0", "3", "250"], "Simple": ["99.0", "1", ""]}
    last = lines_of(report.files({})["seeds.csv"])[-1]
    keys = ("system", "seed", "ended", "steps_to_50", "steps_to_90", "steps_to_99")
    assert [last[key] for key in keys] == ["Simple", "3", "no progress", "300", "", ""]
    assert slow[-2] == slow[-1]  # of a single test there is nothing to correct
    assert "### The race" in report.files({})["details.md"]
    assert column.answer.startswith(
        "To 99 % of validation, in steps: 1 learn it (Transformer in 250); 1 learn it in some seeds (Simple 1 of 3). "
        "Beside Transformer (log-rank, Holm) nobody is quicker or slower beyond chance."
    )


def test_where_both_reached_the_goal_the_sign_is_of_their_steps(tmp_path: Path) -> None:
    """Accuracies are then those at which trainings end. Of who did not get there it is of the accuracy."""
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    for attention, last, accuracy, solved in (
        ("softmax", 100, 99.1, 5),
        ("linear", 600, 99.2, 5),
        ("simple", 500, 30.5, 0),
    ):
        variant = "simple" if attention == "simple" else "transformer"
        for seed in range(1, 6):
            how = {"ended": "solved" if solved else "no progress", "steps": last + 10 * seed}
            put(
                tmp_path, seed, accuracy + seed / 10, attention=attention, variant=variant,
                config={**config, "seed": seed}, **how,
            )  # fmt: skip
    report = Report(tmp_path)
    [column] = report.sections[0].columns
    signs = {row.name: layout.sign(row, column) for row in column.rows}
    assert signs == {"Transformer": "", "Linear ELU": "slower", "Simple": "−"}
    assert column.plain.startswith(
        "Transformer and Linear ELU learn it in every seed, Transformer first (in 130 steps); "
        "Simple (30.8 %) has not in 510 to 550 steps."
    )
    [slow] = [row for row in column.rows if row.name == "Linear ELU"]
    assert layout.sign_in_full(slow, column).startswith(
        "steps to the goal beside those of Transformer: log-rank test, p "
    )
    readme = report.files({})["README.md"]
    assert "5/5 in 630 steps; 99.50 ± 0.16 slower" in readme
    assert "has the best mean rank" not in readme
    assert '">slower</abbr>' in report.page([])


def test_seeds_that_failed_are_no_seeds_that_learned(tmp_path: Path) -> None:
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    for seed in (1, 2):
        put(tmp_path, seed, 30.5, ended="steps", steps=BUDGET, config={**config, "seed": seed})
    put(tmp_path, 3, None, config={**config, "seed": 3})
    [column] = Report(tmp_path).sections[0].columns
    assert column.plain.startswith("Simple (30.5 %) has not learned it in 2 seeds so far (3 declared).")
    assert "1 do not so far (Simple 0 of 2 so far)" in column.answer


def test_seeds_of_two_kinds_have_no_mean_in_a_race(tmp_path: Path) -> None:
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    for seed, accuracy in ((1, 37.5), (2, 99.5), (3, 99.0)):
        ended = "no progress" if seed == 1 else "solved"
        put(tmp_path, seed, accuracy, steps=300, ended=ended, config={**config, "seed": seed})
    readme = Report(tmp_path).files({})["README.md"]
    assert "2/3 in 300 steps; 1 at 38, 2 at 99 to 100" in readme
    assert "78.6" not in readme  # that of 37.5, 99.5 and 99


def test_the_picture_has_a_dot_for_each_seed_at_its_steps(tmp_path: Path) -> None:
    config = {"model": {"depth": 6}, "train": TRAIN, "protocol": {"scale": "length"}}
    steps = {1: 300, 2: 700, 3: 1100}
    for seed, count in steps.items():
        ended = "no progress" if seed == 3 else "solved"
        put(tmp_path, seed, 37.5, steps=count, ended=ended, config={**config, "seed": seed})
    files = Report(tmp_path).files({})
    assert "verdicts.svg" not in files and "](race.svg)" in files["README.md"]
    picture = ElementTree.fromstring(files["race.svg"])
    dots = [dot for dot in picture.iter() if dot.tag.endswith("circle")]
    assert [dot.get("class") for dot in dots] == ["solved", "solved", "unsolved"]
    row = next(line for line in picture.iter() if line.get("class") == "z" and line.get("y1") == line.get("y2"))
    start, end = float(row.get("x1")), float(row.get("x2"))
    assert [float(dot.get("cx")) for dot in dots] == pytest.approx(
        [start + (end - start) * count / 1100 for count in steps.values()], abs=0.1
    )
    [bar] = [line for line in picture.iter() if line.get("class") == "m"]
    assert bar.get("x1") == dots[1].get("cx")


def test_a_cell_of_the_page_shows_every_seed_and_says_their_kinds(tmp_path: Path) -> None:
    scores = {1: 25.0, 2: 87.0, 3: 91.0}
    for seed, score in scores.items():
        put(tmp_path, seed, score)
    page = Report(tmp_path).page([])
    cell = page[page.index('<td class="reference') :].split("</td>")[0]
    assert "1 at 25, 2 at 87 to 91" in cell
    low, middle, high = map(float, re.findall(r'class="seed" cx="([\d.]+)"', cell))
    assert low < middle < high
    assert (high - middle) / (middle - low) == pytest.approx(4 / 62, abs=0.01)
