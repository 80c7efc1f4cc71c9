"""Sweeps: the same under every launcher, whole after any accident, shared by any number of processes.

Launchers that are not there are skipped: pip install '.[submitit,ray]'; bash scripts/slurm.sh start.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig
from support import Commands, composed, strip_times, stub_task

import lra.cli.command
from lra.cli import sweep, train
from lra.cli.report import main as report
from lra.config.settings import settings_of
from lra.core import locks
from lra.records import record
from lra.records.names import CONFIG, LOCK
from lra.records.outcome import state
from lra.report.render import figures
from lra.runs import estimate
from lra.runs.build import Job, assemble

SMOKE = ("--multirun", "experiment=smoke", "out=runs")
SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")
SIX = (*SMOKE, "system=simple,transformer,linear", "seed=1,2")
PLUGINS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
SLURM = ("hydra.launcher.cpus_per_task=1",)

BAD = '''
import os, signal, time
from pathlib import Path
from lra.attention.softmax import Softmax

class Bad(Softmax):
    """Until a file `repaired` is there, it fails, is killed, or takes its time."""

    def __init__(self, shape, *, what: str) -> None:
        super().__init__(shape, scale="head_dim")
        self.what = what

    def attend(self, q, k, v, key_mask):
        if q.device.type != "meta" and self.training and not Path("repaired").exists():
            if self.what == "fails":
                raise RuntimeError("the machine is on fire")
            if self.what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "dawdles":
                time.sleep(0.5)
        return super().attend(q, k, v, key_mask)
'''


@pytest.fixture(autouse=True)
def without_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds, and are none of these tests' concern; a launcher's processes draw them."""
    if not request.node.get_closest_marker("launcher"):
        monkeypatch.setattr(figures, "write_figures", lambda folder, sections: [])


