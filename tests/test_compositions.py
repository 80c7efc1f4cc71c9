"""scripts/compositions.py: it sees every key that another code composes otherwise."""

import compositions

from lra.core.paths import CHECKOUT


def test_every_key_that_differs_is_told_with_both_values() -> None:
    before = {"seed": 1, "train": {"lr": 0.5, "goal": None}, "also": [], "init": {}}
    now = {"seed": 1, "train": {"lr": 0.5, "goal": 99, "patience": 6}, "also": ["mine"], "init": {}}
    assert list(compositions.differences(before, before)) == []
    assert list(compositions.differences(before, {"refused": True})) == [("all", "composed", "refused")]
    assert list(compositions.differences(before, now)) == [
        ("also", "[]", '["mine"]'),
        ("train.goal", "null", "99"),
        ("train.patience", "absent", "6"),
    ]


def test_what_a_command_line_sets_and_sweeps_over_is_composed() -> None:
    demo, plain, refused = compositions.composed(
        [("experiment=demo",), ("train.lr=0.5",), ("task=no_such",)], str(CHECKOUT)
    )
    assert plain["train"]["lr"] == 0.5 and plain["sweep"] is None
    assert demo["sweep"]["seed"] == "1,2,3"
    assert refused == {"refused": True}


def test_each_option_is_asked_for_alone_and_with_what_it_depends_on() -> None:
    options = {
        "task": ["text", "books"],
        "attention": ["simple", "softmax", "s5"],
        "protocol": ["paper"],
        "variant": ["simple"],
        "experiment": ["demo"],
        "system": ["simple"],
        "system/other": ["s5"],
        "task/recipe": ["text"],
    }
    command_lines = compositions.asked(options)
    assert len(set(command_lines)) == len(command_lines) == 1 + 10 + 2 * (3 + 1 + 1) + 1 * (2 + 3)
    assert {("system=other/s5",), ("task=books", "attention=s5"), ("experiment=demo", "task=text")} <= {*command_lines}
    assert ("task/recipe=text",) not in command_lines
