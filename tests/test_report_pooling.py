"""What a report refuses to take together, and records that it cannot read."""

import shutil
from pathlib import Path

import pytest
from reports import change, page_of, put

from lra.core.errors import UserError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"config": {"model": {"depth": 5}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": 9}},
            "differ in config.model.depth: 6 and 5",
        ),
        (
            {"config": {"model": {}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": 9}},
            "differ in config.model.depth: 6 and None",
        ),
        ({"task_version": 2}, "share a cell of the table but differ in task_version: 1 and 2"),
        ({"task_version": 2, "attention": "other"}, "share a column of the table but differ in task_version: 1 and 2"),
        (
            {"config": {"protocol": {"scale": "valid"}}, "attention": "other"},
            "share a column of the table but differ in config.protocol.scale: length and valid",
        ),
        ({"baselines": {"majority class": 3.0}}, "baseline 'majority class' is 3.0, elsewhere 17.05"),
    ],
)
def test_hidden_differences_are_not_pooled(small: Path, changes: dict, message: str) -> None:
    put(small, 9, 37.0, **changes)
    with pytest.raises(UserError, match=message):
        page_of(small)


def test_of_a_baseline_trained_on_each_machine_the_best_counts(small: Path) -> None:
    """A network rounds differently on another processor; all other baselines are numbers of the data alone."""
    page = page_of(small)
    assert "baseline was trained" not in page
    for path in small.rglob("record.json"):
        change(path, baselines={"small convolution, 17 pictures": 20.5, "majority class": 17.05})
    assert "baseline was trained" not in page_of(small)
    put(small, 9, 37.0, baselines={"small convolution, 17 pictures": 23.25, "majority class": 17.05})
    page = page_of(small)
    line = next(line for line in page.splitlines() if line.startswith("| *baseline: small convolution, 17 pictures*"))
    assert [cell.strip() for cell in line.split("|") if cell.strip()][1] == "23.25"
    note = "A baseline was trained on each machine, and the best counts: small convolution, 17 pictures of "
    assert f"{note}listops: 20.50 to 23.25." in page


def test_a_protocol_that_a_sweep_varies_is_no_hidden_difference(small: Path) -> None:
    varied = {"config": {"protocol": {"scale": "valid"}}, "settings": {"protocol.scale": "valid"}}
    put(small, 9, 37.0, **varied)
    assert "| Simple (protocol.scale=valid) |" in page_of(small)


def test_other_data_are_not_pooled_in_a_column(small: Path) -> None:
    change(put(small, 9, 37.0), provenance={"data_sha256": "d2"})
    with pytest.raises(UserError, match="column 'listops': .* were run on different data"):
        page_of(small)


def test_a_seed_that_stands_twice_is_refused_by_both_names(whole: Path) -> None:
    shutil.copytree(whole / "text/paper/simple/simple/seed2", whole / "text/copy/seed2")
    with pytest.raises(UserError) as caught:
        page_of(whole)
    assert "text/paper/simple/simple/seed2/record.json" in str(caught.value)
    assert "text/copy/seed2/record.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 7}', '{"schema": 1}'])
def test_a_damaged_record_is_named(small: Path, text: str) -> None:
    path = put(small, 9, 37.0)
    path.write_text(text)
    with pytest.raises(UserError, match=r"seed9/record.json: not a"):
        page_of(small)


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": [{"folder": "x"}]}'])
def test_a_damaged_sweep_is_named(small: Path, text: str) -> None:
    (small / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"sweep.json: not what a sweep declares"):
        page_of(small)
