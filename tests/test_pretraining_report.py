"""What a report says of the phase before a training."""

from pathlib import Path

import pytest
from reports import change, page_of, put

from lra.core.errors import UserError
from lra.report.check.numbers import Quantities

PHASE = {"tokens": {"computed": 700}, "seconds": {"train": 3.0}}


def pretrained(folder: Path, results: list[dict], **changes: object) -> None:
    """A finished run for each result on inputs that were held out, by seed."""
    for seed, result in enumerate(results, start=1):
        path = put(folder, seed, 37.0, settings={"case": "pretrained_40"}, **changes)
        phase = {**PHASE, "validation": {"best": result, "last": {"loss": 9.0}}}
        change(path, pretrain=phase, config={"pretrain": {"objective": "masked"}})


def test_what_was_reached_by_hand(tmp_path: Path) -> None:
    """Losses 1, 2 and 4: mean 7/3, sd the root of 7/3."""
    put(tmp_path / "kept", 1, 36.0)
    results = [{"loss": loss, "perplexity": 3 * loss, "accuracy": 10 * loss} for loss in (1.0, 2.0, 4.0)]
    pretrained(tmp_path / "kept", results)
    page = page_of(tmp_path / "kept")
    line = "| Simple (case=pretrained_40) | 2.333 ± 1.5 | 7 ± 4.6 | 23.33 ± 15 |"
    assert "### What pretraining reached: " in page
    assert line in page
    assert "\n| Simple | 2." not in page
    quantities = Quantities(tmp_path)
    assert quantities.text("kept/listops/Simple (case=pretrained_40)/pretraining perplexity") == "7.00"
    with pytest.raises(UserError, match="the records have no such number"):
        quantities.text("kept/listops/Simple/pretraining perplexity")


def test_of_grey_values_there_is_a_loss_alone(tmp_path: Path) -> None:
    pretrained(tmp_path, [{"loss": 0.25}])
    assert "| Simple (case=pretrained_40) | 0.25 |  |  |" in page_of(tmp_path)


def test_a_report_without_pretraining_says_nothing_of_it(tmp_path: Path) -> None:
    put(tmp_path, 1, 36.0)
    assert "pretraining reached" not in page_of(tmp_path)
