"""Killed or stopped anywhere, any number of times, a run ends with the same bytes as an undisturbed one."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import result, run_folder, trained

from lra.core.errors import UserError
from lra.records import checkpoint, names, record
from lra.training import evaluate, trainer

KILLED = -signal.SIGKILL
SIMPLE = ("attention=simple",)
PERFORMER = ("attention=performer", "attention.redraw_every=5", "precision=bf16")
PRETRAINED = ("pretrain=masked", "pretrain.train.steps=8", "pretrain.train.warmup=3", *SIMPLE)
PATIENT = (*SIMPLE, "train.lr=1e-30", "train.patience=1", "train.eval_every=3", "train.schedule=constant")
STEPS = [(f"step:{step}:kill", KILLED) for step in (2, 5, 3)]  # between checkpoints, at one, after a resume
EVERYWHERE = [(f"{point}:kill", KILLED) for point in ("step:7", "evaluation:2", "step:1")]
FILES = [(f"file written:{number}:kill", KILLED) for number in (4, 7, 1)]
RENAMED = [(f"file renamed:{number}:kill", KILLED) for number in (2, 3, 1)]

INTERRUPTED: dict[str, tuple[tuple[str, ...], list[tuple[str, int]]]] = {
    "accumulated": (SIMPLE, STEPS),
    "random features in bf16": (PERFORMER, STEPS),
    "pretraining": (
        PRETRAINED,
        [("step:4:kill", KILLED), ("evaluation:1:term", 143), ("step:9:kill", KILLED), ("step:3:term", 143)],
    ),
    "early stopping": ((*PATIENT, "train.cooldown=4", "train.goal=100"), EVERYWHERE),
    "file written": (SIMPLE, FILES),
    "signals": (SIMPLE, [("step:5:term", 143), ("step:2:int", 130), ("evaluation:1:hup", 129)]),
    "full disk": (SIMPLE, [("file written:9:full", 2)]),
}
SLOW: dict[str, tuple[tuple[str, ...], list[tuple[str, int]]]] = {
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
    "solved": ((*SIMPLE, "train.goal=0.001"), [("step:7:kill", KILLED), ("evaluation:1:kill", KILLED)]),
    "own recipe": (("attention=softmax", "protocol=strict"), STEPS),
    "hashes": (("attention=reformer", "attention.chunk=5", "attention.redraw_every=3", "train.micro_batch=7"), STEPS),
    "noise": (("attention=sinkhorn", "attention.block=7"), STEPS),
    "frozen": (("attention=softmax", "train.freeze=[qkv,embedding]", "train.layer_decay=0.8"), STEPS),
    "out of patience": (PATIENT, EVERYWHERE),
    "progress": ((*SIMPLE, "train.lr=0.01", "train.progress=0.999", "train.patience=2"), EVERYWHERE),
    "file renamed": (SIMPLE, RENAMED),
    "signals while saving": (SIMPLE, [("file written:5:int", 130), ("file renamed:3:hup", 129)]),
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
    """A run ends after four steps of cooldown if validation does not improve, or as solved if its goal is low."""
    cooled, solved = (whole(*(INTERRUPTED | SLOW)[name][0]) for name in ("early stopping", "solved"))
    assert (cooled[names.RECORD]["ended"], cooled[names.RECORD]["reached"]) == ("no progress", {})
    assert [line["step"] for line in cooled[names.METRICS]] == [3, 6, 9, 12, 13]
    assert [round(line["lr"] / 1e-30, 9) for line in cooled[names.METRICS]] == [0.5, 1, 1, 0.5, 0.25]
    assert solved[names.RECORD]["ended"] == "solved"
    assert [line["step"] for line in solved[names.METRICS]] == [5, 10]
    assert "ended" not in whole(*SIMPLE)[names.RECORD]


def test_an_interrupted_run_on_an_accelerator(whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read one step late there."""
    expected = whole(*PERFORMER)
    for module in (trainer, evaluate):
        monkeypatch.setattr(module, "is_asynchronous", lambda _: True)
    for fault, code in (("step:5:kill", KILLED), ("step:3:term", 143)):
        assert trained(*PERFORMER, "out=runs", fault=fault) == code, fault
    assert trained(*PERFORMER, "out=runs") == 0
    assert result("runs") == expected


def test_time_limits_pause_and_every_start_advances(whole) -> None:
    """A limit shorter than an evaluation, and one that is over after the last step, too."""
    expected = whole(*SIMPLE)
    assert trained(*SIMPLE, "out=runs", fault="evaluation:2:term") == 143
    places = []
    for _ in range(2):
        state = checkpoint.read(run_folder())[1]["training"]
        places.append((state["step"], state["measured"]))
        assert trained(*SIMPLE, "out=runs", "sweep_minutes=0.0001") == 75
    assert places == [(5, 0), (6, 5)], "the evaluation and a step"
    assert trained(*SIMPLE, "out=runs", fault="step:9:term") == 143, "after the last step"
    assert trained(*SIMPLE, "out=runs", "sweep_minutes=0.0001") == 0
    assert result("runs") == expected


def test_other_conditions_are_refused_unless_inexact_is_wanted() -> None:
    assert trained(*SIMPLE, "out=runs", fault="step:9:term") == 143
    for change in ("train.micro_batch=2", "threads=2", "model.depth=2", "products=onednn"):
        assert trained(*SIMPLE, "out=runs", change) == 2, change
    assert trained(*SIMPLE, "out=runs", "model.depth=2", "resume=inexact") == 2
    assert trained(*SIMPLE, "out=runs", "train.micro_batch=2", "resume=inexact") == 0
    assert record.read(run_folder() / record.NAME)["inexact"] == ["micro_batch: 3, then 2"]


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, kept: int) -> None:
    tensors = {"model/w": torch.arange(97.0), "model/n": torch.tensor(3)}
    checkpoint.write(tmp_path, tensors, {"a": [1.5, None]})
    read, state = checkpoint.read(tmp_path)
    assert state == {"a": [1.5, None]}
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    path = tmp_path / names.CHECKPOINT
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="checkpoint.safetensors: damaged: "):
        checkpoint.read(tmp_path)


def test_a_flipped_bit_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """The bit is in the header, the state, the digest or a tensor, the last byte included."""
    checkpoint.write(tmp_path, {"model/w": torch.arange(7.0), "model/n": torch.tensor(3)}, {"a": [1.5, None]})
    path = tmp_path / names.CHECKPOINT
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with pytest.raises(UserError, match="damaged: .*; delete it to train from the start"):
            checkpoint.read(tmp_path)


@pytest.mark.parametrize(("change", "difference"), [("seed=2", "seed: 2 there, 1 now"), ("train.lr=0.25", "train.lr")])
def test_a_checkpoint_of_another_run_is_refused(change: str, difference: str, capfd: pytest.CaptureFixture) -> None:
    for out, overrides in (("one", ()), ("two", (change,))):
        assert trained(*SIMPLE, f"out={out}", *overrides, fault="step:9:term") == 143
    [mine], [theirs] = (list(Path(out).rglob(names.CHECKPOINT)) for out in ("one", "two"))
    mine.write_bytes(theirs.read_bytes())
    assert trained(*SIMPLE, "out=one") == 2
    error = (run_folder("one") / names.ERRORS).read_text()
    assert f"belongs to another run ({difference}" in error
    assert "delete it to train from the start" in error
