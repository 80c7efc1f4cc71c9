"""Loggers show what `metrics.jsonl` holds; whatever they do, the run is the same and does not wait.

Most tests run with a stand-in for wandb that writes down what it is told; one runs the real one, offline.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import composed, job_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import lra.runs.course
from lra.config.cell import cell_of
from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records import record
from lra.records.names import CONFIG
from lra.runs.folder import run
from lra.runs.loggers import LoggedRun, Logger, Loggers, TensorBoard, _Worker, loggers_of

SHORT = (
    "task=listops",
    *(f"task.{key}" for key in ("train_size=97", "val_size=31", "test_size=37", "min_length=5", "max_length=40")),
    "task.max_depth=4",
    *(f"model.{key}" for key in ("dim=6", "heads=3", "depth=1", "mlp_dim=7")),
    *(f"train.{key}" for key in ("steps=18", "batch_size=7", "micro_batch=7", "eval_every=4", "warmup=5")),
    "threads=1",
    "checkpoint.steps=5",
    "checkpoint.keep=true",
)
FOLDER = Path("runs/listops/paper/simple/simple/seed1")
SHOWN = ("epoch", "lr", "train_loss", "val_loss", "val_accuracy", "seconds", "tokens", "tokens_real")
PATIENCE = 0.5


@pytest.fixture(autouse=True)
def place(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, and nothing of this machine's own wandb."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


class StandIn:
    """In the place of the module wandb and of its run. At the call `trouble`, `act` is called before anything else."""

    def __init__(self, trouble: str = "", act=lambda: None, step: int = 0) -> None:
        self.trouble, self.act, self.step = trouble, act, step
        self.called: list[str] = []
        self.told: dict = {}
        self.lines: list[tuple[int, dict]] = []
        self.summary = SimpleNamespace(update=lambda values: self._called("summary", {"summary": values}))

    def _called(self, call: str, told: dict | None = None) -> None:
        self.called.append(call)
        if call == self.trouble:
            self.act()
        self.told |= told or {}

    def setup(self, settings: object) -> None:
        pass

    def Settings(self, **settings: object) -> dict:
        return settings

    def login(self, **_: object) -> bool:
        self._called("login")
        return False

    def init(self, **options: object) -> "StandIn":
        self._called("init", options)
        return self

    def log(self, values: dict, step: int) -> None:
        self._called("log")
        assert step >= self.step
        self.step = step + 1
        self.lines.append((step, values))

    def finish(self, exit_code: int) -> None:
        self._called("finish", {"exit_code": exit_code})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch):
    """A function that puts a stand-in where `import wandb` finds it."""

    def make(*options: object, **more: object) -> StandIn:
        stand_in = StandIn(*options, **more)
        monkeypatch.setitem(sys.modules, "wandb", stand_in)
        return stand_in

    return make


def perform(*overrides: str) -> str:
    """A run in this process; the outcome, or the exit code of a pause."""
    cfg = composed(*SHORT, *overrides)
    try:
        return run(job_of(settings_of(cfg), cell_of(cfg, cfg.hydra, [])))
    except Paused as pause:
        return str(pause.code)


def stopped(fault: str, *overrides: str) -> None:
    """The same in a process of its own, which a fault ends. The loggers have written what they were told by then."""
    child = os.fork()
    if child == 0:
        os.environ["LRA_FAULT"] = fault
        _Worker.do = waited_for(_Worker.do)
        try:
            perform(*overrides)
        finally:
            os._exit(0)  # not the hooks of pytest
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGKILL if "kill" in fault else 0)


def waited_for(do: Callable) -> Callable:
    """`_Worker.do` that returns when the call is over."""

    def do_and_wait(worker: _Worker, call: Callable | None) -> None:
        do(worker, call)
        over = threading.Event()
        do(worker, over.set)
        assert call is None or over.wait(60)

    return do_and_wait


def metrics(seed: str = "seed1") -> list[dict]:
    return [json.loads(line) for line in (FOLDER.with_name(seed) / record.METRICS).read_text().splitlines()]


def digest() -> tuple:
    """What a run leaves, times left out."""
    found = record.read(FOLDER / record.NAME)
    del found["files"][record.METRICS]  # whose lines hold times
    for key in ("seconds", "tokens_per_second", "peak_memory_bytes", "resumes"):
        del found[key]
    for key in ("started", "finished"):
        del found["provenance"][key]
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in metrics()]
    config = json.loads((FOLDER / CONFIG).read_text())
    return found, lines, config, (FOLDER / "weights.safetensors").read_bytes()


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def scalars(found: EventAccumulator, names: tuple[str, ...] = SHOWN) -> dict[str, list[tuple[int, float]]]:
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in names}


def expected(lines: list[dict]) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard keeps float32."""
    return {name: [(line["step"], float(np.float32(line[name]))) for line in lines] for name in SHOWN}


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("option", "names"),
    [
        (None, set()),
        ("none", set()),
        ("tensorboard", {"tensorboard"}),
        ("wandb", {"wandb"}),
        ("[tensorboard,wandb]", {"tensorboard", "wandb"}),
        ("all", {"tensorboard", "wandb"}),
    ],
)
def test_each_option_adds_one_logger(option: str | None, names: set[str]) -> None:
    settings = settings_of(composed(*([f"logger={option}"] if option else [])))
    assert set(loggers_of(settings)) == names
    assert settings.identity == settings_of(composed()).identity


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+logger.wandb.projekt=x", "logger.wandb.projekt: unknown key; did you mean 'project'"),
        ("logger.wandb.mode=on", "logger.wandb.mode=on: should be 'offline' or 'online'"),
        ("logger.wandb.patience=0", "logger.wandb.patience=0: should be greater than 0"),
        ("logger.wandb._target_=os.system", "logger.wandb._target_=os.system: not in a trusted package"),
        ("+logger.mine=3", "logger.mine: expected options with a _target_, got 3"),
    ],
)
def test_a_mistake_is_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        loggers_of(settings_of(composed("logger=wandb", override)))
    assert str(caught.value).startswith(message)


