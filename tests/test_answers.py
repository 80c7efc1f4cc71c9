"""The sentence with which a page begins: by rules, from records that are written here."""

from pathlib import Path

import pytest
from reports import put

from lra.report import Report
from lra.report.statistics.table import Column

SYSTEMS = {
    "Transformer": {"attention": "softmax", "variant": "transformer"},
    "Linear ELU": {"attention": "linear", "variant": "transformer"},
    "Performer": {"attention": "performer", "variant": "transformer"},
    "Simple": {"attention": "simple", "variant": "simple"},
    "Simple-Res": {"attention": "simple", "variant": "simple_res"},
    "Simple-ResL": {"attention": "simple", "variant": "simple_resl"},
}


def column(root: Path, accuracies: dict[str, tuple[float, ...]], baseline: float = 11.0) -> Column:
    for system, values in accuracies.items():
        for seed, accuracy in enumerate(values, start=1):
            put(root, seed, accuracy, **SYSTEMS[system], baselines={"root operator": baseline})
    [section] = Report(root).sections
    [only] = section.columns
    return only


def test_one_system_has_its_number(tmp_path: Path) -> None:
    assert column(tmp_path, {"Simple": (37.0, 38.0)}).plain == "Simple has 37.50 ± 0.71; nothing is compared."


def test_one_seed_each_is_no_test(tmp_path: Path) -> None:
    """That they have learned nothing would be another thing to say."""
    sentence = column(tmp_path, {"Transformer": (30.0,), "Simple": (37.0,)}).plain
    assert sentence == "Transformer has 30.00 and Simple has 37.00; no test: fewer than two seeds in common."


def test_who_is_better_worse_as_good_or_not_told_apart(tmp_path: Path) -> None:
    known = column(
        tmp_path,
        {
            "Transformer": (50.0, 50.2, 50.4),
            "Linear ELU": (61.0, 61.2, 61.3),
            "Performer": (40.1, 40.3, 40.2),
            "Simple": (50.1, 50.25, 50.3),
            "Simple-Res": (30.0, 50.0, 69.0),
        },
    )
    assert known.plain == (
        "Linear ELU is better than Transformer (50.20); Performer is worse than it; Simple is as good as it; "
        "Simple-Res is not told apart from it by these seeds."
    )


def test_what_does_not_survive_the_correction_over_the_rows_is_not_told_apart(tmp_path: Path) -> None:
    """Of four rows, Simple alone differs, by a test with 0.0125 < p < 0.05; alone beside the Transformer it does."""
    same, slightly = (50.0, 51.0, 52.0), (52.3, 53.3, 54.1)
    alone = column(tmp_path / "alone", {"Transformer": same, "Simple": slightly})
    [row] = [row for row in alone.rows if row.name == "Simple"]
    assert 0.0125 < row.verdict.p < 0.05
    assert alone.plain == "Simple is better than Transformer (51.00)."
    others = {name: (49.9, 51.1, 52.1) for name in ("Linear ELU", "Performer", "Simple-Res", "Simple-ResL")}
    many = column(tmp_path / "many", {"Transformer": same, "Simple": slightly, **others})
    assert many.plain == (
        "Linear ELU, Performer, Simple and 2 more are not told apart from Transformer (51.00) by these seeds."
    )


@pytest.mark.parametrize(
    ("baseline", "sentence"),
    [
        (11.0, ""),
        (45.0, " A trivial baseline, root operator (45.00), is above 1 of 2 systems, beyond chance."),
        (80.0, " A trivial baseline, root operator (80.00), is above every system, beyond chance."),
    ],
)
def test_a_baseline_that_is_above_systems_is_named(tmp_path: Path, baseline: float, sentence: str) -> None:
    known = column(tmp_path, {"Transformer": (50.0, 50.2, 50.4), "Simple": (40.0, 40.2, 40.1)}, baseline)
    assert known.plain == f"Simple is worse than Transformer (50.20).{sentence}"


