"""A sweep before its first run."""

from pathlib import Path

from support import Commands

from lra.cli import train


def test_a_mistake_in_the_last_cell_is_found_before_anything_trains(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "out=runs", "model.heads=1,2,3", "seed=1,2")
    assert (code, Path("runs").exists()) == (2, False)
    assert "model.heads=3 does not divide model.qkv_dim=16" in err