def test_wandb_is_offline_unless_the_environment_or_an_option_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loggers_of(settings_of(composed("logger=wandb")))["wandb"].mode == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert loggers_of(settings_of(composed("logger=wandb")))["wandb"].mode == "online"
    assert loggers_of(settings_of(composed("logger=wandb", "logger.wandb.mode=offline")))["wandb"].mode == "offline"


# ---------------------------------------------------------------- the run is the same


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither library can be imported."""
    for name in [*sys.modules, "wandb", "tensorboard"]:
        if name.split(".")[0] in ("wandb", "tensorboard") or name.startswith("torch.utils.tensorboard"):
            monkeypatch.setitem(sys.modules, name, None)


def test_without_loggers_neither_library_is_needed(without: None, capfd: pytest.CaptureFixture) -> None:
    settings_of(composed("logger=all"))
    assert perform() == "finished"
    assert "logger" not in capfd.readouterr().err


def test_a_library_that_is_missing_is_said_and_the_run_goes_on(without: None, capfd: pytest.CaptureFixture) -> None:
    assert perform("logger=all") == "finished"
    said = [line for line in capfd.readouterr().err.splitlines() if "logger" in line]
    assert sorted(line.split(":")[1] for line in said) == [" logger.tensorboard", " logger.wandb"]
    assert all(line.endswith("the run goes on without it") for line in said)


def raising() -> None:
    raise RuntimeError("two\n lines")


@pytest.fixture
def hang():
    """A function that does not return before the test is over, which its attribute `returned` says."""
    over = threading.Event()

    def act() -> None:
        over.wait(600)
        act.returned = True

    act.returned = False
    yield act
    over.set()


def test_results_do_not_depend_on_loggers(wandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for number, (option, stand_in) in enumerate([("none", ()), ("all", ()), ("all", ("log", raising))]):
        wandb(*stand_in)
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert perform(f"logger={option}") == "finished"
        found.append(digest())
    assert found[0] == found[1] == found[2]


# ---------------------------------------------------------------- loggers that fail


@pytest.mark.parametrize(
    ("trouble", "act"),
    [("init", raising), ("log", raising), ("summary", raising), ("finish", raising), ("init", sys.exit)],
)
def test_a_logger_that_fails_is_named_once_and_hears_no_more(
    wandb, trouble: str, act, capfd: pytest.CaptureFixture
) -> None:
    stand_in = wandb(trouble, act)
    assert perform("logger=all") == "finished"
    said = [line for line in capfd.readouterr().err.splitlines() if "logger" in line]
    reason = "RuntimeError: two lines" if act is raising else "SystemExit:"
    assert said == [f"test: logger.wandb: {reason}; the run goes on without it"]
    assert stand_in.called[-1] == trouble
    assert stand_in.called.count(trouble) == 1
    assert scalars(events(FOLDER)) == expected(metrics())


@pytest.mark.parametrize("trouble", ["init", "log", "finish"])
def test_a_logger_that_hangs_costs_its_patience_at_the_end(
    wandb, hang, trouble: str, capfd: pytest.CaptureFixture
) -> None:
    stand_in = wandb(trouble, hang)
    begun = time.monotonic()
    assert perform("logger=wandb", f"logger.wandb.patience={PATIENCE}") == "finished"
    assert time.monotonic() - begun > PATIENCE
    assert not hang.returned, "the run did not wait for its end"
    said = [line for line in capfd.readouterr().err.splitlines() if "logger" in line]
    assert said == [f"test: logger.wandb: not done after {PATIENCE} s; the run goes on without it"]
    assert stand_in.called[-1] == trouble
    assert len(metrics()) == 5


def test_several_that_hang_cost_the_longest_patience_and_wake_to_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the sum: by what they are waited for, on a clock that stands still but for that."""
    over, called, now = threading.Event(), [], [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def join(_worker: _Worker, patience: float) -> None:
        now[0] += patience

    class Slow(Logger):
        patience = PATIENCE

        def open(self, run: LoggedRun) -> None:
            over.wait(600)
            raise RuntimeError("late")

        def log(self, step: int, values: dict[str, float]) -> None:
            called.append("log")

        def close(self, step: int, test: dict[str, float]) -> None:
            called.append("close")

    with monkeypatch.context() as patch, Loggers(dict.fromkeys("abcdefgh", Slow()), a_run(tmp_path), "test") as loggers:
        patch.setattr(_Worker, "join", join)
        loggers.start(b"")
        loggers.log({"step": 1, "loss": 2.0})
        workers = [thread for thread in threading.enumerate() if isinstance(thread, _Worker)]
    assert now[0] == pytest.approx(100 + PATIENCE)
    assert len(workers) == 8
    over.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert called == []
    assert capfd.readouterr().err.count("\n") == 8


def test_a_run_waits_for_a_slow_logger_no_longer_than_a_queue_takes(tmp_path: Path) -> None:
    """A thousand evaluations while a call hangs."""
    over = threading.Event()

    class Slow(Logger):
        patience = 600.0
        steps: list[int] = []  # noqa: RUF012

        def open(self, run: LoggedRun) -> None:
            over.wait(600)

        def log(self, step: int, values: dict[str, float]) -> None:
            self.steps.append(step)

        def close(self, step: int, test: dict[str, float]) -> None:
            self.steps.append(-1)

    with Loggers({"slow": Slow()}, a_run(tmp_path), "test") as loggers:
        loggers.start(b"")
        for step in range(1000):
            loggers.log({"step": step, **dict.fromkeys(SHOWN, 1.5)})
        assert Slow.steps == [], "all are logged while the first call hangs"
        over.set()
    assert Slow.steps == [*range(1000), -1]


def a_run(folder: Path) -> LoggedRun:
    return LoggedRun(folder=folder, group="g", seed=3, config={"train": {"lr": 0.1, "betas": [0.9], "clip": None}})


# ---------------------------------------------------------------- TensorBoard


def test_tensorboard_shows_the_metrics_and_the_test(tmp_path: Path) -> None:
    assert perform("logger=tensorboard") == "finished"
    found = events(FOLDER)
    assert scalars(found) == expected(metrics())
    chosen = record.read(FOLDER / record.NAME)["test"]["best_val"]
    for name in ("accuracy", "loss"):
        assert scalars(found, (f"test_{name}",))[f"test_{name}"] == [(chosen["step"], float(np.float32(chosen[name])))]
    assert [path for path in FOLDER.iterdir() if path.is_dir()] == []
    assert len(list(FOLDER.glob("events*"))) == 1


def test_tensorboard_leaves_alone_what_a_link_leads_to() -> None:
    precious = Path("precious")
    precious.write_text("kept")
    FOLDER.mkdir(parents=True)
    link = FOLDER / "events.out.tfevents.7"
    link.symlink_to(precious.resolve())
    assert perform("logger=tensorboard") == "finished"
    assert precious.read_text() == "kept"
    assert not link.is_symlink()


def test_tensorboard_has_every_setting_as_a_hyperparameter() -> None:
    assert perform("logger=tensorboard") == "finished"
    content = events(FOLDER).PluginTagToContent("hparams")
    read = plugin_data_pb2.HParamsPluginData.FromString
    start = read(content["_hparams_/session_start_info"]).session_start_info.hparams
    assert start["train.steps"].number_value == 18
    assert start["seed"].number_value == 1
    assert start["model.out_proj"].bool_value is False
    assert start["train.betas"].string_value == "[0.9, 0.999]"
    assert read(content["_hparams_/session_end_info"]).session_end_info.status == 1


@pytest.mark.parametrize("fault", ["step:3:kill", "step:14:kill", "checkpoint listed:2:kill", "step:9:term"])
def test_tensorboard_is_the_metrics_after_any_number_of_stops(fault: str) -> None:
    for stop in (fault, "step:3:kill"):
        stopped(stop, "logger=tensorboard")
    assert perform("logger=tensorboard") == "finished"
    lines = metrics()
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 18]
    assert scalars(events(FOLDER)) == expected(lines)
    sizes = [path.stat().st_size for path in FOLDER.glob("events*")]
    assert (len(sizes), min(sizes), max(sizes) > 0) == (2, 0, True)


