"""Killed or stopped anywhere, any number of times, a run ends with the same bytes as an undisturbed one."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import result, run_folder, trained

from lra.core.errors import UserError
from lra.records import checkpoint, names, record
from lra.runs import trainer
from lra.training import evaluate, fit

KILLED = -signal.SIGKILL
SIMPLE = ("attention=simple",)
PERFORMER = ("attention=performer", "attention.redraw_every=5", "precision=bf16")
PRETRAINED = ("pretrain=masked", "pretrain.train.steps=8", "pretrain.train.warmup=3", *SIMPLE)
PATIENT = (*SIMPLE, "train.lr=1e-30", "train.patience=1", "train.eval_every=3", "train.schedule=constant")
STEPS = [(f"step:{step}:kill", KILLED) for step in (2, 5, 3)]  # between checkpoints, at one, after a resume
EVERYWHERE = [(f"{point}:kill", KILLED) for point in ("step:7", "evaluation:2", "step:1", "checkpoint listed:1")]
WRITTEN, RENAMED = (
    [(f"file {place}:{number}:kill", KILLED) for number in (2, 3, 1)] for place in ("written", "renamed")
)

INTERRUPTED: dict[str, tuple[tuple[str, ...], list[tuple[str, int]]]] = {
    "accumulated": (SIMPLE, STEPS),
    "random features in bf16": (PERFORMER, STEPS),
    "norm over the batch, groups of parameters": (
        (
            "attention=s4d",
            "model.pooling=mean",
            "model.norm_over=batch",
            "train.micro_batch=7",
            "train.groups={state: {rate: 0.001, weight_decay: 0}, step: {rate: null, weight_decay: 0}}",
        ),
        STEPS,
    ),
    "pretraining": (
        PRETRAINED,
        [("step:4:kill", KILLED), ("evaluation:1:term", 143), ("step:9:kill", KILLED), ("step:3:term", 143)],
    ),
    "early stopping": ((*PATIENT, "train.cooldown=4", "train.goal=100"), EVERYWHERE),
    "solved": ((*SIMPLE, "train.goal=0.001"), [("step:7:kill", KILLED), ("evaluation:1:kill", KILLED)]),
    "file written": (SIMPLE, WRITTEN),
    "checkpoint listed": (SIMPLE, [("checkpoint listed:2:kill", KILLED), ("checkpoint listed:1:term", 143)]),
    "signals": (SIMPLE, [("step:5:term", 143), ("step:2:int", 130), ("evaluation:1:hup", 129)]),
    "full disk": (SIMPLE, [("file written:9:full", 2)]),
}
SLOW: dict[str, tuple[tuple[str, ...], list[tuple[str, int]]]] = {
    "own recipe": (("attention=softmax", "protocol=strict"), STEPS),
    "hashes": (("attention=reformer", "attention.chunk=5", "attention.redraw_every=3", "train.micro_batch=7"), STEPS),
    "noise": (("attention=sinkhorn", "attention.block=7"), STEPS),
    "frozen": (("attention=softmax", "train.freeze=[qkv,embedding]", "train.layer_decay=0.8"), STEPS),
    "out of patience": (PATIENT, EVERYWHERE),
    "progress": ((*SIMPLE, "train.lr=0.01", "train.progress=0.999", "train.patience=2"), EVERYWHERE),
    "file renamed": (SIMPLE, RENAMED),
    "signals while saving": (SIMPLE, [("file written:5:int", 130), ("checkpoint listed:2:hup", 129)]),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., dict]:
    """Return the results of undisturbed runs by their overrides; each is run once."""
    known: dict[tuple[str, ...], dict] = {}

    def make(*overrides: str) -> dict:
        if overrides not in known:
            folder = tmp_path_factory.mktemp("whole")
            assert trained(*overrides, f"out={folder}", f"cache={folder}/cache") == 0
            known[overrides] = result(folder / "listops")
        return known[overrides]

    return make


@pytest.fixture(autouse=True)
def elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))


@pytest.mark.parametrize("name", [*INTERRUPTED, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_interrupted_run_ends_with_the_same_bytes(whole, name: str) -> None:
    overrides, faults = (INTERRUPTED | SLOW)[name]
    expected = whole(*overrides)
    here = ("out=runs", f"cache={Path('cache').absolute()}") if "pretrain=masked" in overrides else ("out=runs",)
    for fault, code in faults:
        assert trained(*overrides, *here, fault=fault) == code, fault
        if code > 2 and "pretrain=masked" not in overrides:
            assert record.read(run_folder() / record.NAME)["status"] == "paused"
            assert checkpoint.read(run_folder()) is not None
    assert trained(*overrides, *here) == 0
    assert result("runs") == expected
    assert not list(run_folder().glob("*.tmp"))


def test_runs_end_early_where_their_recipe_says_so(whole) -> None:
    """Without a better validation, after four steps of cooldown; or solved, by a low goal."""
    cooled, solved = (whole(*INTERRUPTED[name][0]) for name in ("early stopping", "solved"))
    assert (cooled["record"]["ended"], cooled["record"]["reached"]) == ("no progress", {})
    assert [line["step"] for line in cooled["metrics"]] == [3, 6, 9, 12, 13]
    assert [round(line["lr"] / 1e-30, 9) for line in cooled["metrics"]] == [0.5, 1, 1, 0.5, 0.25]
    assert solved["record"]["ended"] == "solved"
    assert [line["step"] for line in solved["metrics"]] == [5, 10]
    assert "ended" not in whole(*SIMPLE)["record"]


def test_a_pretraining_that_was_killed_at_its_end_is_tidied(whole) -> None:
    here = (*PRETRAINED, "out=runs", f"cache={Path('cache').absolute()}")
    assert trained(*here) == 0
    assert result("runs")["metrics"][0]["phase"] == "pretrain"
    [weights] = Path("cache/pretrained").rglob(names.WEIGHTS)
    before = sorted(weights.parent.iterdir())
    weights.with_name("checkpoint-3.safetensors").write_bytes(b"of step 3")
    (run_folder() / names.RECORD).unlink()
    assert trained(*here) == 0
    assert sorted(weights.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("modules", "faults"),
    [
        ((fit, evaluate), [("step:5:kill", KILLED), ("step:3:term", 143)]),
        ((trainer,), [("file written:3:kill", KILLED), ("step:5:term", 143)]),
        ((trainer,), [("checkpoint listed:2:kill", KILLED), ("file written:5:full", 2)]),
    ],
    ids=["late losses", "background checkpoint", "full disk in the background"],
)
def test_an_interrupted_run_on_an_accelerator(
    whole, monkeypatch: pytest.MonkeyPatch, modules: tuple, faults: list[tuple[str, int]]
) -> None:
    """There, losses are read later and checkpoints are written in a thread."""
    expected = whole(*PERFORMER)
    for module in modules:
        monkeypatch.setattr(module, "is_asynchronous", lambda _: True)
    for fault, code in faults:
        assert trained(*PERFORMER, "out=runs", fault=fault) == code, fault
    assert trained(*PERFORMER, "out=runs") == 0
    assert result("runs") == expected


def test_a_background_checkpoint_holds_the_state_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training changes the same tensors before the thread begins; a signal that ends the waiting does not end it."""
    begin, put = threading.Event(), checkpoint.put
    monkeypatch.setattr(checkpoint, "put", lambda *given: (begin.wait(30), put(*given)))
    weights, state = torch.zeros(3), {"steps": [1]}
    background = checkpoint.Background(tmp_path)
    background.write(checkpoint.Generation(step=1, tensors={"weights": weights}, state=state))
    weights += 1
    state["steps"].append(2)
    background.check()
    assert checkpoint.read(tmp_path) is None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            background.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    begin.set()
    background.wait()
    kept = checkpoint.read(tmp_path)
    assert (kept.step, kept.tensors["weights"].tolist(), kept.state) == (1, [0, 0, 0], {"steps": [1]})


