"""lra-report DIR --watch: what it says of a sweep whose runs wait, go on, stop and end."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from furnish import EVERY, curve
from reports import declare
from rich.console import Console
from support import Commands

from lra.cli import report as command
from lra.cli import watch
from lra.core import locks
from lra.core.errors import UserError
from lra.core.files import write_json
from lra.records import checkpoint, record

STEPS = 10 * EVERY
CELL = "listops/paper/simple/simple"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of five seeds that has not begun."""
    declare(tmp_path, {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3, 4, 5]})
    return tmp_path


def begin(folder: Path, seed: int, evaluations: int, cell: str = CELL) -> Path:
    """A run with so many of its ten evaluations, and no process at work on it."""
    place = folder / cell / f"seed{seed}"
    curve(place, seed, evaluations)
    write_json(place / "config.json", {"train": {"steps": STEPS}})
    return place


def end(place: Path, status: str) -> None:
    record.write(place, {"status": status})


def states(folder: Path) -> dict[int, str]:
    return {run.seed: run.state for run in watch.look(folder)}


def shown(runs: list[watch.WatchedRun], most: int | None = None) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(watch.frame(runs, most))
    return captured.get()


def test_every_state_of_a_run(folder: Path) -> None:
    assert set(states(folder).values()) == {"waiting"}
    for seed, status in ((1, "finished"), (2, "failed"), (3, "paused")):
        end(begin(folder, seed, 4), status)
    begin(folder, 4, 4)
    assert states(folder) == {1: "finished", 2: "failed", 3: "paused", 4: "killed", 5: "waiting"}


