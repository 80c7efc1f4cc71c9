"""Loggers change no number of a run."""

import json
import sys
from pathlib import Path

import pytest
import torch
from logged import FOLDER, a_run, metrics, perform
from support import composed, strip_times

from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.records import record
from lra.records.names import CONFIG
from lra.runs.loggers import Loggers, loggers_of

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
        ("logger.wandb.mode=on", "logger.wandb.mode=on: should be 'offline', 'online' or 'disabled'"),
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


def test_results_do_not_depend_on_loggers(wandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digests = []
    for number, (option, stand_in) in enumerate([("none", ()), ("all", ())]):
        wandb(*stand_in)
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert perform(f"logger={option}") == "finished"
        digests.append(digest())
    assert digests[0] == digests[1]


# ---------------------------------------------------------------- what a logger may do


def test_a_logger_that_fails_ends_the_run_and_the_run_resumes_without_it(wandb, capfd: pytest.CaptureFixture) -> None:
    """Never silently."""
    assert perform("logger=none", "out=whole") == "finished"
    wandb("log", raising)
    assert perform("logger=wandb") == "failed"
    assert "failed: RuntimeError: two" in capfd.readouterr().err
    assert perform("logger=none") == "finished"
    whole, made = (
        [strip_times(json.loads(line)) for line in (out / record.METRICS).read_text().splitlines()]
        for out in (Path("whole") / FOLDER.relative_to("runs"), FOLDER)
    )
    assert made == whole


def test_nothing_is_drawn_by_loggers(wandb) -> None:
    wandb()
    torch.manual_seed(3)
    with Loggers(loggers_of(settings_of(composed("logger=all"))), a_run(Path("."))) as loggers:
        loggers.start(b"")
        loggers.log({"step": 1, "val_loss": 0.5})
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
