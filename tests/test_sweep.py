"""Sweeps: shared by any number of processes, stopped and continued, what they cost and say."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig
from support import Commands, composed, strip_times, stub_task
from sweeps import PLUGINS, SIX, SMOKE, installed, launcher, left

import lra.cli.command
from lra.cli import sweep, train
from lra.config.settings import settings_of
from lra.records import record
from lra.records.names import CONFIG
from lra.runs import estimate
from lra.runs.build import Job, assemble

SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")


def test_several_processes_share_a_sweep_and_run_nothing_twice(cli: Commands, tmp_path: Path) -> None:
    """As several hosts on one file system do: three start at once; what one is at work on, the others leave."""
    children = []
    for number in range(3):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(tmp_path / f"{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            sys.argv = ["lra", *SIX]
            train.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        finally:
            sys.stdout.flush()
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    errors = [(tmp_path / f"{number}.err").read_text() for number in range(3)]
    assert set(codes) <= {0, 75}, errors
    assert 0 in codes, "the last to end saw everything finished"
    for code, error in zip(codes, errors, strict=True):
        assert "6 of 6 runs finished" in error if code == 0 else ": at work elsewhere (" in error
    trained = [line for number in range(3) for line in (tmp_path / f"{number}.out").read_text().splitlines()]
    assert sum("test accuracy" in line for line in trained if line.startswith("[")) == 6
    assert len(left(Path("runs"))) == 6
    code, _, err = cli(train.main, *SIX)
    assert code == 0
    assert err.count("nothing to do") == 6


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_between_two_runs_ends_the_sweep_with_its_report(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, expected: int
) -> None:
    honest, before = train._command, signal.getsignal(number)

    def run_and_signal(cfg: DictConfig) -> str:
        outcome = train.train(cfg)
        os.kill(os.getpid(), number)
        return outcome

    monkeypatch.setattr(train, "_command", lra.cli.command.command("train", run_and_signal, sweep.run))
    code, out, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT)
    assert code == expected
    assert f"lra-train: paused ({number.name}); the same command goes on\n" in err
    assert err.endswith("1 of 3 runs finished, 2 waiting\n")
    assert "# Results: runs" in out
    assert "of 3 seeds, 2 missing" in Path("runs/README.md").read_text()
    assert "Traceback" not in err
    assert signal.getsignal(number) == before
    monkeypatch.setattr(train, "_command", honest)
    code, _, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT)
    assert (code, err.count("nothing to do")) == (0, 1)


@pytest.mark.parametrize("extra", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1")], ids=["basic", "joblib"])
def test_a_signal_within_a_run_ends_the_sweep(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...]
) -> None:
    """With one job at once joblib has no workers: a run is in the driver, which starts no other after it."""
    if extra:
        launcher("joblib")
    run = train.run

    def signalled(job: Job) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return run(job)

    monkeypatch.setattr(train, "run", signalled)
    code, _, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT, *extra)
    assert (code, err.count("stopped before its first step (SIGTERM)")) == (75, 1)
    assert len(list(Path("runs").rglob(CONFIG))) <= 1
    assert err.splitlines()[-1].startswith("0 of 3 runs finished")


def test_every_seed_of_a_row_comes_before_the_next_row(cli: Commands) -> None:
    code, out, err = cli(train.main, *SMOKE, "seed=1,2", *SHORT, "system=simple,linear")
    assert code == 0, err
    runs = re.findall(r"^\[(\d)/4\] listops (\w+)/\w+ \(paper\) seed (\d)", out, re.MULTILINE)
    assert runs == [("1", "simple", "1"), ("2", "simple", "2"), ("3", "linear", "1"), ("4", "linear", "2")]


def test_a_reference_to_another_key_is_resolved_in_each_run(cli: Commands) -> None:
    """Not once, with the values that the driver's own configuration has. (No report shows data that differ by seed.)"""
    words = ("experiment=smoke", "model.dim=8,16", "model.mlp_dim=${model.dim}", "task.seed=${seed}", "seed=1,2")
    assert "4 of 4 runs finished" in cli(train.main, "--multirun", *words)[2]
    configs = [json.loads(path.read_text()) for path in Path("runs").rglob(CONFIG)]
    assert sorted((config["model"]["dim"], config["seed"]) for config in configs) == [(8, 1), (8, 2), (16, 1), (16, 2)]
    for config in configs:
        assert config["model"]["mlp_dim"] == config["model"]["dim"]
        assert config["task"]["seed"] == config["seed"]