def test_a_server_that_looks_on_sees_the_steps_once() -> None:
    """It has read steps after the checkpoint, which are then written again in another file."""
    stopped("step:17:kill", "logger=tensorboard")
    server = events(FOLDER)
    assert [event.step for event in server.Scalars("val_loss")] == [4, 8, 12, 16]
    time.sleep(1.1)  # it reads files in the order of their names, which have the second in them
    assert perform("logger=tensorboard") == "finished"
    assert scalars(server.Reload()) == expected(metrics())


def test_a_full_disk_ends_the_logger_and_not_the_run(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """/dev/full: no space for anything."""

    class Full(TensorBoard):
        def open(self, run: LoggedRun) -> None:
            super().open(run)
            self._path = Path("/dev/full")

    with Loggers({"tensorboard": Full(patience=PATIENCE)}, a_run(tmp_path), "test") as loggers:
        loggers.start(b"")
        loggers.log({"step": 1, "train_loss": 2.5})
    assert capfd.readouterr().err == (
        "test: logger.tensorboard: OSError: [Errno 28] No space left on device; the run goes on without it\n"
    )


def test_numbers_that_json_has_not_are_left_out(tmp_path: Path) -> None:
    loggers = loggers_of(settings_of(composed("logger=tensorboard")))
    with Loggers(loggers, a_run(tmp_path), "test") as both:
        both.start(b'{"step": 1, "val_loss": null, "train_loss": 2.5}\n')
        both.log({"step": 2, "val_loss": float("inf"), "train_loss": 1.5})
        both.log({"step": 3, "val_loss": 0.5, "train_loss": float("nan")})
    assert scalars(events(tmp_path), ("train_loss", "val_loss")) == {
        "train_loss": [(1, 2.5), (2, 1.5)],
        "val_loss": [(3, 0.5)],
    }


def test_a_damaged_history_ends_the_logger_and_not_the_run(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    with Loggers(loggers_of(settings_of(composed("logger=tensorboard"))), a_run(tmp_path), "test") as loggers:
        loggers.start(b'{"step": 1, "train_loss": 2.5}\n{"st')
    assert "logger.tensorboard: JSONDecodeError" in capfd.readouterr().err


# ---------------------------------------------------------------- wandb


def test_wandb_is_told_what_the_run_is(wandb) -> None:
    stand_in = wandb()
    assert perform("logger=wandb", "logger.wandb.tags=[a,b]", "logger.wandb.init_seconds=7") == "finished"
    told = stand_in.told
    assert told["group"] == "listops-simple-simple-paper"
    assert (told["name"], told["job_type"], told["tags"]) == ("seed=1", "train", ["a", "b"])
    assert (told["mode"], told["project"], told["entity"]) == ("offline", "lra", None)
    assert told["config"] == json.loads((FOLDER / CONFIG).read_text())
    assert told["settings"]["init_timeout"] == 7
    assert told["exit_code"] == 0
    assert stand_in.lines == [(line["step"], {name: line[name] for name in SHOWN}) for line in metrics()]
    chosen = record.read(FOLDER / record.NAME)["test"]["best_val"]
    assert told["summary"] == {
        "test_accuracy": chosen["accuracy"],
        "test_loss": chosen["loss"],
        "test_step": chosen["step"],
    }


def test_seeds_share_a_group_and_nothing_else(wandb) -> None:
    told = []
    for overrides in (("seed=1",), ("seed=2",), ("seed=1", "attention=softmax"), ("seed=1", "out=elsewhere")):
        stand_in = wandb()
        assert perform("logger=wandb", "train.steps=5", *overrides) == "finished"
        told.append(stand_in.told)
    assert len({one["id"] for one in told}) == 4
    assert told[0]["group"] == told[1]["group"] != told[2]["group"] == "listops-softmax-transformer-paper"
    assert told[1]["name"] == "seed=2"


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("the machine is on fire")


@pytest.mark.parametrize(
    ("outcome", "overrides"),
    [("diverged", ("train.lr=1e30",)), ("failed", ()), ("75", ("train.minutes=0.0001",))],
)
def test_a_run_that_did_not_finish_is_not_shown_as_finished(
    wandb, outcome: str, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if outcome == "failed":
        monkeypatch.setattr(lra.runs.course, "fit", broken)
    stand_in = wandb()
    assert perform("logger=wandb", *overrides) == outcome
    assert stand_in.told["exit_code"] == 1
    assert "summary" not in stand_in.called


def test_a_run_that_goes_on_keeps_its_id_and_sends_what_is_missing(wandb) -> None:
    first = wandb()
    assert perform("logger=wandb", "train.minutes=0.0001") == "75"
    stopped("step:14:kill", "logger=tensorboard")
    resumed = wandb(step=9)
    assert perform("logger=wandb") == "finished"
    assert resumed.told["id"] == first.told["id"]
    assert resumed.told["resume"] == "allow"
    assert [step for step, _ in resumed.lines] == [12, 16, 18]


def test_a_run_that_is_done_or_refused_is_not_logged_again(wandb) -> None:
    assert perform() == "finished"
    stand_in = wandb()
    assert perform("logger=all") == "skipped"
    with pytest.raises(UserError, match="another configuration"):
        perform("logger=all", "train.lr=0.1")
    assert stand_in.called == []
    assert not list(FOLDER.glob("events*"))


def test_online_without_a_key_nobody_is_asked_for_one(wandb, capfd: pytest.CaptureFixture) -> None:
    stand_in = wandb()
    assert perform("logger=wandb", "logger.wandb.mode=online") == "finished"
    assert stand_in.called == ["login"]
    assert "logger.wandb: RuntimeError: no API key; set WANDB_API_KEY" in capfd.readouterr().err


KEY = "canary" * 7
PATIENT = "logger.wandb.patience=60"  # where the machine is busy


def test_a_real_offline_run_that_is_stopped_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """With all of the metrics in one folder; the key reaches no file."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    stopped("step:14:term", "logger=wandb", PATIENT)
    stopped("", "logger=wandb", PATIENT)
    assert "wandb" not in "".join(capfd.readouterr())
    check_offline_runs("seed1")
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_a_sweep_gives_one_offline_run_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    command = [sys.executable, "-W", "error::UserWarning", "-m", "lra", "train", "--multirun", *SHORT]
    done = subprocess.run([*command, "logger=all", PATIENT, "seed=1,2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wandb" not in done.stderr + done.stdout
    check_offline_runs("seed1", "seed2")
    for seed in ("seed1", "seed2"):
        assert scalars(events(FOLDER.with_name(seed))) == expected(metrics(seed))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def check_offline_runs(*seeds: str) -> None:
    """Runs of one cell, one folder each, with all of the metrics."""
    found = {path.relative_to("runs").parts[4]: path for path in sorted(Path("runs").rglob("run-*.wandb"))}
    assert set(found) == set(seeds)
    assert len(list(Path("runs").rglob("offline-run-*"))) == len(seeds)
    for seed, path in found.items():
        run, lines, exit_code = logged(path)
        assert (run.run_group, run.display_name) == ("listops-simple-simple-paper", seed.replace("seed", "seed="))
        assert exit_code == 0
        names = ("step", *SHOWN)
        assert [[line["_step"], *(line[name] for name in SHOWN)] for line in lines] == [
            [line[name] for name in names] for line in metrics(seed)
        ]


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_costs_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    command = [sys.executable, "-m", "lra", "train", *SHORT, "logger=wandb", "logger.wandb.mode=online"]
    command += ["logger.wandb.init_seconds=3"]  # wandb itself would try for 90
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=85)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("logger.wandb") == done.stderr.count("wandb") == 1
    assert KEY not in done.stderr


def logged(path: Path) -> tuple:
    """The run, its lines and its exit code in a file of wandb."""
    from wandb.proto.wandb_internal_pb2 import Record

    run, lines, exit_code = None, [], None
    for data in log_records(path.read_bytes()):
        one = Record.FromString(data)
        if one.HasField("run"):
            run = one.run
        if one.HasField("history"):
            lines.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
            )
        if one.HasField("exit"):
            exit_code = one.exit.exit_code
    return run, lines, exit_code


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB; each part of a record has a checksum, a length and a kind."""
    place, record = 7, b""
    while place < len(data):
        if -place % 2**15 < 7:
            place += -place % 2**15
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += 7
        record += data[place : place + length]
        place += length
        if kind in (1, 4):
            yield record
            record = b""


def test_threads_are_gone_after_a_run(wandb) -> None:
    wandb()
    before = set(threading.enumerate())
    assert perform("logger=all") == "finished"
    assert set(threading.enumerate()) <= before


def test_nothing_is_drawn_by_loggers(wandb) -> None:
    wandb()
    torch.manual_seed(3)
    with Loggers(loggers_of(settings_of(composed("logger=all"))), a_run(Path(".")), "test") as loggers:
        loggers.start(b"")
        loggers.log({"step": 1, "val_loss": 0.5})
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
