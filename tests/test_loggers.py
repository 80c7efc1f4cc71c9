"""Whatever loggers do, the run is the same and does not wait."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from logged import FOLDER, PATIENCE, a_run, events, expected, metrics, perform, scalars
from support import composed, strip_times

from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.records import record
from lra.records.names import CONFIG
from lra.runs.loggers import LoggedRun, Logger, Loggers, _Worker, loggers_of

pytestmark = pytest.mark.usefixtures("logging")


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


def digest() -> tuple:
    """What a run leaves, times left out."""
    run = record.read(FOLDER / record.NAME)
    del run["files"][record.METRICS]  # whose lines hold times
    for key in ("seconds", "tokens_per_second", "peak_memory_bytes", "resumes"):
        del run[key]
    for key in ("started", "finished"):
        del run["provenance"][key]
    lines = [strip_times(line) for line in metrics()]
    config = json.loads((FOLDER / CONFIG).read_text())
    return run, lines, config, (FOLDER / "weights.safetensors").read_bytes()


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


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_library_that_is_missing_is_said_before_the_run(without: None, name: str) -> None:
    with pytest.raises(UserError, match=rf"^logger={name}: {name} is not installed; pip install 'lra\[{name}\]'$"):
        perform(f"logger={name}")
    assert not FOLDER.exists() or not (FOLDER / record.NAME).exists()


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
    digests = []
    for number, (option, stand_in) in enumerate([("none", ()), ("all", ()), ("all", ("log", raising))]):
        wandb(*stand_in)
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert perform(f"logger={option}") == "finished"
        digests.append(digest())
    assert digests[0] == digests[1] == digests[2]


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
            loggers.log({"step": step, "train_loss": 1.5})
        assert Slow.steps == [], "all are logged while the first call hangs"
        over.set()
    assert Slow.steps == [*range(1000), -1]


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