def test_a_race_says_who_learns_it_who_in_some_seeds_and_who_does_not(tmp_path: Path) -> None:
    steps = {
        "Transformer": (300, 500, 400),
        "Linear ELU": (700, 900, 800),
        "Simple": (600, 0, 900),
        "Performer": (0, 0, 0),
    }
    config = {"train": {"goal": 99.0, "steps": 1900}}
    for system, of_seeds in steps.items():
        for seed, reached in enumerate(of_seeds, start=1):
            ended = {"ended": "solved", "steps": reached} if reached else {"ended": "no progress", "steps": 1300}
            put(tmp_path, seed, 99.5 if reached else 30.0, **SYSTEMS[system], **ended, config=config | {"seed": seed})
    [section] = Report(tmp_path).sections
    assert section.columns[0].plain == (
        "Transformer and Linear ELU learn it in every seed, Transformer first (in 400 steps); Simple in 2 of 3 seeds "
        "(1 at 30, 2 at 100); Performer (30.0 %) has not in 1,300 steps. A trivial baseline, root operator (36.20), "
        "is above 1 of 4 systems, beyond chance."
    )


def test_whoever_learned_something_is_not_said_to_have_learned_nothing(tmp_path: Path) -> None:
    """The Transformer answers as the majority does, so that nothing is tested; one seed of Simple has learned."""
    learned = (
        "Transformer has 17.05 ± 0.00 and Simple has 26.52 ± 13.40; no test: Transformer collapsed in every seed. "
        "Seeds with one answer to everything: Simple 1 of 2."
    )
    nothing = "Nothing is told apart: the runs answer as one that has learned nothing does."
    expected = {(17.05, 36.0): learned, (17.05, 17.05): nothing}
    for number, (of_simple, sentence) in enumerate(expected.items()):
        for seed, accuracy in enumerate(of_simple, start=1):
            for system, value in (("Transformer", 17.05), ("Simple", accuracy)):
                put(tmp_path / str(number), seed, value, **SYSTEMS[system], baselines={"majority class": 17.05})
        assert Report(tmp_path / str(number)).sections[0].columns[0].plain == sentence


def put_race(root: Path, steps: dict[str, tuple[int, ...]], **settings: object) -> None:
    config = {"train": {"goal": 99.0, "steps": 1900}}
    for system, of_seeds in steps.items():
        for seed, reached in enumerate(of_seeds, start=1):
            changes = {**SYSTEMS[system], "settings": settings, "config": config | {"seed": seed}}
            put(root, seed, 99.5, **changes, ended="solved", steps=reached, baselines={})


def test_who_is_as_soon_as_the_first_is_first_too(tmp_path: Path) -> None:
    put_race(tmp_path / "two", {"Transformer": (300, 500, 400), "Simple": (400, 300, 500)})
    put_race(
        tmp_path / "three", {"Transformer": (300, 500, 400), "Simple": (400, 300, 500), "Performer": (500, 600, 700)}
    )
    two, three = (Report(tmp_path / name).sections[0].columns[0].plain for name in ("two", "three"))
    assert two == "Transformer and Simple learn it in every seed, in 400 steps."
    assert three == (
        "Transformer, Simple and Performer learn it in every seed, Transformer and Simple first (in 400 steps)."
    )


def test_a_race_with_several_references_names_none_of_them(tmp_path: Path) -> None:
    for number, first in ((1, 300), (2, 400)):
        steps = {"Transformer": (first, first + 10, first + 20), "Simple": (1500, 1600, 1700)}
        put_race(tmp_path, steps, **{"model.depth": number})
    [section] = Report(tmp_path).sections
    assert (
        "Beside the reference of its settings (log-rank, Holm) slower: Simple (model.depth=1)"
        in section.columns[0].answer
    )


def test_a_race_that_nobody_wins_says_so(tmp_path: Path) -> None:
    for system, accuracy in (("Transformer", 30.0), ("Simple", 50.0)):
        ended = {"ended": "no progress", "steps": 1300, "baselines": {"root operator": 11.0}}
        put(
            tmp_path,
            1,
            accuracy,
            **SYSTEMS[system],
            **ended,
            config={"train": {"goal": 99.0, "steps": 1900}, "seed": 1},
        )
    [section] = Report(tmp_path).sections
    assert section.columns[0].plain == "Simple (50.0 %) and Transformer (30.0 %) have not learned it in 1,300 steps."
