"""What a sweep takes before its first run begins: what its cells have in common is composed and reckoned once."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from support import Commands

from lra.cli import train
from lra.config.compose import Loader, start

CELLS = [
    ["task=text"],
    ["task=text", "train.lr=0.1", "seed=3"],
    ["train.lr=0.2", "task=text", "+train.further=3"],
    ["task=text", "~generate", "train.groups={state: {rate: 0.1, weight_decay: 0}}"],
    ["experiment=smoke", "task=listops", "task={min_length: 11}", "task.max_length=13"],
    ["system=transformer", "hydra.job.name=other", "model.dim=14", "hydra/launcher=basic"],
    ["task=text", "train.lr=0.3", "hydra.searchpath=[pkg://os]"],
]
SWEPT = [["task=text", "seed=1,2"], ["task=text,listops", "seed=3", "train.lr=0.1,0.2"]]


@pytest.fixture
def loader() -> Loader:
    start("train")
    return GlobalHydra.instance().config_loader()


def by_hydra(loader: Loader, overrides: list[str], mode: RunMode) -> DictConfig:
    return ConfigLoaderImpl._load_configuration_impl(loader, "train", overrides, mode)


@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
def test_a_cell_is_what_hydra_composes_whatever_was_composed_before(loader: Loader) -> None:
    cases = [(RunMode.RUN, cell) for cell in CELLS] + [(RunMode.MULTIRUN, cell) for cell in [*CELLS, *SWEPT]]
    expected = [OmegaConf.to_yaml(by_hydra(loader, cell, mode)) for mode, cell in cases]
    for _ in range(2):
        for (mode, cell), text in zip(cases, expected, strict=True):
            config = loader.load_configuration("train", list(cell), mode)
            assert OmegaConf.to_yaml(config) == text, cell
            config.train.lr = config.hydra.job.name = "mine"


@pytest.mark.parametrize("wrong", ["trian.lr=1", "train.rl=1", "model@other=1", "attention=simpel", "~train.rl"])
def test_a_mistake_is_found_after_a_cell_without_it(loader: Loader, wrong: str) -> None:
    loader.load_configuration("train", ["task=text"], RunMode.RUN)
    with pytest.raises(ConfigCompositionException) as expected:
        by_hydra(loader, ["task=text", wrong], RunMode.RUN)
    with pytest.raises(type(expected.value)) as actual:
        loader.load_configuration("train", ["task=text", wrong], RunMode.RUN)
    assert str(actual.value) == str(expected.value)


def test_a_file_that_changes_between_two_cells_is_read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("lra_options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\nseed: 3\n")
    start("train")
    config_loader = GlobalHydra.instance().config_loader()
    for seed in (3, 5, 5, 7):
        path.write_text(f"# @package _global_\nseed: {seed}\n")
        assert config_loader.load_configuration("train", ["experiment=mine", "train.lr=0.1"], RunMode.RUN).seed == seed
    path.unlink()
    with pytest.raises(ConfigCompositionException):
        config_loader.load_configuration("train", ["experiment=mine", "train.lr=0.1"], RunMode.RUN)


def test_a_mistake_in_the_last_cell_is_found_before_anything_trains(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "out=runs", "model.heads=1,2,3", "seed=1,2")
    assert (code, Path("runs").exists()) == (2, False)
    assert "model.heads=3 does not divide model.qkv_dim=16" in err


@pytest.mark.slow
def test_ten_thousand_runs_begin_within_a_minute_of_a_processor(tmp_path: Path) -> None:
    """In 500 cells of 20 models."""
    rates = ",".join(f"0.{number:03}" for number in range(11, 36))
    line = (
        "experiment=smoke",
        "task=listops,pathfinder,mqar,parity,selective_copy",
        f"train.lr={rates}",
        "max_hours=null",
    )
    line += ("attention=linear,gla,retention,mlstm", "seed=range(1,21)", f"out={tmp_path}/runs")
    program = (
        "import time; from lra.cli import sweep, train\n"
        "sweep._launch = lambda config, task, plan, runs, *_: print(len(plan.rows), len(runs), time.process_time())\n"
        "train.main()"
    )
    command = [sys.executable, "-c", program, "--multirun", *line]
    said = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]
    cells, runs, seconds = map(float, said.split())
    assert (cells, runs) == (500, 10_000)
    assert seconds <= 60
