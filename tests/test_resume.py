"""Killed anywhere, any number of times, a run ends as if it had never been interrupted.

Runs are forked from this process, which has everything imported: a run then costs a fraction of a second.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faults.runs import TINY, inject, result, warm
from support import composed, job_of

from lra.config.cell import cell_of
from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records import checkpoint, names, record
from lra.runs import trainer
from lra.runs.folder import run
from lra.training import evaluate, fit

SYSTEMS = [
    ("attention=simple",),
    ("attention=softmax", "protocol=strict"),
    ("attention=performer", "attention.redraw_every=5", "precision=bf16"),
    ("attention=reformer", "attention.chunk=5", "attention.redraw_every=3", "train.micro_batch=7"),
    ("attention=sinkhorn", "attention.block=7"),
    (
        "attention=s4d",
        "model.pooling=mean",
        "model.norm_over=batch",
        "train.micro_batch=7",
        "train.groups={state: {rate: 0.001, weight_decay: 0}, step: {rate: null, weight_decay: 0}}",
    ),
    ("attention=softmax", "train.freeze=[qkv,embedding]", "train.layer_decay=0.8"),
]


def prepared(*overrides: str) -> tuple:
    cfg = composed(*TINY, *overrides)
    return settings_of(cfg), cell_of(cfg, cfg.hydra, [])


def fork(job: tuple, fault: str = "") -> int:
    """Start a run in a child; its exit code is that of the command."""
    warm()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        inject(fault)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1), os.dup2(silence, 2)
        code = {"finished": 0, "skipped": 0}.get(run(job_of(*job)), 1)
    except Paused as pause:
        code = pause.code
    except UserError:
        code = 2
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """Its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., dict]:
    """What the runs of systems leave that nothing interrupted; each is run once."""
    known: dict[tuple[str, ...], dict] = {}

    def make(*overrides: str) -> dict:
        if overrides not in known:
            folder = tmp_path_factory.mktemp("whole")
            assert finish(fork(prepared(*overrides, f"out={folder}", f"cache={cache}"))) == 0
            known[overrides] = result(folder)
        return known[overrides]

    return make