def test_time_limits_pause_and_every_start_advances(whole) -> None:
    """A limit shorter than an evaluation, and one that is over after the last step, too."""
    expected = whole(*SIMPLE)
    assert trained(*SIMPLE, "out=runs", fault="evaluation:2:term") == 143
    places = []
    for limit in ("train.minutes=0.0001", "sweep_minutes=0.0001"):
        state = checkpoint.read(run_folder()).state["training"]
        places.append((state["step"], state["measured"]))
        assert trained(*SIMPLE, "out=runs", limit) == 75
    assert places == [(5, 0), (5, 5)]
    assert trained(*SIMPLE, "out=runs", fault="step:10:term") == 143
    assert trained(*SIMPLE, "out=runs", "train.minutes=0.0001") == 0
    assert result("runs") == expected


def test_other_conditions_are_refused_unless_inexact_is_wanted() -> None:
    assert trained(*SIMPLE, "out=runs", fault="step:9:term") == 143
    for change in ("train.micro_batch=2", "threads=2", "model.depth=2"):
        assert trained(*SIMPLE, "out=runs", change) == 2, change
    assert trained(*SIMPLE, "out=runs", "model.depth=2", "resume=inexact") == 2
    assert trained(*SIMPLE, "out=runs", "train.micro_batch=2", "resume=inexact") == 0
    assert record.read(run_folder() / record.NAME)["inexact"] == ["micro_batch: 3, then 2"]


