"""Weights & Biases: most tests run with a stand-in that writes down what it is told; one runs the real one, offline."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from logged import FOLDER, SHORT, events, expected, metrics, perform, scalars, shown, stopped

import lra.runs.trainer
from lra.core.errors import UserError
from lra.records import record
from lra.records.names import CONFIG

pytestmark = pytest.mark.usefixtures("logging")


def test_wandb_is_told_what_the_run_is(wandb) -> None:
    stand_in = wandb()
    assert perform("logger=wandb", "logger.wandb.tags=[a,b]") == "finished"
    told = stand_in.told
    assert told["group"] == "listops simple/simple (paper)"
    assert (told["name"], told["job_type"]) == ("listops simple/simple (paper) seed 1", "train")
    assert told["tags"] == ["a", "b"]
    assert (told["mode"], told["project"], told["entity"]) == ("offline", "lra", None)
    assert told["config"] == json.loads((FOLDER / CONFIG).read_text())
    assert told["exit_code"] == 0
    assert stand_in.lines == [(line["step"], shown(line)) for line in metrics()]
    chosen = record.read(FOLDER / record.NAME)["test"]["best_val"]
    assert told["summary"] == {
        "test/accuracy": chosen["accuracy"],
        "test/loss": chosen["loss"],
        "test/step": chosen["step"],
    }


def test_seeds_share_a_group_and_nothing_else(wandb) -> None:
    told = []
    for overrides in (("seed=1",), ("seed=2",), ("seed=1", "attention=softmax"), ("seed=1", "out=elsewhere")):
        stand_in = wandb()
        assert perform("logger=wandb", "train.steps=5", *overrides) == "finished"
        told.append(stand_in.told)
    assert len({run["id"] for run in told}) == 4
    assert told[0]["group"] == told[1]["group"] == told[3]["group"] == "listops simple/simple (paper)"
    assert told[2]["group"] == "listops softmax/transformer (paper)"
    assert told[1]["name"] == "listops simple/simple (paper) seed 2"


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
        monkeypatch.setattr(lra.runs.trainer, "fit", broken)
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


KEY = "canary" * 7


def test_a_real_offline_run_that_is_stopped_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """With all of the metrics in one folder; the key reaches no file."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    stopped("step:14:term", "logger=wandb")
    stopped("", "logger=wandb")
    assert "wandb" not in "".join(capfd.readouterr())
    check_offline_runs("seed1")
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_a_sweep_gives_one_offline_run_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    command = [sys.executable, "-W", "error::UserWarning", "-m", "lra", "train", "--multirun", *SHORT]
    done = subprocess.run([*command, "logger=all", "seed=1,2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wandb" not in done.stderr + done.stdout
    check_offline_runs("seed1", "seed2")
    for seed in ("seed1", "seed2"):
        assert scalars(events(FOLDER.with_name(seed))) == expected(metrics(seed))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def check_offline_runs(*seeds: str) -> None:
    """Runs of one cell, one folder each, with all of the metrics."""
    paths = {path.relative_to("runs").parts[4]: path for path in sorted(Path("runs").rglob("run-*.wandb"))}
    assert set(paths) == set(seeds)
    assert len(list(Path("runs").rglob("offline-run-*"))) == len(seeds)
    for seed, path in paths.items():
        run, lines, exit_code = logged(path)
        assert run.run_group == "listops simple/simple (paper)"
        assert run.display_name == f"listops simple/simple (paper) seed {seed.removeprefix('seed')}"
        assert exit_code == 0
        told = [{name: value for name, value in line.items() if not name.startswith("_")} for line in lines]
        assert [line["_step"] for line in lines] == [line["step"] for line in metrics(seed)]
        assert told == [shown(line) for line in metrics(seed)]


def logged(path: Path) -> tuple:
    """The run, its lines and its exit code in a file of wandb."""
    from wandb.proto.wandb_internal_pb2 import Record

    run, lines, exit_code = None, [], None
    for data in log_records(path.read_bytes()):
        entry = Record.FromString(data)
        if entry.HasField("run"):
            run = entry.run
        if entry.HasField("history"):
            lines.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in entry.history.item}
            )
        if entry.HasField("exit"):
            exit_code = entry.exit.exit_code
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
