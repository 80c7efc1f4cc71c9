"""What `import lra` gives: each function does what its command does."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from lra.report.read.pack import pack
from reports import complete
from support import Commands, strip_times

import lra
from lra.api.results import Results
from lra.cli import check as check_command
from lra.cli import report as report_command
from lra.cli import train as train_command
from lra.core import locks
from lra.core.paths import CHECKOUT
from lra.core.signals import INTERRUPTED, PAUSED, Paused
from lra.records.names import LOCK, RECEIPTS, RECORD
from lra.report import Report

SMOKE = (
    "experiment=smoke", "attention=softmax", "task=listops_short", "task.train_size=50", "task.val_size=7",
    "task.test_size=11", "train.steps=6", "train.eval_every=2", "train.warmup=2", "train.batch_size=5",
    "train.micro_batch=5",
)  # fmt: skip


def test_importing_it_imports_nothing_slow() -> None:
    program = "import sys, lra; print(sorted({'torch', 'hydra', 'pandas', 'pydantic'} & sys.modules.keys()), dir(lra))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.startswith("[] ")
    assert all(f"'{name}'" in out for name in lra.__all__)


def test_a_script_without_a_main_guard_is_told_of_it(tmp_path: Path) -> None:
    """Processes that make examples import the script anew, so that it must not begin a run there."""
    options = [*SMOKE[:3], "task.train_size=7000", "task.seed=7", "workers=2"]
    script = tmp_path / "script.py"
    script.write_text(f"import lra\nlra.train(*{options!r})\n")
    environment = {**os.environ, "LRA_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert 'calls of lra stand below `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "cache").rglob("manifest.json"))


def test_two_names_are_packages_as_well() -> None:
    import lra.attention
    import lra.report

    assert lra.attention.Mixer.__name__ == "Mixer"
    assert lra.attention("fnet", width=6, heads=1, max_len=5).name == "fnet"
    assert lra.report.Report is Report
    program = "from lra import attention, report; print(attention.Mixer.__name__, report.Report.__name__)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "Mixer Report\n"
    with pytest.raises(lra.UserError, match="no such folder"):
        lra.report("nowhere")
    with pytest.raises(AttributeError, match="'lra' has no attribute 'trian'"):
        _ = lra.trian


def test_a_run_is_composed_as_on_the_command_line(cli: Commands) -> None:
    run = lra.compose(*SMOKE, "seed=3")
    code, out, _ = cli(train_command.main, *SMOKE, "seed=3", "--cfg", "job", "--resolve")
    assert code == 0
    assert vars(run.settings) == yaml.safe_load(out)
    assert (run.settings.seed, run.settings.train["steps"]) == (3, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lra.compose("attention=simpel"), "attention=simpel: no such option; did you mean 'simple'?"),
        (lambda: lra.compose("train.stepz=3"), "train.stepz: unknown key; did you mean 'train.steps'?"),
        (lambda: lra.compose("seed=1,2"), "several values are a sweep"),
        (lambda: lra.compose("experiment=hour", "task=mqar"), "experiment=hour: a sweep; .* add system=..."),
        (lambda: lra.train("describe=true"), "describe=True: lra.train does one run"),
        (lambda: lra.train(*SMOKE, "sweep_minutes=3"), "sweep_minutes=3: limits a command"),
        (lambda: lra.load("nowhere"), "nowhere: no such folder"),
        (lambda: lra.check("simpel"), "attention=simpel: no such option"),
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


def test_one_run_of_a_sweep_is_named_by_its_keys() -> None:
    run = lra.compose("experiment=hour", "task=mqar", "attention=mlstm")
    assert run.folder == Path("results/hour/mqar/strict/mlstm/transformer/seed1")
    assert run.settings.train["goal"] == 99


def test_a_run_is_the_one_of_the_command(
    cli: Commands, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused and resumed, skipped when it is finished, refused while it is at work elsewhere."""
    assert cli(train_command.main, *SMOKE, "out=theirs")[0] == 0
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    run = lra.compose(*SMOKE, "out=ours")
    paused = lra.train(run, "train.minutes=1e-9")
    assert (paused.status, paused.score) == ("paused", None)
    done = lra.train(run)
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    torch.set_num_threads(1)
    assert (done.status, done.metric, done.folder) == ("finished", "accuracy", run.folder)
    theirs = json.loads(Path("theirs", run.folder.relative_to("ours"), RECORD).read_text())
    assert done.score == theirs["test"]["best_val"]["accuracy"]
    assert run.describe()["parameters"] == theirs["parameters"]
    ours, theirs = strip_times(done.record), strip_times(theirs)
    assert (ours.pop("resumes"), theirs.pop("resumes"), theirs.pop("sha256") != "") == (1, 0, True)
    assert ours == theirs
    capfd.readouterr()
    assert lra.train(*SMOKE, "out=ours") == done
    assert "finished before, nothing to do" in capfd.readouterr().err
    run.folder.with_name("seed2").mkdir()
    with (
        locks.hold(run.folder.with_name("seed2") / LOCK, 0),
        pytest.raises(lra.UserError, match=r"seed 2: at work elsewhere \(.*process"),
    ):
        lra.train(run, "seed=2")


