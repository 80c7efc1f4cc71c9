"""Many processes at one results folder and one cache: nothing is torn, nothing is done twice, nothing is lost."""

import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from faults.kinds import children
from faults.runs import TINY, Child, command, observe, result, sending, when, without_figures
from faults.trial import processes_at
from support import Commands, composed, job_of

import lra.cli.train
import lra.runs.execute
import lra.runs.folder
import lra.training.fit
from lra.cli.report import main as report
from lra.config.cell import cell_of
from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.core.signals import PAUSED
from lra.data import cache
from lra.records import record
from lra.records.names import LOCK
from lra.records.run_files import RunFiles
from lra.report import write_report
from lra.report.read.records import load
from lra.runs import plan
from lra.runs.folder import run

QUICK = (*TINY, "train.steps=10")
SWEEP = ("--multirun", *QUICK, "out=runs", "cache=own")
SEEDS = [1, 2, 3, 4]
ONCE = {"data": 1, **{f"seed {seed}": 1 for seed in SEEDS}}
TASK = "listops (length 5-40, depth 4, 97/31/37 examples)"


def logged() -> None:
    """For `inside`: a line in `log` for every preparation and every run that begins."""
    without_figures()

    def note(line: str) -> None:
        with open("log", "a") as file:
            file.write(f"{line}\n")

    when(cache, "_build", 1, lambda *_: note("data"))()
    for number in range(1, 9):
        when(lra.runs.execute, "train_and_test", number, lambda job, *_: note(f"seed {job.settings.seed}"))()


def done() -> dict[str, int]:
    """How often what was begun."""
    return dict(sorted(Counter(Path("log").read_text().splitlines()).items()))


def finished(out: str = "runs") -> int:
    """How many of the declared seeds are done; raises where any file is torn."""
    cells = load(RunFiles(Path(out)), None)
    return sum(len(cell.scores()) for cell in cells)


def test_eight_processes_at_once(record_property, cli: Commands) -> None:
    """Each declares, prepares, trains the same four runs, beginning with another, and writes the report."""
    jobs = []
    for seed in SEEDS:
        cfg = composed(*QUICK, "out=runs", "cache=own", f"seed={seed}")
        jobs.append((settings_of(cfg), cell_of(cfg, cfg.hydra, [])))
    cell = jobs[0][1]
    declared = {**asdict(cell), "task_name": TASK, "selection": "last", "folder": cell.folder.as_posix()}

    def work(first: int) -> None:
        plan.declare(Path("runs"), [{**declared, "seeds": SEEDS}])
        for settings, cell in [*jobs[first:], *jobs[:first]]:
            with suppress(UserError):  # another process is at work on it
                run(job_of(settings, cell))
            if next(Path("runs").rglob(record.NAME), None):
                write_report(Path("runs"))

    children = [Child(main=partial(work, number % 4), inside=logged) for number in range(8)]
    ended = [child.ends() for child in children]
    assert [end.code for end in ended] == [0] * 8, [end.err for end in ended]
    assert not list(Path(".").rglob("*.tmp"))
    assert finished() == 4
    observe(
        record_property,
        "8 processes prepare, train the same 4 runs and report",
        "8 processes",
        f"4 done; begun: {ONCE}",
        f"{finished()} done; begun: {done()}",
    )


def test_two_sweeps_at_once(record_property, cli: Commands) -> None:
    """What one has begun the other passes over, and says so; every reading in between finds whole files."""
    children = [Child(*SWEEP, f"seed={seeds}", inside=logged) for seeds in ("1,2,3,4", "4,3,2,1")]
    readings = 0
    while any(not _ended(child) for child in children):
        if next(Path("runs").rglob(record.NAME), None):
            finished()
            readings += 1
        sleep(0.05)
    ended = [child.ends() for child in children]
    assert readings > 0
    assert {child.code for child in ended} <= {0, PAUSED}, [child.err for child in ended]
    again = command(*SWEEP, f"seed={','.join(map(str, SEEDS))}", inside=logged)
    observe(
        record_property,
        "2 sweeps of the same 4 runs at once",
        "2 processes",
        f"the same command: 0; 4 done; begun: {ONCE}",
        f"the same command: {again.code}; {finished()} done; begun: {done()}",
    )


