"""A sweep reuses kept runs of equal configuration, data and task version; conflicts are found before it starts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from reports import put
from support import Commands, train_in

from lra.cli import train
from lra.core.errors import UserError
from lra.records.runs import keep_runs, read_runs
from lra.reports import Report
from lra.reports.verify import verify

TINY = ("experiment=smoke", "task=listops_short", "train.steps=4", "train.eval_every=2", "train.warmup=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A results folder that keeps one run."""
    place = train_in(tmp_path_factory.mktemp("kept"), cache, "--multirun", *TINY, "attention=simple", "seed=1", "out=r")
    keep_runs(place / "r", read_runs(place / "r"))
    shutil.rmtree(place / "r" / "listops_short")
    return place / "r"


@pytest.fixture
def sweep(cli: Commands, trained: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a sweep with `kept` and writes no report."""
    monkeypatch.setattr("lra.reports.write_report", lambda out: Path(out, "README.md"))
    monkeypatch.setattr("lra.reports.show", lambda page: None)
    shutil.copytree(trained, "kept")
    return lambda *words: cli(train.main, "--multirun", *TINY, "attention=simple", "kept=kept", *words)


def test_a_kept_run_is_reused_and_only_new_ones_are_trained(sweep) -> None:
    code, _, err = sweep("seed=1,2", "out=new", "train.micro_batch=2")  # which changes no more than the rounding
    assert (code, "2 runs, 1 to train" in err) == (0, True), err
    [kept, new] = read_runs(Path("new"))
    assert (kept.record.kept, new.record.kept) == ("kept", "")
    assert kept.record.test == read_runs(Path("kept"))[0].record.test
    assert Report(Path("new")).cells.footnotes[0].startswith("seed 1 reused from kept")
    mismatches = verify(Path("new"))[1]
    assert [line for line in mismatches if "README" not in line] == []
    assert not list(Path("kept").rglob("record.json")), "it is only read"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["train.lr=0.01"], ["kept=null"]])
def test_other_runs_are_trained(sweep, words: list[str]) -> None:
    assert "1 run, 1 to train" in sweep("seed=1", "out=new", *words)[2]


@pytest.mark.slow
def test_a_results_folder_with_kept_runs_trains_another_seed(sweep) -> None:
    shutil.copytree("kept", "o")
    assert "2 runs, 1 to train" in sweep("seed=1,2", "out=o", "kept=null")[2]
    assert len(Report(Path("o")).runs) == 2


@pytest.mark.slow
def test_runs_on_other_data_are_not_reused(sweep) -> None:
    """Nor are they compared: no report could be written of both."""
    [run] = read_runs(Path("kept"))
    provenance = run.record.provenance.model_copy(update={"data_sha256": "other"})
    keep_runs(Path("kept"), [replace(run, record=run.record.model_copy(update={"provenance": provenance}))])
    assert "2 runs, 2 to train" in sweep("seed=1,2", "out=new")[2]
    code, _, err = sweep("attention=fnet", "out=kept", "kept=null")
    assert (code, "differ in data" in err.splitlines()[-1]) == (2, True), err
    assert not list(Path("kept").rglob("record.json"))


@pytest.mark.slow
def test_a_conflict_in_a_cell_refuses_its_row_only(sweep) -> None:
    """Two seeds of one mean differ in the rate; the other row is trained."""
    shutil.copytree("kept", "o")
    code, _, err = sweep("attention=simple,fnet", "seed=2", "train.lr=0.01", "out=o", "kept=null")
    assert (code, "differ in config.train.lr" in err, "1 of 2 runs finished, 1 refused" in err) == (2, True, True), err
    assert {run.cell.parts[2] for run in read_runs(Path("o"))} == {"simple", "fnet"}
    Report(Path("o"))


def test_a_mean_pools_runs_that_differ_in_rounding(tmp_path: Path) -> None:
    for seed, size in ((1, 4), (2, 8)):
        put(tmp_path, seed, 37.0, config={"train": {"lr": 0.005, "micro_batch": size}})
    assert Report(tmp_path).cells.n[0] == 2
    put(tmp_path, 3, 37.0, config={"train": {"lr": 0.006, "micro_batch": 8}})
    with pytest.raises(UserError, match=r"config\.train\.lr"):
        Report(tmp_path)