def test_a_reference_in_an_option_file_is_resolved_in_each_run(cli: Commands) -> None:
    """Also by whoever looks what there is to do: the same command finds its own runs."""
    path = Path("lra_options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\ndefaults: [smoke, _self_]\ntask: {seed: '${seed}'}\n")
    words = ("experiment=mine", "seed=1,2")
    assert "2 of 2 runs finished" in cli(train.main, "--multirun", *words)[2]
    configs = [json.loads(path.read_text()) for path in Path("runs").rglob(CONFIG)]
    assert sorted((config["task"]["seed"], config["seed"]) for config in configs) == [(1, 1), (2, 2)]
    assert cli(train.main, "--multirun", *words)[2].count("nothing to do") == 2


def test_a_sweep_and_its_records_name_what_is_softmax_here(cli: Commands) -> None:
    """Longformer's window of 512 holds ListOps of 60 tokens; blocks of 50 do not."""
    code, out, err = cli(train.main, *SMOKE, "describe=true", "system=longformer,local")
    assert code == 0, err
    assert re.findall(r'"full_pattern": (\w+)', out) == ["true", "false"]
    said = "equal to full softmax attention at this length, where nothing is left out: "
    assert err.splitlines()[0] == f"{said}listops longformer/transformer (paper)"
    code, _, err = cli(train.main, "experiment=smoke", "system=longformer", "out=runs", *SHORT)
    assert code == 0, err
    assert [json.loads(path.read_text())["full_pattern"] for path in Path("runs").rglob(record.NAME)] == [True]


def test_a_sweep_says_what_it_costs_and_a_long_one_must_be_meant(cli: Commands) -> None:
    line = ("--multirun", "experiment=smoke", "out=runs", "seed=1,2")
    code, _, err = cli(train.main, *line, *SHORT, "max_hours=1e-9")
    assert code == 2
    assert re.search(r"2 runs, 2.9e\+03 tokens in training, about \S+ minutes .* more than max_hours=1e-09", err)
    assert not Path("runs").exists()
    code, _, err = cli(train.main, *line, *SHORT, "train.micro_batch=auto", "max_hours=1e-9")
    assert (code, "could not be measured" in err) == (2, False)
    code, _, err = cli(train.main, *line, *SHORT, "max_hours=null")
    assert code == 0
    assert "2 runs, 2.9e+03 tokens in training" in err


def test_a_sweep_that_has_begun_goes_on_however_long_it_is(cli: Commands) -> None:
    line = ("--multirun", "experiment=smoke", "out=runs", "train.steps=60", "train.eval_every=30")
    code, _, err = cli(train.main, *line, "seed=1", "train.minutes=1e-9")
    assert (code, "1 paused" in err) == (75, True)
    code, _, err = cli(train.main, *line, "seed=1,2", "max_hours=1e-9")
    assert (code, "more than max_hours=1e-09" in err) == (2, True)
    code, _, err = cli(train.main, *line, "seed=1", "max_hours=1e-9")
    assert (code, "1 of 1 runs finished" in err) == (0, True), err


@pytest.mark.parametrize(
    ("system", "shares"),
    [
        ("simple", ("task.val_size=3000", "train.steps=20", "train.eval_every=1")),
        ("transformer", ("train.steps=100", "train.eval_every=100", "model.depth=4")),
    ],
)
def test_the_estimate_is_what_a_run_takes(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, system: str, shares: tuple[str, ...]
) -> None:
    """Where evaluation is most of it, and where training is; within a factor of three, by the time of this process on
    the processor, whatever else the machine does."""
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, time.process_time)
    line = (*SMOKE, f"system={system}", *shares)
    code, _, err = cli(train.main, *line)
    assert code == 0, err
    said = 60 * float(re.search(r"about (\S+) minutes", err)[1])
    [path] = Path("runs").rglob(record.NAME)
    seconds = record.read(path)["seconds"]
    took = sum(seconds.values())
    most = seconds["evaluate" if system == "simple" else "train"]
    assert most > 0.7 * took, "an estimate of the other part alone is off by more"
    assert took / 3 < said < 3 * took, (said, took)