@pytest.fixture
def reference(whole, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """The same, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))
    return whole


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system[0].removeprefix("attention="))
def test_killed_after_any_step_the_end_is_the_same(reference, system: tuple[str, ...]) -> None:
    """Between checkpoints, at one, at an evaluation, at the last step."""
    expected = reference(*system)
    job = prepared(*system, "out=killed")
    for step in (3, 8, 5, 9):
        assert finish(fork(job, f"step:{step}:kill")) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("killed") == expected


@pytest.mark.parametrize("learning", [("train.lr=1e-30",), ("train.lr=0.01", "train.progress=0.999")])
def test_killed_before_and_after_its_patience_ends_the_end_is_the_same(reference, learning: tuple[str, ...]) -> None:
    """With a rate that moves no weight, the first evaluation stays the best; with one that does, it stays the last that
    was progress. Two evaluations later nothing is trained any more, also where the run goes on from the checkpoint of
    that moment."""
    patient = ("attention=simple", *learning, "train.patience=2", "checkpoint.keep=true")
    expected = reference(*patient)
    assert expected["record"]["ended"] == "no progress"
    assert [line["step"] for line in expected["metrics"]] == [7, 14, 21]
    assert expected["record"]["steps"] == expected["record"]["test"]["last"]["step"] == 21
    job = prepared(*patient, "out=killed")
    for fault in ("step:9:kill", "evaluation:2:kill", "evaluation:1:kill", "step:1:kill", "checkpoint listed:1:kill"):
        assert finish(fork(job, fault)) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("killed") == expected


def test_killed_before_and_while_its_rate_falls_the_end_is_the_same(reference) -> None:
    """No better for two evaluations, then a cooldown of five steps; and solved, which a goal of nothing is at once."""
    cooling = (
        "attention=simple", "train.lr=1e-30", "train.patience=2", "train.cooldown=5", "train.schedule=constant",
        "train.goal=100", "checkpoint.keep=true",
    )  # fmt: skip
    expected = reference(*cooling)
    assert (expected["record"]["ended"], expected["record"]["reached"]) == ("no progress", {})
    assert [line["step"] for line in expected["metrics"]] == [7, 14, 21, 26]
    assert [round(line["lr"] / 1e-30, 9) for line in expected["metrics"]] == [1, 1, 1, 0.2]
    job = prepared(*cooling, "out=killed")
    for fault in ("step:9:kill", "evaluation:2:kill", "evaluation:1:kill", "step:2:kill", "checkpoint listed:1:kill"):
        assert finish(fork(job, fault)) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("killed") == expected


def test_killed_between_the_two_evaluations_that_solve_it_the_end_is_the_same(reference) -> None:
    solved = ("attention=simple", "train.goal=0.001", "checkpoint.keep=true")
    expected = reference(*solved)
    assert expected["record"]["ended"] == "solved"
    assert [line["step"] for line in expected["metrics"]] == [7, 14]
    job = prepared(*solved, "out=killed")
    for fault in ("step:9:kill", "evaluation:1:kill", "checkpoint listed:1:kill"):
        assert finish(fork(job, fault)) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("killed") == expected


def test_without_patience_a_record_says_nothing_of_its_end(reference) -> None:
    assert "ended" not in reference("attention=simple")["record"]
    assert reference("attention=simple", "train.patience=9")["record"]["ended"] == "steps"


def test_killed_in_its_pretraining_and_after_it_the_end_is_the_same(reference) -> None:
    """In either phase, and where one has ended; the weights that the phase leaves are the same, too."""
    phase = ("pretrain=masked", "pretrain.train.steps=12", "pretrain.train.warmup=3", "attention=simple")
    expected = reference(*phase)
    job = prepared(*phase, "out=killed", "cache=killed")
    for fault, code in (
        ("step:6:kill", -signal.SIGKILL),
        ("evaluation:1:term", 143),
        ("step:9:kill", -signal.SIGKILL),  # of the training
        ("step:3:term", 143),
    ):
        assert finish(fork(job, fault)) == code
    assert finish(fork(job)) == 0
    assert result("killed") == expected
    assert expected["metrics"][0]["phase"] == "pretrain"
    assert len(expected["record"]["pretrain"]["sha256"]) == 64


def test_what_a_pretraining_could_not_remove_goes_with_the_next_run(reference) -> None:
    """It was killed when its record was written, and not all of its checkpoints were away."""
    phase = ("pretrain=masked", "pretrain.train.steps=3", "pretrain.train.warmup=1", "attention=simple")
    job = prepared(*phase, "out=killed", "cache=killed")
    assert finish(fork(job)) == 0
    [weights] = Path("killed/pretrained").rglob(names.WEIGHTS)
    of_folder = sorted(weights.parent.iterdir())
    weights.with_name("checkpoint-3.safetensors").write_bytes(b"of step 3")
    next(Path("killed/listops").rglob(names.RECORD)).unlink()
    assert finish(fork(job)) == 0
    assert sorted(weights.parent.iterdir()) == of_folder


def test_where_numbers_are_looked_at_later_the_end_is_the_same(reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, with checkpoints in between, a pause within a step, and kills."""
    expected = reference("attention=performer", "attention.redraw_every=5", "precision=bf16")
    for module in (fit, evaluate):
        monkeypatch.setattr(module, "is_asynchronous", lambda _: True)
    job = prepared("attention=performer", "attention.redraw_every=5", "precision=bf16", "out=behind")
    for fault, code in (("step:6:kill", -signal.SIGKILL), ("step:5:term", 143), ("step:3:term", 143)):
        assert finish(fork(job, fault)) == code
    assert finish(fork(job)) == 0
    assert result("behind") == expected


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written beside the training, as on an accelerator."""
    monkeypatch.setattr(trainer, "is_asynchronous", lambda _: True)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("point", ["file written", "checkpoint listed"])
def test_killed_while_a_checkpoint_is_written_beside_the_training_the_end_is_the_same(reference, point: str) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=beside")
    assert finish(fork(job, f"{point}:3:kill")) == -signal.SIGKILL
    assert finish(fork(job, "step:5:term")) == 143
    assert checkpoint.read(next(Path("beside").rglob("seed1"))) is not None
    assert finish(fork(job)) == 0
    assert result("beside") == expected
    assert not list(Path("beside").rglob("checkpoint*"))


@pytest.mark.usefixtures("beside")
def test_a_disk_that_fills_up_beside_the_training_stops_it(reference) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=beside")
    assert finish(fork(job, "file written:5:full")) == 2
    assert finish(fork(job)) == 0
    assert result("beside") == expected


def test_what_is_written_beside_is_that_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training goes on with the same tensors while the thread has not begun; the next call waits for it."""
    begin, put = threading.Event(), checkpoint.put
    monkeypatch.setattr(checkpoint, "put", lambda *given: (begin.wait(30), put(*given)))
    weights, state = torch.zeros(3), {"steps": [1]}
    background = checkpoint.Background(tmp_path)
    background.write(checkpoint.Generation(step=1, tensors={"weights": weights}, state=state))
    weights += 1
    state["steps"].append(2)
    background.check()
    assert checkpoint.read(tmp_path) is None
    begin.set()
    background.write(checkpoint.Generation(step=2, tensors={"weights": weights}, state=state))
    first = json.loads((tmp_path / checkpoint.INDEX).read_text())["generations"][0]
    assert first["step"] == 1
    background.wait()
    (tmp_path / "checkpoint-2.safetensors").unlink()
    kept = checkpoint.read(tmp_path)
    assert (kept.step, kept.tensors["weights"].tolist(), kept.state) == (1, [0, 0, 0], {"steps": [1]})


def test_a_signal_that_ends_the_waiting_does_not_end_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, put = threading.Event(), checkpoint.put
    monkeypatch.setattr(checkpoint, "put", lambda *given: (begin.wait(30), put(*given)))
    background = checkpoint.Background(tmp_path)
    background.write(checkpoint.Generation(step=1, tensors={"weights": torch.zeros(3)}, state={}))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with & ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            background.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    begin.set()
    background.wait()
    assert checkpoint.read(tmp_path).step == 1


@pytest.mark.usefixtures("reference")
def test_a_time_limit_does_not_keep_a_run_from_its_test() -> None:
    system = ("attention=simple", "out=short", "train.minutes=0.0001")
    assert finish(fork(prepared(*system[:2]), "step:30:term")) == 143
    assert checkpoint.read(next(Path("short").rglob("seed1"))).step == 30
    assert finish(fork(prepared(*system))) == 0


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_instants_over_generations(reference, kills: int) -> None:
    """So often in all, and a single run three times or more; the instants lie in the first half of the time that a
    whole run takes here."""
    overrides = ("attention=performer", "attention.redraw_every=5")
    expected = reference(*overrides)
    started = time.monotonic()
    assert finish(fork(prepared(*overrides, "out=whole"))) == 0
    longest = (time.monotonic() - started) / 2
    rng = random.Random(kills)
    killed = [0]

    def enough() -> bool:
        return sum(killed) >= kills and max(killed) >= 3

    while not enough():
        name = f"r{len(killed)}"
        job = prepared(*overrides, f"out={name}")
        killed.append(0)
        while not enough():
            child = fork(job)
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            if finish(child) == 0:
                break
            killed[-1] += 1
        else:
            assert finish(fork(job)) == 0
        assert result(name) == expected


POINTS = ["file written", "file renamed", "checkpoint listed"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_saving_no_generation_is_lost(reference, point: str) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=killed")
    for number in (2, 3, 1):
        assert finish(fork(job, f"{point}:{number}:kill")) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("killed") == expected
    folder = next(Path("killed").rglob("seed1"))
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob("checkpoint*"))


@pytest.mark.parametrize(
    ("point", "name", "code"),
    [("step", "term", 143), ("step", "int", 130), ("file written", "int", 130), ("checkpoint listed", "term", 143)],
)
def test_a_signal_pauses_and_the_same_command_goes_on(reference, point: str, name: str, code: int) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=paused")
    assert finish(fork(job, f"{point}:5:{name}")) == code
    folder = next(Path("paused").rglob("seed1"))
    assert record.read(folder / record.NAME)["status"] == "paused"
    assert checkpoint.read(folder) is not None
    assert finish(fork(job)) == 0
    assert result("paused") == expected
    assert record.read(folder / record.NAME)["resumes"] == 1


@pytest.mark.parametrize("part", [1, 18, 31])
def test_a_signal_pauses_within_an_evaluation(reference, part: int) -> None:
    """Its first part of 7, a middle one of the third evaluation, and one after the last step; asked again at once."""
    system = ("attention=performer", "attention.redraw_every=5", "train.eval_batch=5")
    expected = reference(*system)
    job = prepared(*system, "out=paused")
    for fault, code in ((f"evaluation:{part}:int", 130), ("evaluation:2:term", 143)):
        assert finish(fork(job, fault)) == code
        folder = next(Path("paused").rglob("seed1"))
        assert checkpoint.read(folder).step == min(30, 7 * (1 + (part - 1) // 7))
    assert finish(fork(job)) == 0
    assert result("paused") == expected


def test_time_limits_pause(reference) -> None:
    expected = reference("attention=simple")
    for limit in ("train.minutes=0.0001", "sweep_minutes=0.0001"):
        assert finish(fork(prepared("attention=simple", "out=timed", limit))) == 75
    assert finish(fork(prepared("attention=simple", "out=timed"))) == 0
    assert result("timed") == expected


@pytest.mark.usefixtures("reference")
def test_a_time_limit_that_is_shorter_than_an_evaluation_gets_on() -> None:
    system = ("attention=simple", "train.eval_batch=5", "out=short")
    assert finish(fork(prepared(*system), "evaluation:2:term")) == 143
    folder = next(Path("short").rglob("seed1"))
    places = []
    for _ in range(3):
        state = checkpoint.read(folder).state["training"]
        places.append((state["step"], state["measured"]))
        assert finish(fork(prepared(*system, "train.minutes=0.0001"))) == 75
    assert places == [(7, 0), (7, 7), (8, 7)]


def test_a_full_disk_stops_the_run_and_keeps_what_is_there(reference) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=full")
    assert finish(fork(job, "file written:9:full")) == 2
    assert finish(fork(job)) == 0
    assert result("full") == expected


def test_other_conditions_are_refused_unless_inexact_is_wanted(reference, capfd: pytest.CaptureFixture) -> None:
    reference("attention=simple")
    assert finish(fork(prepared("attention=simple", "out=paused"), "step:9:term")) == 143
    with pytest.raises(UserError, match=r"another configuration \(train.micro_batch: 3 there, 2 now\)"):
        run(job_of(*prepared("attention=simple", "out=paused", "train.micro_batch=2")))
    settings = prepared("attention=simple", "out=paused", "threads=2")
    with pytest.raises(UserError, match=r"other conditions \(threads: 1, then 2\); resume=inexact resumes it"):
        run(job_of(*settings))
    torch.set_num_threads(1)
    with pytest.raises(UserError, match="another configuration"):
        run(job_of(*prepared("attention=simple", "out=paused", "model.depth=2", "resume=inexact")))
    job = prepared("attention=simple", "out=paused", "resume=inexact", "train.micro_batch=2")
    assert finish(fork(job)) == 0
    folder = next(Path("paused").rglob("seed1"))
    assert record.read(folder / record.NAME)["inexact"] == ["micro_batch: 3, then 2"]


def test_a_damaged_checkpoint_is_passed_over(reference, capfd: pytest.CaptureFixture) -> None:
    expected = reference("attention=simple")
    job = prepared("attention=simple", "out=damaged")
    assert finish(fork(job, "step:11:kill")) == -signal.SIGKILL
    folder = next(Path("damaged").rglob("seed1"))
    newest, oldest = (folder / f"checkpoint-{step}.safetensors" for step in (8, 4))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert checkpoint.read(folder).step == 4
    assert f"{newest}: damaged: SHA-256" in capfd.readouterr().err
    assert finish(fork(job)) == 0
    assert result("damaged") == expected
    assert oldest.name not in {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("damage", range(40))
def test_no_damage_is_loaded_silently(tmp_path: Path, damage: int, capfd: pytest.CaptureFixture) -> None:
    """Twenty truncations and twenty flipped bits of the only generation, and of the index."""
    tensors = {"model/w": torch.arange(97.0), "model/n": torch.tensor(3)}
    checkpoint.write(tmp_path, checkpoint.Generation(step=5, tensors=tensors, state={"a": [1.5, None]}))
    generation = checkpoint.read(tmp_path)
    assert (generation.step, generation.state) == (5, {"a": [1.5, None]})
    assert all(torch.equal(generation.tensors[name], value) for name, value in tensors.items())
    path = tmp_path / "checkpoint-5.safetensors"
    data = bytearray(path.read_bytes())
    place = random.Random(damage).randrange(len(data))
    if damage % 2:
        data[place] ^= 1 << damage % 8
    else:
        del data[place:]
    path.write_bytes(data)
    with pytest.raises(UserError, match="no checkpoint is whole; delete"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": 2}',
        '{"schema": 7, "generations": []}',
        '{"schema": 2, "generations": [{"file": "../x", "step": 1}]}',
        '{"schema": 2, "generations": [{"step": 1}]}',
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / checkpoint.INDEX).write_text(content)
    with pytest.raises(UserError, match=r"checkpoint.json: (damaged|schema)"):
        checkpoint.read(tmp_path)


# ---------------------------------------------------------------- tests of these tests


def test_a_forgotten_buffer_would_be_seen(reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what randomness there is in the state, the end differs."""
    from lra.training.fit import Training

    expected = reference("attention=bigbird", "attention.block=2", "attention.random_blocks=1")
    job = prepared("attention=bigbird", "attention.block=2", "attention.random_blocks=1", "out=mutant")
    load = Training.load

    def forgetful(self: Training, tensors: dict, state: dict) -> None:
        load(self, tensors, state)
        for name, buffer in self.model.named_buffers():
            if name.endswith(".table"):
                buffer.zero_()

    monkeypatch.setattr(Training, "load", forgetful)
    assert finish(fork(job, "step:9:kill")) == -signal.SIGKILL
    assert finish(fork(job)) == 0
    assert result("mutant")["weights"] != expected["weights"]


def test_a_save_that_is_not_atomic_would_be_seen(reference, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(path: Path, value: dict) -> None:
        text = json.dumps(value)
        path.write_text(text[: len(text) // 2])
        if '"step": 8' in text:
            os.kill(os.getpid(), signal.SIGKILL)
        path.write_text(text)

    monkeypatch.setattr(checkpoint, "write_json", torn)
    reference("attention=simple")
    job = prepared("attention=simple", "out=mutant")
    assert finish(fork(job)) == -signal.SIGKILL
    assert finish(fork(job)) == 2