def installed(plugin: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is not None


def launcher(name: str) -> tuple[str, ...]:
    """The overrides of a launcher; the test is skipped where it is not there."""
    if name == "basic":
        return ()
    if not installed(PLUGINS[name]):
        pytest.skip(f"hydra-{PLUGINS[name]}-launcher is not installed")
    if name == "submitit_slurm" and (
        not shutil.which("sinfo") or subprocess.run(["sinfo"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no SLURM answers")
    return (f"hydra/launcher={name}", *(SLURM if name == "submitit_slurm" else ()))


def command(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of lra-train in a process of its own."""
    line = [sys.executable, "-m", "lra", "train", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=500)
    return done.returncode, done.stderr


def left(folder: Path) -> dict[str, tuple]:
    """Records and measurements by path, times left out."""
    found = {}
    for path in sorted(folder.rglob(record.NAME)):
        lines = [json.loads(line) for line in (path.parent / record.METRICS).read_text().splitlines()]
        found[path.relative_to(folder).as_posix()] = (
            strip_times(record.read(path)),
            [strip_times(line) for line in lines],
        )
    return found


@pytest.mark.launcher
@pytest.mark.parametrize("name", PLUGINS)
def test_every_launcher_leaves_the_same_records(cli: Commands, name: str) -> None:
    overrides = launcher(name)
    assert cli(train.main, *SIX)[0] == 0
    expected = left(Path("runs"))
    assert len(expected) == 6
    code, err = command(*SIX, "out=second", *overrides)
    assert code == 0, err
    assert "6 of 6 runs finished" in err
    assert left(Path("second")) == expected
    assert (
        Path("second/README.md").read_text().replace("second", "runs").split("## More")[0]
        == (Path("runs/README.md").read_text().split("## More")[0])
    )


@pytest.mark.launcher
def test_a_ray_cluster_that_runs_already(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = launcher("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    program = (
        "import ray, sys; print(ray.init(num_cpus=1, include_dashboard=False).address_info['address'], flush=True); "
    )
    with subprocess.Popen(
        [sys.executable, "-c", program + "sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        address = cluster.stdout.readline().strip()
        code, err = command(*SMOKE, "seed=1,2", *overrides, f"hydra.launcher.ray.init.address='{address}'")
    assert code == 0, err
    assert "2 of 2 runs finished" in err


@pytest.mark.launcher
@pytest.mark.parametrize("name", ["basic", "joblib", "submitit_slurm"])
def test_a_sweep_survives_a_failing_a_killed_and_a_slow_run(
    cli: Commands, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = launcher(name)
    Path("bad.py").write_text(BAD)
    options = Path("options/attention")
    options.mkdir(parents=True)
    for what in ("fails", "dies", "dawdles"):
        text = f"_target_: bad.Bad\n_partial_: true\nwhat: {what}\n"
        (options / f"{what}.yaml").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path(train.__file__).parents[2]}")
    line = ("--config-dir", "options", *SMOKE, "packages=[bad]", "attention=dies,dawdles,fails,simple", *overrides)
    code, err = command(*line, "isolate=true", "train.minutes=0.05")
    assert code == 75, err
    at = "runs/listops/paper"
    assert "1 of 4 runs finished, 1 failed, 1 killed, 1 paused" in err
    assert f"{at}/dies/transformer/seed1: killed: it ended without a word\n" in err
    assert f"{at}/dawdles/transformer/seed1: paused: train.minutes=0.05 are over\n" in err
    assert f"{at}/fails/transformer/seed1: failed: RuntimeError: the machine is on fire (error.log" in err
    assert "in attend" in Path(f"{at}/fails/transformer/seed1/error.log").read_text()
    assert "1 failed" in Path("runs/README.md").read_text()
    Path("repaired").touch()
    code, err = command(*line)
    assert code == 0, err
    assert "4 of 4 runs finished" in err
    assert {path[0]["status"] for path in left(Path("runs")).values()} == {"finished"}


@pytest.mark.launcher
def test_a_dead_worker_takes_no_run_with_it_that_had_not_begun(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """joblib kills all workers when one is killed; the others' runs are begun by new ones."""
    line = (*SMOKE, "seed=1,2,3,4,5", *launcher("joblib"), "hydra.launcher.n_jobs=2")
    monkeypatch.setenv("LRA_FAULT", "step:15:kill")
    code, err = command(*line)
    assert code == 1
    assert "the launcher gave up: TerminatedWorkerError" in err
    assert "0 of 5 runs finished, 5 killed" in err
    assert "Traceback" not in err
    monkeypatch.delenv("LRA_FAULT")
    assert command(*line)[0] == 0


@pytest.mark.launcher
def test_no_worker_outlives_its_driver(cli: Commands) -> None:
    line = (*SMOKE, "seed=1,2,3", "checkpoint.steps=10", "max_hours=null", *launcher("joblib"))
    driver = subprocess.Popen(
        [sys.executable, "-m", "lra", "train", *line, "hydra.launcher.n_jobs=2", "train.steps=1000000"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    runs = [Path(f"runs/listops/paper/simple/simple/seed{seed}/checkpoint.json") for seed in (1, 2)]
    while not all(run.exists() for run in runs) and driver.poll() is None:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    until = time.monotonic() + 120
    while (alive := session(driver.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive


def session(leader: int) -> list[str]:
    """The command lines of the processes that still belong to a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rsplit(")", 1)[1].split()[:4]
            if int(number) == leader and state != "Z":
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.launcher
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["basic", "joblib"])
def test_a_stopped_sweep_leaves_no_process_behind(cli: Commands, name: str, asked: signal.Signals) -> None:
    """Ctrl-C as a terminal sends it, to the whole group; SIGTERM to the driver alone."""
    line = (*SMOKE, "seed=1,2,3", "train.eval_every=10", "checkpoint.steps=10", "max_hours=null", *launcher(name))
    line += ("isolate=true",) if name == "basic" else ("hydra.launcher.n_jobs=2",)
    driver = subprocess.Popen(
        [sys.executable, "-m", "lra", "train", *line, "train.steps=1000000"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    first = Path("runs/listops/paper/simple/simple/seed1/checkpoint.json")
    while not first.exists() and driver.poll() is None:
        time.sleep(0.05)
    if asked == signal.SIGINT:
        os.killpg(driver.pid, asked)
    else:
        driver.send_signal(asked)
    _, err = driver.communicate(timeout=300)
    assert driver.returncode == (130 if asked == signal.SIGINT else 75), err
    assert "Traceback" not in err
    assert "0 of 3 runs finished" in err
    assert "killed" not in err
    deadline = time.monotonic() + 120
    while session(driver.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session(driver.pid) == []
    assert not any(state(path.parent)[0] == "running" for path in Path("runs").rglob(CONFIG))


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

    monkeypatch.setattr(train, "_command", lra.cli.command.command("train", sweep.run)(run_and_signal))
    code, out, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT)
    assert code == expected
    assert f"lra-train: paused ({number.name}); the same command goes on\n" in err
    assert err.endswith("1 of 3 runs finished, 2 waiting\n")
    assert "# Results: runs" in out
    assert "1/3, 2 missing" in Path("runs/README.md").read_text()
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
    assert (code, err.count("paused (SIGTERM)")) == (75, 1)
    assert len(list(Path("runs").rglob(CONFIG))) <= 1
    assert err.splitlines()[-1].startswith("0 of 3 runs finished")


def test_every_seed_of_a_row_comes_before_the_next_row(cli: Commands) -> None:
    code, out, err = cli(train.main, *SMOKE, "seed=1,2", *SHORT, "system=simple,linear")
    assert code == 0, err
    found = re.findall(r"^\[(\d)/4\] listops (\w+)/\w+ \(paper\) seed (\d)", out, re.MULTILINE)
    assert found == [("1", "simple", "1"), ("2", "simple", "2"), ("3", "linear", "1"), ("4", "linear", "2")]


def test_a_sweep_and_its_records_name_what_is_softmax_here(cli: Commands) -> None:
    """Longformer's window of 512 holds ListOps of 60 tokens; blocks of 50 do not."""
    code, out, err = cli(train.main, *SMOKE, "describe=true", "system=longformer,local")
    assert code == 0, err
    assert re.findall(r'"full_pattern": (\w+)', out) == ["true", "false"]
    said = "= softmax at this length, where nothing is left out: listops longformer/transformer (paper)"
    assert err.splitlines()[0] == said
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
    [found] = Path("runs").rglob(record.NAME)
    seconds = record.read(found)["seconds"]
    took = sum(seconds.values())
    most = seconds["evaluate" if system == "simple" else "train"]
    assert most > 0.7 * took, "an estimate of the other part alone is off by more"
    assert took / 3 < said < 3 * took, (said, took)


def test_one_example_is_measured_with_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block reads the CLS alone and costs little: 0.06 s, where the others take 0.37 s each."""
    settings = settings_of(composed("task=listops", "model.depth=6", "model.dim=16", "model.heads=2"))
    work = estimate.Work(settings=settings, system=assemble(settings), runs=1)
    monkeypatch.setattr(estimate, "_training", lambda model, *_: 0.06 + 0.37 * (len(model.blocks) - 1))
    trained, evaluated = 15_000 * 32, 300 * 23 + 2 * 23  # 23 examples, every 50 of 15,000 steps, the test twice
    expected = (0.06 + 0.37 * 5) * (trained + evaluated / 3)
    assert settings.train["eval_every"] == 50
    assert estimate._seconds(work, stub_task(), 0.1) == pytest.approx(expected)


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


def test_a_status_says_where_and_why(cli: Commands) -> None:
    line = (*SMOKE, *SHORT, "seed=1,2,3")
    assert cli(train.main, *line)[0] == 0
    folder = Path("runs/listops/paper/simple/simple")
    record.write(
        folder / "seed2", {**record.read(folder / "seed2" / record.NAME), "status": "failed", "reason": "fire"}
    )
    (folder / "seed3" / record.NAME).unlink()
    with locks.hold(folder / "seed3" / LOCK, 0):
        code, out, _ = cli(report, "runs", "--once")
    assert code == 0
    assert out.startswith("1 running, 1 failed, 1 finished")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    run = "listops/paper/simple/simple/seed"
    assert f"running {run}3 {platform.node()}, process {os.getpid()}" in lines
    assert f"failed {run}2 fire" in lines


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
    with device.placed("cuda", 1):
        with device.placed("cuda", 4), device.placed("cuda", 7), device.placed("cuda", 11):
            assert taken == [1, 2, 0, 2]
        with device.placed("cuda", 3), device.placed("cpu", 2):
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
        (["also=simple", "seed=1,2"], "also=simple: this sweep has no list of attentions to add to"),
        (["also=fnet,linear", "system=simple,longformer"], "also=fnet,linear: several rows are written also=[...]"),
        (["also=fnt", "system=simple,longformer"], "attention=fnt: no such option; did you mean 'fnet'?"),
    ],
)
def test_a_row_that_cannot_be_added_is_named(words: list[str], message: str, cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "describe=true", *words)
    assert code == 2
    assert message in err


def test_a_single_run_has_no_further_rows(cli: Commands) -> None:
    code, _, err = cli(train.main, "experiment=smoke", "also=fnet")
    assert code == 2
    assert "also=fnet: only a sweep has further rows" in err