def test_one_example_is_measured_with_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block reads the CLS alone and costs little: 0.06 s, where the others take 0.37 s each."""
    settings = settings_of(composed("task=listops", "model.depth=6", "model.dim=16", "model.heads=2"))
    work = estimate.Work(settings=settings, system=assemble(settings), folders=[])
    monkeypatch.setattr(estimate, "_training", lambda model, *_: 0.06 + 0.37 * (len(model.blocks) - 1))
    trained, evaluated = 15_000 * 32, 300 * 23 + 2 * 23  # 23 examples, every 50 of 15,000 steps, the test twice
    expected = (0.06 + 0.37 * 5) * (trained + evaluated / 3)
    assert settings.train["eval_every"] == 50
    assert [*estimate._seconds(work, stub_task(), 0.1)] == pytest.approx([expected, expected])


def test_a_first_pass_that_is_far_slower_than_the_next_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 s for the first example, 0.25 s for each after it: what is told first is told anew. In evaluation 0.125 s."""
    settings = settings_of(composed("task=listops", "model.depth=1", "model.dim=16", "model.heads=2"))
    work = estimate.Work(settings=settings, system=assemble(settings), folders=[])
    first = iter([7.0])
    monkeypatch.setattr(estimate, "_training", lambda *_: next(first, 0.25))
    monkeypatch.setattr(estimate, "_evaluation", lambda *_: 0.125)
    trained, evaluated = 15_000 * 32, 300 * 23 + 2 * 23
    in_one_example = [second * (trained + evaluated / 3) for second in (7.0, 0.25)]
    expected = [*in_one_example, 0.25 * trained + 0.125 * evaluated]
    assert [*estimate._seconds(work, stub_task(), 0.5)] == pytest.approx(expected)


def test_what_a_pass_costs_whatever_it_reads_does_not_count_for_every_example() -> None:
    """A pass over n examples takes 8 + n seconds: with 32 of them 1.25 each, as soon as there is time for so many."""
    passes = []

    def measure(most: int) -> float:
        passes.append(most)
        return (8 + most) / most

    assert estimate._each(measure, most=32, share=1000) == 1.25
    assert passes == [1, 1, 2, 4, 8, 16, 32]
    assert estimate._each(measure, most=3, share=1000) == 11 / 3
    assert estimate._each(measure, most=32, share=9) == 9


