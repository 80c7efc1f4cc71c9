"""TensorBoard and Weights & Biases show the numbers of a run, and change none of them."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from time import sleep, time
from unittest.mock import MagicMock

import numpy as np
import pytest
from forked import TINY, exit_code, fork, inject, result
from support import job_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records import record
from lra.records.names import CONFIG, METRICS
from lra.runs.loggers import grouped
from lra.runs.run import run

FOLDER = Path("runs/listops/paper/simple/simple/seed1")
SHOWN = {
    "train/epoch": "epoch",
    "train/lr": "lr",
    "train/loss": "train_loss",
    "train/tokens": "tokens",
    "train/tokens_real": "tokens_real",
    "val/loss": "val_loss",
    "val/accuracy": "val_accuracy",
    "speed/seconds": "seconds",
}  # by the name in other tools, that in metrics.jsonl
KEY = "canary" * 7


def perform(*overrides: str) -> str:
    """Do a run in this process; returns its outcome, or the exit code of a pause."""
    try:
        return run(job_of(*TINY, *overrides))
    except Paused as pause:
        return str(pause.code)


def stopped(fault: str, *overrides: str) -> None:
    """Do a run in a child, which a fault may kill."""

    def work() -> int:
        inject(fault)
        return 0 if perform(*overrides) == "finished" else 1

    assert exit_code(fork(work)) == (-signal.SIGKILL if fault else 0)
    sleep(1 - time() % 1)  # TensorBoard reads files in the order of the seconds in their names


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Path]:
    """A killed and resumed run with all loggers, wandb offline; `plain`: the same without loggers."""
    folder = tmp_path_factory.mktemp("logged")
    with pytest.MonkeyPatch.context() as patch:
        clean(patch, folder, cache)
        patch.setenv("WANDB_API_KEY", KEY)
        both = ("logger=all", "logger.wandb.tags=[mine]")
        for fault in ("step:7:kill", ""):
            stopped(fault, *both)
        stopped("", "out=plain")
    return folder


def clean(patch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    patch.chdir(folder)
    patch.setenv("LRA_CACHE", str(cache))
    patch.setenv("HOME", str(folder / "home"))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        patch.delenv(name)


@pytest.fixture
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter an empty working folder, without this machine's own settings of wandb."""
    clean(monkeypatch, tmp_path, cache)


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def shown(line: dict) -> dict[str, float]:
    """Return the values that tools show for a line of metrics.jsonl."""
    rate = line["tokens"] / line["train_seconds"]
    return {**{name: line[key] for name, key in SHOWN.items()}, "speed/tokens_per_second": rate}


def summary_of(folder: Path) -> dict[str, object]:
    """The test result and the best trivial baseline of a record."""
    kept = record.read(folder / record.NAME)
    chosen = kept["test"]["last"]
    name = max(kept["baselines"], key=kept["baselines"].get)
    return {
        "test/accuracy": chosen["accuracy"],
        "test/loss": chosen["loss"],
        "test/best_baseline": kept["baselines"][name],
        "test/best_baseline_name": name,
        "test/step": chosen["step"],
    }


# ---------------------------------------------------------------- what the tools show


def test_values_are_grouped_by_name_and_numbers_that_json_has_not_are_left_out() -> None:
    line = {"step": 2, "val_loss": float("inf"), "train_loss": 1.5, "lr": float("nan"), "residual_norm": [3.0, None]}
    assert grouped(line | {"seconds": 7.0}) == {"train/loss": 1.5, "blocks/residual_norm/1": 3.0, "speed/seconds": 7.0}


def test_tensorboard_shows_every_step_of_an_interrupted_run_once(sweep: Path) -> None:
    folder = sweep / FOLDER
    events, lines, summary = EventAccumulator(str(folder)).Reload(), lines_of(folder), summary_of(folder)
    step = summary.pop("test/step")
    curves = {name: [(line["step"], shown(line)[name]) for line in lines] for name in shown(lines[0])}
    curves |= {name: [(step, value)] for name, value in summary.items() if not isinstance(value, str)}
    for name, points in curves.items():
        read = [(event.step, event.value) for event in events.Scalars(name)]
        assert read == [(at, float(np.float32(value))) for at, value in points], name
    assert set(events.Tags()["scalars"]) == set(curves)
    content, parse = events.PluginTagToContent("hparams"), plugin_data_pb2.HParamsPluginData.FromString
    parameters = parse(content["_hparams_/session_start_info"]).session_start_info.hparams
    assert sorted(parameters)[:5] == ["Attention", "Protocol", "Seed", "Task", "Variant"]
    assert parameters["Attention"].string_value == "simple"
    assert parameters["Seed"].number_value == 1
    assert parameters["train.steps"].number_value == 16
    assert parameters["train.betas"].string_value == "[0.9, 0.999]"
    metrics = [info.name.tag for info in parse(content["_hparams_/experiment"]).experiment.metric_infos]
    assert metrics == ["test/accuracy", "test/loss", "test/best_baseline"]
    assert parse(content["_hparams_/session_end_info"]).session_end_info.status == 1


