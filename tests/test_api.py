"""The Python API: each function does the same as its command."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from reports import put, softmax
from support import Commands, strip_times

import lra
from lra.api.results import Results
from lra.cli import check as check_command
from lra.cli import train as train_command
from lra.core import files
from lra.core.signals import ASKING, PAUSED
from lra.records import record
from lra.records.names import LOCK, RECORD, RUNS
from lra.records.runs import keep_runs, read_runs
from lra.reports import Report

SMOKE = (
    "experiment=smoke", "attention=softmax", "task=listops_short", "task.train_size=50", "task.val_size=7",
    "task.test_size=11", "train.steps=6", "train.eval_every=2", "train.warmup=2", "train.batch_size=5",
    "train.micro_batch=5",
)  # fmt: skip


def test_importing_lra_imports_nothing_slow() -> None:
    program = "import sys, lra; print(sorted({'torch', 'hydra', 'pandas', 'pydantic'} & sys.modules.keys()), dir(lra))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.startswith("[] ")
    assert all(f"'{name}'" in out for name in lra.__all__)


def test_a_run_is_composed_as_on_the_command_line(cli: Commands) -> None:
    run = lra.compose(*SMOKE, "seed=3")
    code, out, _ = cli(train_command.main, *SMOKE, "seed=3", "--cfg", "job", "--resolve")
    assert code == 0
    assert asdict(run.settings) == yaml.safe_load(out)
    assert (run.settings.seed, run.settings.train.steps) == (3, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lra.compose("attention=simpel"), "attention=simpel: no such option; did you mean 'simple'?"),
        (lambda: lra.compose("seed=1,2"), "several values are a sweep"),
        (lambda: lra.train("describe=true"), "describe=True: lra.train"),
        (lambda: lra.compose("task=listops", None), "None: expected a string"),
        (lambda: lra.attention("simple", width="6", heads=2, max_len=5), "width=6: should be a valid integer"),
        (lambda: lra.load("\0"), "no such folder"),
    ],
)
def test_a_mistake_is_one_error_and_hydra_is_left_alone(call: Callable[[], object], message: str) -> None:
    HydraConfig.instance().cfg = before = object()
    try:
        with pytest.raises(lra.UserError, match=message):
            call()
        assert HydraConfig.instance().cfg is before
        assert not GlobalHydra.instance().is_initialized()
    finally:
        HydraConfig.instance().cfg = None


def state() -> dict[str, object]:
    """Process-wide state that a library must not change."""
    return {
        "signal handlers": [signal.getsignal(number) for number in ASKING],
        "random": [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()],
        "process": [os.getcwd(), threading.active_count()],
        "warnings": warnings.filters[:],
        "hydra": GlobalHydra.instance().hydra,
    }


def test_a_run_is_the_one_of_the_command(cli: Commands, capfd: pytest.CaptureFixture) -> None:
    """It is paused and resumed, skipped once it is finished, and refused while another process does it."""
    assert cli(train_command.main, *SMOKE, "out=theirs")[0] == 0
    run = lra.compose(*SMOKE, "out=ours")
    assert cli(train_command.main, *SMOKE, "out=ours", "sweep_minutes=1e-9")[0] == PAUSED
    before = state()
    done = lra.train(run)
    assert state() == before
    assert (done.status, done.metric, done.folder) == ("finished", "accuracy", run.folder)
    theirs = json.loads(Path("theirs", run.folder.relative_to("ours"), RECORD).read_text())
    assert done.score == theirs["test"]["best_val"]["accuracy"]
    assert run.describe()["parameters"] == theirs["parameters"]
    ours, theirs = strip_times(done.record.values()), strip_times(theirs)
    assert (ours.pop("resumes"), theirs.pop("resumes")) == (1, 0)
    assert theirs.pop("sha256") and theirs.pop("schema")
    assert ours == theirs
    capfd.readouterr()
    assert lra.train(*SMOKE, "out=ours") == done
    assert "finished before, nothing to do" in capfd.readouterr().err
    run.folder.with_name("seed2").mkdir()
    with (
        files.hold(run.folder.with_name("seed2") / LOCK, 0),
        pytest.raises(lra.UserError, match="another process works in"),
    ):
        lra.train(run, "seed=2")


def test_a_diverged_run_has_that_status_and_no_score(cli: Commands) -> None:
    done = lra.train(*SMOKE, "out=ours", "train.lr=1e30")
    assert (done.status, done.score) == ("diverged", None)


def test_the_checks_are_those_of_the_command(cli: Commands) -> None:
    few = ("lengths=[3]",)
    _, out, _ = cli(check_command.main, "attention=fnet", *few)
    report = lra.check("fnet", *few)
    assert (repr(report) + "\n", report.failed) == (out, [])
    assert [result.check.name for result in report.results if result.verdict == "skipped"]


def test_a_layer_is_checked_as_its_option_is() -> None:
    layer = lra.attention("local", width=6, heads=2, max_len=5, options={"window": 3})
    assert repr(lra.check(layer, "lengths=[2]")) == repr(lra.check("local", "attention.window=3", "lengths=[2]"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks, of two systems each; one seed failed."""
    for task in ("listops", "text"):
        for seed, accuracy in enumerate((37.0, 38.0, 37.5), start=1):
            put(tmp_path / task, seed, accuracy, task=task)
            put(tmp_path / task, seed, accuracy - 2, task=task, **softmax())
    put(tmp_path / "text", 4, None, task="text")
    return tmp_path