def test_what_cannot_be_measured_is_reckoned_from_its_flops(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """At an assumed speed it is allowed or refused like anything else."""
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    code, out, err = cli(train.main, "experiment=smoke", "describe=true")
    facts = json.loads(out)
    line = (*SMOKE, "train.steps=10", "task.val_size=31", "task.test_size=37", "train.eval_every=5")
    code, _, err = cli(train.main, *line, "seed=1,2", "max_hours=1e-9")
    assert (code, Path("runs").exists()) == (2, False)
    batch = composed("experiment=smoke")["train"]["batch_size"]
    flops = facts["flops_per_step"] * (10 + (2 * 31 + 2 * 37) / 3 / batch)
    said = float(re.search(r"about (\S+) minutes of this machine", err)[1])
    assert said == pytest.approx(2 * flops / 1e10 / 60, rel=0.06)
    assert "1 of 1 cells could not be measured in 0.0 s: reckoned from their FLOPs at an assumed speed" in err
    assert "say max_hours=null" in err


def test_the_estimate_counts_what_is_not_done(cli: Commands) -> None:
    line = (*SMOKE, *SHORT, "system=simple,linear")
    assert cli(train.main, *line, "seed=1,2")[0] == 0
    assert "4 runs, 5.8e+03 tokens" in cli(train.main, *line, "seed=1,2,3,4")[2]
    assert "0 runs, 0 tokens" in cli(train.main, *line, "seed=1,2,3,4")[2]


def test_a_run_that_was_refused_before_its_first_step_has_not_begun(tmp_path: Path) -> None:
    """Its folder is there, and all its work is left, for which `max_hours` still has to be meant."""
    settings = settings_of(composed("experiment=smoke"))
    (tmp_path / "error.log").write_text("no such data")
    work = estimate.Work(settings=settings, system=assemble(settings), folders=[tmp_path, tmp_path / "new"])
    assert (work.not_begun, work.left) == (2, 2.0)


def test_the_estimate_of_a_run_that_goes_on_counts_what_is_left(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tokens and in time; one whose list of checkpoints is damaged counts as a whole one, and says so itself."""
    monkeypatch.setattr("lra.runs.budget.LONG", 0)
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    line = ("experiment=smoke", "out=runs", *SHORT, "train.steps=4", "train.eval_every=4", "max_hours=null")
    assert cli(train.main, *line, "train.minutes=1e-9")[0] == 75
    [index] = Path("runs").rglob("checkpoint.json")
    assert json.loads(index.read_text())["generations"][0]["step"] == 1
    monkeypatch.setattr(train, "run", lambda job: "finished")

    def said(*words: str) -> list[float]:
        err = cli(train.main, *line, *words)[2]
        return [float(value) for value in re.search(r"(\S+) tokens in training, about (\S+) minutes", err).groups()]

    whole = said("seed=2")
    for words in ((), ("--multirun", "seed=1")):
        assert said(*words) == pytest.approx([3 / 4 * value for value in whole], rel=0.06)
    index.write_text("{}")
    assert said() == whole


TRIED_AGAIN = [
    ("failed", "failed", 1),
    ("failed", "none", 0),
    ("failed", "all", 1),
    ("diverged", "failed", 0),
    ("diverged", "none", 0),
    ("diverged", "all", 1),
    ("finished", "all", 0),
]


def test_which_runs_are_tried_again(cli: Commands) -> None:
    """By the same command, and counted in what it says it will cost."""
    line = (*SMOKE, *SHORT, "checkpoint.steps=2", "seed=1,2")
    assert cli(train.main, *line)[0] == 0
    folder = Path("runs/listops/paper/simple/simple/seed2")
    for status, retry, runs in TRIED_AGAIN:
        record.write(folder, {**record.read(folder / record.NAME), "status": status, "reason": "so it was"})
        code, _, err = cli(train.main, *line, f"retry={retry}")
        assert re.search(rf"\b{runs} runs?, ", err), (status, retry)
        assert code == (1 if status != "finished" and not runs else 0), (status, retry)
        assert ("1 of 2 runs finished" if code else "2 of 2 runs finished") in err
        assert (f"{folder}: {status}: so it was" in err) == bool(code)


def test_a_diverged_run_begins_anew(cli: Commands) -> None:
    """Not from the checkpoint on the way to its end."""
    line = (*SMOKE, "train.lr=1e30", "train.eval_every=1", "checkpoint.steps=1")
    assert cli(train.main, *line)[0] == 1
    folder = Path("runs/listops/paper/simple/simple/seed1")
    first = record.read(folder / record.NAME)
    assert (folder / "checkpoint.json").exists()
    code, _, err = cli(train.main, *line, "retry=all")
    assert code == 1
    assert "goes on from step" not in err
    again = record.read(folder / record.NAME)
    assert strip_times(again) == strip_times(first)
    assert again["resumes"] == 0


def test_each_job_of_a_sweep_has_its_own_number(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    monkeypatch.setattr(train, "run", lambda job: numbers.append(job.number) or "finished")
    cli(train.main, *SMOKE, "seed=1,2,3,4,5")
    assert numbers == [0, 1, 2, 3, 4]


def test_a_job_takes_a_gpu_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From that of its number on; where all are taken, that of its number; one that is done gives its own back."""
    import torch

    from lra.runs import device

    taken = []
    monkeypatch.setattr(device, "gettempdir", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid=f"gpu-{gpu}"))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    with device.assign_gpu("cuda", 1):
        with device.assign_gpu("cuda", 4), device.assign_gpu("cuda", 7), device.assign_gpu("cuda", 11):
            assert taken == [1, 2, 0, 2]
        with device.assign_gpu("cuda", 3), device.assign_gpu("cpu", 2):
            assert taken[4:] == [0]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (set(), 0),
        ({"refused"}, 2),
        ({"refused", "failed"}, 1),
        ({"killed"}, 1),
        ({"waiting"}, 1),
        ({"diverged"}, 1),
        ({"no report"}, 1),
        ({"failed", "paused"}, 75),
        ({"running"}, 75),
    ],
)
def test_exit_codes(bad: set[str], code: int) -> None:
    assert sweep._exit_code(bad) == code