def _ended(child: Child) -> bool:
    return os.waitid(os.P_PID, child.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_another_process_finishes_first(record_property, cli: Commands) -> None:
    """Between the question whether a run is done and its lock."""

    def both() -> None:
        logged()
        when(lra.runs.folder.locks, "hold", 1, lambda *_, **__: command(*QUICK, "out=runs", "cache=own"))()

    ended = command(*QUICK, "out=runs", "cache=own", inside=both)
    assert "finished before, nothing to do" in ended.err
    observe(
        record_property,
        "finished by another process in between",
        "a run in the gap",
        "begun: 1",
        f"begun: {done()['seed 1']}",
    )


def test_a_lock_is_deleted_under_a_run_and_another_process_takes_it(record_property, cli: Commands) -> None:
    """Between two evaluations; the other process does the run alone, and nothing of it is written twice."""

    def robbed() -> None:
        def act(*_: object) -> None:
            lock.unlink()
            command(*TINY, "out=runs")

        when(lra.training.fit, "update", 11, act)()

    assert command(*TINY, "out=whole").code == 0
    lock = Path("runs") / next(Path("whole").rglob(LOCK)).relative_to("whole")
    ended = command(*TINY, "out=runs", inside=robbed)
    assert ended.said.startswith(f"lra-train: error: {lock}: deleted or replaced while it was held, so another process")
    same = "the same end" if result("runs") == result("whole") else "another end"
    observe(
        record_property, "lock deleted under a run, another takes it", "unlink, a run", "2, one line; the same end",
        f"{ended.summary}; {same}",
    )  # fmt: skip


def test_a_killed_sweep(record_property, cli: Commands) -> None:
    """The table shows what is missing; the same command runs that and nothing else."""

    def dying() -> None:
        logged()
        when(lra.runs.execute, "train_and_test", 3, sending(signal.SIGKILL))()

    killed = command(*SWEEP, "seed=1,2,3,4", inside=dying)
    shown = command("runs", main=report, inside=without_figures)
    table = "2/4" if "2/4 runs are done; 2 missing" in shown.out and "(2/4, 2 missing)" in _page() else shown.out
    again = command(*SWEEP, "seed=1,2,3,4", inside=logged)
    assert "4 of 4 runs finished" in again.err
    assert "(4/4)" in _page()
    observe(
        record_property,
        "sweep killed in its 3rd of 4 runs",
        "SIGKILL",
        f"-9, table 2/4; then 0, begun: {ONCE}",
        f"{killed.code}, table {table}; then {again.code}, begun: {done()}",
    )


def test_a_failed_and_a_paused_run_of_a_sweep(record_property, cli: Commands) -> None:
    """One of four fails, the sweep is asked to stop in the fourth: 75; the same command runs these two."""

    def trouble() -> None:
        logged()
        when(lra.runs.execute, "train_and_test", 2, _fire)()
        when(lra.runs.execute, "train_and_test", 4, sending(signal.SIGTERM))()

    stopped = command(*SWEEP, "seed=1,2,3,4", inside=trouble)
    page = command("runs", main=report, inside=without_figures).out
    shown = "2/4 runs are done; 1 failed, 1 paused" in page and "(2/4, 1 failed, 1 paused)" in _page()
    Path("log").unlink()
    again = command(*SWEEP, "seed=1,2,3,4", inside=logged)
    observe(
        record_property,
        "1 of 4 fails, the sweep is stopped in the 4th",
        "exception, SIGTERM",
        "75, table 2/4; then 0, begun: ['seed 2', 'seed 4']",
        f"{stopped.code}, table {'2/4' if shown else page}; then {again.code}, begun: {list(done())}",
    )


def test_a_worker_that_has_no_run_yet_does_not_outlive_its_driver(record_property, cli: Commands) -> None:
    """The driver is killed while joblib's workers still import what they need."""
    sweep = Child(*SWEEP, "seed=1,2,3,4", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", inside=without_figures)
    workers: list[int] = []
    while not workers:
        assert not _ended(sweep), "it ended before a worker was seen"
        sleep(0.01)
        workers = [child for child in children(sweep.process) if "LokyProcess" in processes_at(Path()).get(child, "")]
    os.kill(sweep.process, signal.SIGKILL)
    sweep.ends()
    end = monotonic() + 600  # to import what they need takes seconds
    while processes_at(Path()) and monotonic() < end:
        sleep(0.05)
    seen = f"left: {len(processes_at(Path()))}"
    observe(record_property, "driver killed before its workers have runs", "SIGKILL", "left: 0", seen)


def _page() -> str:
    return Path("runs/README.md").read_text()


def _fire(*_: object) -> None:
    raise RuntimeError("fire")