@pytest.fixture
def results(folder: Path) -> Results:
    return lra.load(folder)


def test_the_tables_are_those_of_the_report(results: Results, folder: Path) -> None:
    files = Report(folder).texts()
    for frame, name in ((results.table, "table.csv"), (results.seeds, "seeds.csv")):
        file = pd.read_csv(io.StringIO(files[name]))
        file = file[file.attention.notna()].reset_index(drop=True)
        shared = [column for column in file if column in frame]
        assert len(file) >= 4 and len(shared) > 25
        shown = pd.read_csv(io.StringIO(frame[shared].to_csv(index=False)))
        pd.testing.assert_frame_equal(shown, file[shared], check_dtype=False)
    finished = results.seeds[results.seeds.status == "finished"]
    assert finished.score.tolist() == finished.test_best_val.tolist()
    assert results.seeds.score.notna().sum() == len(finished) == 12


def test_curves_and_predictions_are_those_of_the_run_folders(results: Results, folder: Path) -> None:
    run = ["task", "system", "seed"]
    curves, answers = (frame.set_index(run).sort_index() for frame in (results.curves, results.predictions))
    for path in folder.rglob("metrics.jsonl"):
        made = record.read(path.with_name(RECORD))
        key = made["task"], {"simple": "Simple", "softmax": "Transformer"}[made["attention"]], made["seed"]
        lines = pd.DataFrame(map(json.loads, path.read_text().splitlines()))[["step", "val_accuracy", "val_loss"]]
        assert (curves.loc[key][[*lines]].to_numpy() == lines.to_numpy()).all()
        predicted, labels = np.load(path.with_name("predictions.npy"))
        assert (answers.loc[key].predicted == predicted).all() and (answers.loc[key].label == labels).all()
    right = 100 * results.predictions.groupby(run, observed=True).correct.mean()
    scores = results.seeds.set_index(run).score
    assert right.to_dict() == pytest.approx({key: scores[key] for key in right.index})
    assert results.curves.val_perplexity.to_numpy() == pytest.approx(np.exp(results.curves.val_loss))


def test_kept_runs_are_read_as_folders_are(results: Results, folder: Path) -> None:
    keep_runs(folder, read_runs(folder))
    kept = lra.load(folder / RUNS)
    for name in ("table", "seeds", "curves", "predictions"):
        pd.testing.assert_frame_equal(getattr(results, name), getattr(kept, name))


def test_a_comparison_is_that_of_the_table(results: Results, folder: Path) -> None:
    """The systems are in one folder, or in two folders."""
    elsewhere = lra.load(folder)
    row = results.table[(results.table.task == "text") & (results.table.system == "Simple")].iloc[0]
    for there in (results, elsewhere):
        found = lra.compare(results.system("Simple", task="text"), there.system("Transformer", task="text"))
        assert (found.difference, found.low, found.high) == (row.difference, row.difference_low, row.difference_high)
        assert (found.p, found.p_equivalent) == (row.p, row.p_equivalent)
        assert (found.difference, found.word()) == (2.0, "better")


def test_a_larger_margin_makes_systems_equivalent(results: Results) -> None:
    simple, other = (results.system(name, task="text") for name in ("Simple", "Transformer"))
    assert lra.compare(simple, other, margin=90).word() == "equivalent"
    for margin in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(lra.UserError, match="^margin=.*expected a number of points above 0"):
            lra.compare(simple, other, margin=margin)


def test_impossible_comparisons_are_refused(results: Results) -> None:
    simple = results.system("Simple", task="text", protocol="paper")
    for call, message in (
        (lambda: lra.compare(simple, results.system("Simple", task="listops")), "expected one task and protocol"),
        (lambda: results.system("Simpel"), r"no 'Simpel' .* did you mean 'Simple'\?"),
        (lambda: results.system("Simple"), "'Simple' has several tasks or protocols"),
        (lambda: results.system("Simple", task="image"), "no 'Simple' with task='image'"),
    ):
        with pytest.raises(lra.UserError, match=message):
            call()