def test_a_launcher_that_is_not_installed_is_named(cli: Commands) -> None:
    missing = {name: plugin for name, plugin in PLUGINS.items() if not installed(plugin)}
    if not missing:
        pytest.skip("all launchers are installed")
    for name, plugin in missing.items():
        code, _, err = cli(train.main, *SMOKE, "seed=1,2", f"hydra/launcher={name}")
        assert (code, err) == (
            2,
            f"lra-train: error: hydra/launcher={name}: not installed; pip install hydra-{plugin}-launcher\n",
        )


def test_a_row_is_added_to_a_sweep_and_multiplies_nothing(cli: Commands) -> None:
    words = ("experiment=smoke", "system=simple,longformer", "describe=true", "--multirun")

    def rows(*more: str) -> list[str]:
        code, out, err = cli(train.main, *words, *more)
        assert code == 0, err
        return [Path(line.split('"')[3]).parent.parent.name for line in out.splitlines() if "run_folder" in line]

    assert rows() == ["simple", "longformer"]
    assert rows("also=softmax") == ["simple", "longformer", "softmax"]
    twice = [name for name in ("simple", "longformer", "linear", "fnet") for _ in range(2)]
    assert rows("also=[linear,fnet]", "seed=1,2") == twice


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["also=simple", "system=simple,longformer"], "also=simple: this sweep has system=simple already"),
        (["also=null", "system=simple,longformer"], "also=None: should be a valid list or a valid string"),
        (["also=3", "system=simple,longformer"], "also=3: should be a valid list or a valid string"),
        (["also=simple", "seed=1,2"], "also=simple: this sweep has no list of attentions to add to"),
        (["also=fnet,linear", "system=simple,longformer"], "also=fnet,linear: several rows are written also=[...]"),
        (["also=fnt", "system=simple,longformer"], "attention=fnt: no such option; did you mean 'fnet'?"),
    ],
)
def test_a_row_that_cannot_be_added_is_named(words: list[str], message: str, cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "describe=true", *words)
    assert code == 2
    assert message in err


def test_an_attention_that_replaces_that_of_every_system_is_told_how_to_be_one_more_row(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "system=linear,transformer", "attention=fnet")
    assert code == 2
    assert "seed1: attention=fnet replaces that of every system: also=fnet adds it to them" in err


def test_a_reference_is_a_row_of_this_sweep_or_of_an_earlier_one_there(cli: Commands) -> None:
    words = ("--multirun", "experiment=smoke", "seed=1", *SHORT)
    code, _, err = cli(train.main, *words, "system=simple,transformer", "sweep.reference=Transfomer")
    assert code == 2
    assert "sweep.reference=Transfomer: no row of this sweep is called so; did you mean 'Transformer'?\n" in err
    assert not list(Path().rglob("sweep.json"))
    for system in ("simple", "linear"):
        code, _, err = cli(train.main, *words, f"system={system}", "train.lr=0.1,0.2", "sweep.reference=Simple")
        assert code == 0, err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("also=fnet", "also=fnet: only a sweep has further rows"),
        ("sweep.reference=Simple", "sweep.reference: only the report of a sweep asks for it"),
        ("sweep.margin=2", "sweep.margin: only the report of a sweep asks for it"),
        ("generate.prompt=Once", "generate.prompt: only a language model writes a text; listops"),
    ],
)
def test_a_single_run_is_not_asked_for_what_it_does_not_do(cli: Commands, override: str, said: str) -> None:
    code, out, err = cli(train.main, "experiment=smoke", "task=listops", override)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not list(Path().rglob("config.json"))
