"""A sweep before its first run."""

from pathlib import Path

import pytest
from support import Commands

from lra.cli import train
from lra.runs import estimate


def test_a_mistake_in_the_last_cell_is_found_before_anything_trains(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "out=runs", "model.heads=1,2,3", "seed=1,2")
    assert (code, Path("runs").exists()) == (2, False)
    assert "model.heads=3 does not divide model.qkv_dim=16" in err


def test_the_flops_of_a_model_are_counted_once(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, describe = [], estimate.describe
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr(estimate, "describe", lambda system: counted.append(system) or describe(system))
    line = ("--multirun", "experiment=smoke", "out=runs", "train.lr=0.1,0.2,0.3", "model.depth=1,2", "seed=1,2")
    code, _, err = cli(train.main, *line, "max_hours=1e-9")
    assert (code, len(counted)) == (2, 2)
    assert "6 of 6 cells could not be measured" in err