def test_a_run_is_at_work_while_a_process_holds_its_lock(folder: Path) -> None:
    """Also one that was paused or failed before and is tried again; and no longer once the process was killed."""
    place = begin(folder, 1, 4)
    end(place, "paused")
    program = (
        f"import time; from pathlib import Path; from lra.core.locks import hold; "
        f"lock = hold(Path({str(place / '.run.lock')!r}), 0); lock.__enter__(); "
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program + "print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        other.stdout.readline()
        assert states(folder)[1] == "running"
    finally:
        other.kill()
        other.communicate()
    assert states(folder)[1] == "paused"


def test_looking_leaves_no_lock_behind(folder: Path) -> None:
    place = begin(folder, 1, 1)
    (place / ".run.lock").touch()
    assert states(folder)[1] == "killed"
    with locks.hold(place / ".run.lock", 0):
        assert states(folder)[1] == "running"


def test_time_left_by_hand(folder: Path) -> None:
    """Twenty seconds a run, two at a time: 16 and 8 seconds of those at work, 20 of each that waits."""
    with locks.hold(begin(folder, 1, 2) / ".run.lock", 0), locks.hold(begin(folder, 2, 6) / ".run.lock", 0):
        end(begin(folder, 3, 10), "finished")
        end(begin(folder, 4, 3), "failed")
        assert watch.seconds_left(watch.look(folder)) == pytest.approx((16 + 8 + 20) / 2)
    assert watch.seconds_left(watch.look(folder)) is None


def test_a_run_that_waits_takes_as_long_as_those_of_its_cell() -> None:
    quick = watch.WatchedRun("quick", 1, "running", step=10, steps=100, spent=1.0)
    slow = watch.WatchedRun("slow", 1, "finished", step=100, steps=100, spent=90.0)
    assert watch.seconds_left([quick, slow, watch.WatchedRun("slow", 2, "waiting")]) == pytest.approx(9 + 90)
    assert watch.seconds_left([quick, slow, watch.WatchedRun("new", 1, "waiting")]) == pytest.approx(9 + (10 + 90) / 2)
    assert watch.seconds_left([watch.WatchedRun("quick", 1, "running")]) is None


@pytest.mark.parametrize(("seconds", "text"), [(12, "12 s"), (90, "2 min"), (3600, "1 h 00 min"), (5400, "1 h 30 min")])
def test_what_the_frame_says(seconds: float, text: str) -> None:
    runs = [
        watch.WatchedRun("a/done", 1, "finished", "", 100, 100, 50.0, 36.5),
        watch.WatchedRun("b/active", 1, "running", "node3, process 7", 50, 100, seconds, 35.25),
        watch.WatchedRun("b/active", 2, "failed", "MemoryError", 10, 100, 10.0),
    ]
    page = shown(runs)
    assert page.splitlines()[0] == f"1 running, 1 failed, 1 finished; about {text} left"
    assert page.index("b/active") < page.index("a/done")
    assert "35.2" in page
    notes = [line.split() for line in page.splitlines()[-2:]]
    assert notes == [
        ["running", "b/active/seed1", "node3,", "process", "7"],
        ["failed", "b/active/seed2", "MemoryError"],
    ]
    assert "more cells" not in page


def test_cells_that_have_no_room_are_counted() -> None:
    page = shown([watch.WatchedRun(f"cell{number}", 1, "waiting") for number in range(9)], most=4)
    assert "cell3" in page
    assert "cell4" not in page
    assert "and 5 more cells" in page


def test_one_frame(folder: Path, capsys: pytest.CaptureFixture) -> None:
    end(begin(folder, 1, 10), "finished")
    watch.watch(folder, once=True)
    assert capsys.readouterr().out.startswith("4 waiting, 1 finished\n")


def test_goes_on_until_all_have_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ended = iter([(1, "finished"), (2, "diverged"), (3, "failed"), (4, "finished"), (5, "finished")])

    def wait(_: float) -> None:
        seed, status = next(ended)
        end(begin(folder, seed, 10), status)

    monkeypatch.setattr(time, "sleep", wait)
    watch.watch(folder, once=False)
    assert next(ended, None) is None
    assert "1 failed, 1 diverged, 3 finished" in capsys.readouterr().out


def test_an_interrupt_ends_it_quietly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    watch.watch(folder, once=False)
    out, err = capsys.readouterr()
    assert "5 waiting" in out
    assert err == ""


def test_progress_follows_the_file(folder: Path) -> None:
    """A line that is being written counts when it is whole; runs of no sweep are seen, too."""
    place = begin(folder, 7, 3, cell="alone")
    [run] = [run for run in watch.look(folder) if run.cell == "alone"]
    assert (run.step, run.steps, run.spent, run.part) == (3 * EVERY, STEPS, 6.0, 0.3)
    path = place / record.METRICS
    path.write_text(path.read_text() + json.dumps({"step": 40, "seconds": 2.0, "val_accuracy": 1.0}))
    assert next(run.step for run in watch.look(folder) if run.cell == "alone") == 30
    path.write_text(path.read_text() + "\n")
    assert next(run.step for run in watch.look(folder) if run.cell == "alone") == 40
    path.write_text(path.read_text() + '{"step": 50}\n')  # all that the schema of a line demands
    [run] = [run for run in watch.look(folder) if run.cell == "alone"]
    assert (run.step, run.spent, run.accuracy) == (50, 8.0, None)


def test_between_two_evaluations_checkpoints_tell_the_progress(folder: Path) -> None:
    place = begin(folder, 1, 3)
    with locks.hold(place / ".run.lock", 0):
        for step, left in ((20, 14), (50, 10)):  # the last evaluation was at 30 of 100, two seconds for each ten steps
            checkpoint.write(place, checkpoint.Generation(step=step, tensors={}, state={}))
            assert watch.seconds_left([watch.look(folder)[0]]) == pytest.approx(left)


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no such folder"), (".", "no run and no sweep.json")])
def test_nothing_to_watch(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        watch.watch(tmp_path / name, once=True)


def test_a_damaged_record_is_named(folder: Path) -> None:
    """In the row of its run; the others are shown as they are."""
    (begin(folder, 1, 1) / record.NAME).write_text("{")
    runs = watch.look(folder)
    assert [run.state for run in runs] == ["refused", "waiting", "waiting", "waiting", "waiting"]
    assert re.match(r".*seed1/record.json: not a readable record", runs[0].note)


def test_foreign_files_are_no_runs(folder: Path, cli: Commands) -> None:
    """Folders, FIFOs and links in the place of files, and files of other programs; those that should be a run's are
    named in its row, a foreign sweep.json at the end."""
    end(begin(folder, 1, 10), "finished")
    place = begin(folder, 2, 1)
    (place / record.METRICS).unlink()
    os.mkfifo(place / record.METRICS)
    (begin(folder, 3, 1) / record.NAME).mkdir()
    (begin(folder, 4, 1) / "config.json").write_text('{"train": [], "model": "\\u001b[31m"}')
    (begin(folder, 5, 0) / record.METRICS).write_text('{"step": 10, "val_accuracy": "high"}\n')
    os.mkfifo(folder / "config.json")
    for name in ("other/config.json", "seed9", "seedling/config.json"):
        (folder / name).mkdir(parents=True)
    (folder / "loop").symlink_to(folder)
    (folder / "other" / "sweep.json").symlink_to("/dev/zero")
    code, out, err = cli(command.main, str(folder), "--once")
    assert (code, out.splitlines()[0]) == (2, "4 refused, 1 finished")
    for seed, fault in (
        (2, "metrics.jsonl: not readable: expected a regular file, found a FIFO"),
        (3, "record.json: not a readable record: expected a regular file, found a folder"),
        (4, "config.json: not the configuration of a run: train: "),
        (5, "metrics.jsonl: not what a run measured: val_accuracy: "),
    ):
        assert f"{folder / CELL}/seed{seed}/{fault}" in out
    assert len(err.splitlines()) == 1
    assert "other/sweep.json: not what a sweep declares: expected a regular file, found a sym" in err


def test_one_frame_breaks_no_path_and_takes_no_name_for_markup(tmp_path: Path, cli: Commands) -> None:
    """Whatever the width of the terminal, and with escape sequences in the name of a folder."""
    cell = "listops/paper/simple/train.freeze=[qkv],[bold red]" + 20 * "/long" + "\x1b[31m\n"
    begin(tmp_path, 1, 1, cell)
    code, out, err = cli(command.main, str(tmp_path), "--once")
    shown_cell = cell.replace("\x1b", r"\x1b").replace("\n", r"\n")
    assert (code, err) == (0, "")
    assert shown_cell in out
    assert re.search(rf"killed +{re.escape(shown_cell)}/seed1 +the process ended without a", out)
    assert "\x1b" not in out