def test_a_run_that_fails_is_an_error_with_its_reason(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def burn(*_: object) -> None:
        raise RuntimeError("fire")

    monkeypatch.setattr("lra.runs.execute.train_and_test", burn)
    with pytest.raises(lra.UserError, match=r"seed 1: failed: RuntimeError: fire \(traceback in ours/.*/error\.log\)"):
        lra.train(*SMOKE, "out=ours")


@pytest.mark.parametrize("code", [INTERRUPTED, PAUSED])
def test_a_signal_that_stopped_a_run_is_an_interrupt(code: int, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> None:
        raise Paused("a signal", code)

    monkeypatch.setattr("lra.api.training.run_in_folder", stop)
    with pytest.raises(KeyboardInterrupt, match=r"seed 1: paused \(a signal\); the same call goes on"):
        lra.train(*SMOKE)


def test_the_laws_are_those_of_the_command(cli: Commands) -> None:
    few = ("growth=[]", "lengths=[3]")
    _, out, _ = cli(check_command.main, "attention=fnet", *few)
    checkup = lra.check("fnet", *few)
    assert (repr(checkup) + "\n", checkup.broken) == (out, [])
    assert [finding.law.name for finding in checkup.findings if finding.verdict == "silent"]


def test_the_laws_of_a_class_that_is_at_hand() -> None:
    from lra.attention import Mixer, Shape

    class Leaks(Mixer):
        card = lra.attention("fnet", width=6, heads=1, max_len=5).card
        extra_parameters = property(lambda self: -self.shape.projections)

        def __init__(self, shape: Shape, *, by: float) -> None:
            super().__init__(shape)
            self.by = by

        def forward(self, x: torch.Tensor, key_mask: torch.Tensor | None = None) -> torch.Tensor:
            return x + self.by * x.mean(dim=0)

    few = ("growth=[]", "lengths=[2]")
    checkup = lra.check(lambda shape: Leaks(shape, by=0.5), *few)
    assert checkup.broken == ["rows", "cuts"]
    assert "FAIL  rows" in repr(checkup)
    layer = lra.attention("local", width=6, heads=2, max_len=5, options={"window": 3})
    assert repr(lra.check(layer, *few)) == repr(lra.check("local", "attention.window=3", *few))
    with pytest.raises(lra.UserError, match=r"Leaks: called with a shape: missing .* 'by'; give its options with"):
        lra.check(Leaks, *few)
    for other in (torch.nn.Linear, torch.nn.Linear(2, 3)):
        with pytest.raises(lra.UserError, match=r"Linear: expected a name, a subclass of lra\.attention\.Mixer, or"):
            lra.check(other)


@pytest.fixture
def results(whole: Path) -> Results:
    return lra.load(whole)


def test_the_tables_are_those_of_the_report(results: Results, whole: Path) -> None:
    files = Report(whole).files({})
    for frame, name in ((results.table, "table1.csv"), (results.seeds.rename(columns={"flag": "flags"}), "seeds.csv")):
        file = pd.read_csv(io.StringIO(files[name]))
        assert len(file) > 10
        shown = pd.read_csv(io.StringIO(frame[list(file)].to_csv(index=False)))
        pd.testing.assert_frame_equal(shown, file)
    finished = results.seeds[results.seeds.status == "finished"]
    selected = [run[f"test_{run.selection}"] for _, run in finished.iterrows()]
    assert finished.score.tolist() == selected
    assert results.seeds.score.notna().sum() == len(finished)


@pytest.fixture
def kept(small: Path) -> Path:
    """A results folder with curves and predictions."""
    complete(small)
    return small


def test_curves_and_predictions_are_what_lies_beside_the_records(kept: Path) -> None:
    results = lra.load(kept)
    lines = [
        {**json.loads(line), "record": path.with_name(RECORD).relative_to(kept).as_posix()}
        for path in kept.rglob("metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    run = ["protocol", "task", "system", "seed"]
    curves = results.curves.merge(results.seeds[[*run, "record"]].astype({"task": object}), on=run)
    assert len(curves) == len(lines) > 0
    keys = ["record", "step"]
    beside = curves.merge(pd.DataFrame(lines), on=keys, suffixes=("", "_kept"))
    assert len(beside) == len(lines)
    assert (beside.val_loss == beside.val_loss_kept).all()

    right = 100 * results.predictions.groupby(run, observed=True).correct.mean()
    scores = results.seeds.set_index(run).score
    assert len(right) == 5
    assert right.to_dict() == pytest.approx({key: scores[key] for key in right.index})
    first = results.predictions.groupby(run, observed=True).example.agg(["min", "max", "count"])
    assert ((first["min"] == 0) & (first["max"] + 1 == first["count"])).all()


def test_receipts_are_read_as_they_are(kept: Path) -> None:
    results = lra.load(kept)
    frames = [results.seeds, results.curves, results.predictions]
    pack(kept)
    packed = lra.load(kept / RECEIPTS)
    for frame, other in zip(frames, [packed.seeds, packed.curves, packed.predictions], strict=True):
        pd.testing.assert_frame_equal(frame, other)


def test_a_verdict_is_that_of_the_table(results: Results, whole: Path) -> None:
    """But for Holm's correction; it does not depend on whether the two lie in one folder."""
    elsewhere, words = lra.load(whole), set()
    for column in (column for section in Report(whole).sections for column in section.columns):
        place = {"task": column.task, "protocol": column.key[0]}
        for row in column.rows:
            if row.verdict is None or row.verdict.reference not in {other.name for other in column.rows}:
                continue
            for there in (results, elsewhere):
                verdict = lra.compare(results.system(row.name, **place), there.system(row.verdict.reference, **place))
                assert verdict == replace(row.verdict, holm=None)
            words.add(verdict.word)
    assert words == {"better", "worse", "undecided"}


def test_a_margin_of_ones_own_makes_differences_small(results: Results) -> None:
    simple, other = (results.system(name, task="text", protocol="paper") for name in ("Simple", "Transformer"))
    assert lra.compare(simple, other, margin=90).word == "equivalent"
    assert lra.compare(simple, other).word != "equivalent"


@pytest.mark.parametrize("margin", [0, -1.0, float("nan"), float("inf")])
def test_a_margin_is_more_than_nothing(results: Results, margin: float) -> None:
    simple, other = (results.system(name, task="text", protocol="paper") for name in ("Simple", "Transformer"))
    with pytest.raises(lra.UserError, match=f"margin={margin}: expected points of accuracy"):
        lra.compare(simple, other, margin=margin)


def test_what_cannot_be_compared_is_said(results: Results, tmp_path: Path) -> None:
    simple = results.system("Simple", task="text", protocol="paper")
    with pytest.raises(lra.UserError, match="compared with itself"):
        lra.compare(simple, simple)
    with pytest.raises(lra.UserError, match="expected one task and one protocol"):
        lra.compare(simple, results.system("Simple", task="matching"))
    with pytest.raises(lra.UserError, match=r"no system 'Simpel'; did you mean 'Simple'\?"):
        results.system("Simpel")
    with pytest.raises(lra.UserError, match="'Simple' is in 5 columns, name one of them: task='text', "):
        results.system("Simple", protocol="paper")
    with pytest.raises(lra.UserError, match="no task='image'"):
        results.system("Simple", task="image")


def test_the_report_is_that_of_the_command(
    cli: Commands, small: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are left out here: they take seconds."""
    monkeypatch.setattr("lra.report.render.figures.write_figures", lambda *_: [])
    other = shutil.copytree(small, tmp_path_factory.mktemp("other") / small.name)
    page = lra.report(small)
    assert page == small / "README.md"
    assert cli(report_command.main, str(other))[0] == 0
    written = {path.name: path.read_bytes() for path in small.glob("*.*") if path.suffix != ".json"}
    assert written == {path.name: path.read_bytes() for path in other.glob("*.*") if path.suffix != ".json"}
    assert {"README.md", "index.html", "table1.tex"} <= written.keys()


def test_one_file_of_published_numbers_is_one(small: Path) -> None:
    with pytest.raises(lra.UserError, match=r"^nowhere.yaml: "):
        lra.report(small, published="nowhere.yaml")


def test_a_damaged_record_is_left_out_with_a_warning(small: Path) -> None:
    path = next(small.rglob(RECORD))
    path.write_text(path.read_text().replace("finished", "finnished"))
    with pytest.warns(UserWarning, match="not a readable record"):
        results = lra.load(small)
    assert len(results.seeds[results.seeds.record.notna()]) == len(list(small.rglob(RECORD))) - 1


@pytest.mark.slow
@pytest.mark.skipif(not (CHECKOUT / "results").exists(), reason="not a checkout")
@pytest.mark.parametrize(("name", "runs"), [("hour", 245), ("table1_small", 264)])
def test_kept_results_are_read_without_unpacking(name: str, runs: int) -> None:
    folder = CHECKOUT / "results" / name
    results = lra.load(folder / RECEIPTS)
    for column in (column for section in Report(folder).sections for column in section.columns):
        place = {"task": column.task, "protocol": column.key[0]}
        for row in (row for row in column.rows if row.verdict is not None):
            other = results.system(row.verdict.reference, **place)
            assert lra.compare(results.system(row.name, **place), other) == replace(row.verdict, holm=None)
    assert (results.seeds.status == "finished").sum() == runs
    right = 100 * results.predictions.groupby(["protocol", "task", "system", "seed"], observed=True).correct.mean()
    scores = results.seeds.set_index(["protocol", "task", "system", "seed"]).score
    assert right.to_dict() == pytest.approx({key: scores[key] for key in right.index})