def test_results_do_not_depend_on_loggers_and_no_key_is_written(sweep: Path) -> None:
    plain, logged = (result(sweep / out) for out in ("plain", "runs"))
    assert plain | {"files": None} == logged | {"files": None}
    assert [path for path in sweep.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []
    assert len([*(sweep / FOLDER).rglob("run-*.wandb")]) == 1


# ---------------------------------------------------------------- options


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_library_that_is_missing_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [*sys.modules, "wandb", "tensorboard"]:
        if module.split(".")[0] in ("wandb", "tensorboard") or module.startswith("torch.utils.tensorboard"):
            monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"^logger={name}: {name} is not installed"):
        perform(f"logger={name}")
    assert not (FOLDER / record.NAME).exists()


OWN = """
from pathlib import Path

class Own:
    def __init__(self, *, breaks: str, error: str) -> None:
        self.breaks, self.error = breaks, error
        if breaks == "init":
            raise ConnectionError("no network")

    def _called(self, method: str) -> None:
        with open("called", "a") as file:
            file.write(f"{self.breaks} {method} {any(Path('runs').rglob('record.json'))}\\n")
        if method == self.breaks:
            raise {"os": ConnectionError(""), "exit": SystemExit(3)}[self.error]

    def start(self, job): self._called("start")
    def log(self, step, values): self._called("log")
    def finish(self, step, test): self._called("finish")
"""


@pytest.mark.usefixtures("here")
def test_a_logger_that_fails_stops_neither_the_run_nor_other_loggers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Whatever method or error it is, the run finishes with its record, and other loggers end."""
    Path("own_loggers.py").write_text(OWN)
    monkeypatch.syspath_prepend(".")
    breaks = {"start": "os", "log": "exit", "finish": "os", "never": "os", "init": "os"}
    words = [
        f"+logger.{method}={{_target_: own_loggers.Own, breaks: {method}, error: {error}}}"
        for method, error in breaks.items()
    ]
    assert perform(*words) == "finished"
    lines = [line for line in capfd.readouterr().err.splitlines() if "logger Own." in line]
    assert [line.split("Own.")[1].split(" ")[0] for line in lines] == ["start", "log", "finish"]
    calls = Path("called").read_text().splitlines()
    assert [line.split()[1:] for line in calls if line.startswith("never")][-1] == ["finish", "True"]
    assert [line for line in calls if line.startswith("log")] == ["log start False", "log log False", "log finish True"]
    assert [line for line in calls if line.startswith("start")] == ["start start False"]


# ---------------------------------------------------------------- a mock of wandb


@pytest.fixture
def wandb(here: None, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A mock where `import wandb` finds the module; its run has no step yet."""
    module = MagicMock(__spec__=ModuleSpec("wandb", loader=None))
    module.init.return_value.step = 0
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_shows_a_run(wandb: MagicMock) -> None:
    assert perform("logger=wandb", "logger.wandb.tags=[mine]") == "finished"
    options, cell, run = wandb.init.call_args.kwargs, "listops simple/simple (paper)", wandb.init.return_value
    assert (options["group"], options["name"]) == (cell, f"{cell} seed 1")
    assert options["tags"] == ["listops", "simple", "paper", "mine"]
    assert options["config"].pop("cell")["attention"] == "simple"
    assert options["config"] == json.loads((FOLDER / CONFIG).read_text())
    logged = {call.kwargs["step"]: call.args[0] for call in run.log.call_args_list}
    assert logged == {line["step"]: shown(line) for line in lines_of(FOLDER)}
    run.summary.update.assert_called_once_with(summary_of(FOLDER))
    run.finish.assert_called_once_with(exit_code=0)


def test_a_resumed_run_keeps_its_id_and_sends_what_is_missing(wandb: MagicMock) -> None:
    run = wandb.init.return_value
    assert perform("logger=wandb", "sweep_minutes=0.0001") == "75"
    run.finish.assert_called_once_with(exit_code=1)
    run.summary.update.assert_not_called()
    first = wandb.init.call_args.kwargs["id"]
    stopped("step:11:kill")
    run.step = 6
    run.log.reset_mock()
    assert perform("logger=wandb") == "finished"
    assert (wandb.init.call_args.kwargs["id"], wandb.init.call_args.kwargs["resume"]) == (first, "allow")
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [10, 15, 16]
    (FOLDER / "wandb/run-1").mkdir(parents=True)  # which the mock leaves out
    wandb.init.reset_mock()
    assert perform("logger=wandb") == "skipped"
    wandb.init.assert_not_called()