def test_a_damaged_checkpoint_is_passed_over(whole, capfd: pytest.CaptureFixture) -> None:
    """The one before is taken; the order is that of the steps, whatever the times of the files."""
    expected = whole(*SIMPLE)
    assert trained(*SIMPLE, "out=runs", fault="step:8:kill") == KILLED
    newest, oldest = (run_folder() / f"checkpoint-{step}.safetensors" for step in (6, 3))
    os.utime(newest, (1, 1))
    assert checkpoint.read(run_folder()).step == 6
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert checkpoint.read(run_folder()).step == 3
    assert f"{newest}: damaged: SHA-256" in capfd.readouterr().err
    assert trained(*SIMPLE, "out=runs") == 0
    assert result("runs") == expected
    assert not oldest.exists()


def test_no_damage_is_loaded_silently(tmp_path: Path) -> None:
    """Truncations and flipped bits of the only generation, and what is no index."""
    tensors = {"model/w": torch.arange(97.0), "model/n": torch.tensor(3)}
    checkpoint.write(tmp_path, checkpoint.Generation(step=5, tensors=tensors, state={"a": [1.5, None]}))
    generation = checkpoint.read(tmp_path)
    assert (generation.step, generation.state) == (5, {"a": [1.5, None]})
    assert all(torch.equal(generation.tensors[name], value) for name, value in tensors.items())
    path = tmp_path / "checkpoint-5.safetensors"
    whole = path.read_bytes()
    for damage in range(40):
        data, place = bytearray(whole), random.Random(damage).randrange(len(whole))
        if damage % 2:
            data[place] ^= 1 << damage % 8
        else:
            del data[place:]
        path.write_bytes(data)
        with pytest.raises(UserError, match="no checkpoint is whole; delete"):
            checkpoint.read(tmp_path)
    entry = '{"schema": 3, "generations": [{"file": "../x", "step": 1}]}'
    for content in ("", "{", "[]", '{"schema": 3}', '{"schema": 7, "generations": []}', entry):
        (tmp_path / checkpoint.INDEX).write_text(content)
        with pytest.raises(UserError, match=r"checkpoint.json: (damaged|schema)"):
            checkpoint.read(tmp_path)


# ---------------------------------------------------------------- these tests can fail


def test_a_forgotten_buffer_is_found(whole, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("attention=bigbird", "attention.block=2", "attention.random_blocks=1")
    expected, load = whole(*overrides), fit.Training.load

    def forgetful(self: fit.Training, tensors: dict, state: dict) -> None:
        load(self, tensors, state)
        for name, buffer in self.model.named_buffers():
            if name.endswith(".table"):
                buffer.zero_()

    monkeypatch.setattr(fit.Training, "load", forgetful)
    assert trained(*overrides, "out=runs", fault="step:7:kill") == KILLED
    assert trained(*overrides, "out=runs") == 0
    assert result("runs")["weights"] != expected["weights"]


def test_a_write_that_is_not_atomic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(path: Path, value: dict) -> None:
        text = json.dumps(value)
        path.write_text(text[: len(text) // 2])
        if '"step": 6' in text:
            os.kill(os.getpid(), signal.SIGKILL)
        path.write_text(text)

    monkeypatch.setattr(checkpoint, "write_json", torn)
    assert trained(*SIMPLE, "out=runs") == KILLED
    assert trained(*SIMPLE, "out=runs") == 2
