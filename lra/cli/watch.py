"""lra-report DIR --watch: a running sweep in the terminal, from what its runs leave as they go."""

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path, PurePosixPath
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lra.core.errors import UserError, printable
from lra.core.files import read_json
from lra.records import checkpoint, outcome
from lra.records.names import CONFIG, METRICS, RECORD, SWEEP, seed_folder
from lra.records.run_files import RunFiles
from lra.report.read import records, schema
from lra.report.read.records import Tell, declarations, read_record, refuse

SECONDS = 2.0  # between two looks
WIDEST = 100_000  # characters of a line
SEED = re.compile(r"seed(-?\d{1,18})")  # the name of a run's folder
ENDED = ("finished", "diverged", "failed", "refused")
STATES = {
    "running": "bold cyan",
    "failed": "bold red",
    "refused": "bold red",
    "diverged": "red",
    "paused": "yellow",
    "killed": "yellow",
    "waiting": "dim",
    "finished": "green",
}
"""Of lra.records.outcome, in the order in which cells are shown."""
SILENT = ("waiting", "finished")


@dataclass(frozen=True)
class WatchedRun:
    """One seed as it stands. `note`: where it runs, or why it does not; `step`: of the last evaluation; `spent`:
    seconds up to there; `accuracy`: what was found; `saved`: the step of the checkpoint."""

    cell: str
    seed: int
    state: str
    note: str = ""
    step: int = 0
    steps: int = 0
    spent: float = 0.0
    accuracy: float | None = None
    saved: int = 0

    @property
    def whole(self) -> float | None:
        """Seconds from its start to its end at the pace so far, None where there is no pace yet."""
        return self.spent / self.step * self.steps if self.step else None

    @property
    def part(self) -> float:
        """How much of it is done, from 0 to 1."""
        if self.state in ENDED:
            return 1.0
        return max(self.step, self.saved) / self.steps if self.steps else 0.0


def watch(folder: Path, once: bool, tell: Tell = refuse) -> None:
    """Show the sweep below `folder` until all its runs have ended, or one frame of it. `tell` hears of each sweep.json
    that cannot be read. Raises UserError."""
    console = Console()
    if once:
        _print_whole(console, frame(look(folder, tell)))
        return
    with Live(console=console, auto_refresh=False) as live:
        try:
            runs = look(folder, tell)
            while not all(run.state in ENDED for run in runs):
                live.update(frame(runs, most=max(1, console.height // 2 - 5)), refresh=True)
                time.sleep(SECONDS)
                runs = look(folder, tell)
            live.update(frame(runs), refresh=True)
        except KeyboardInterrupt:
            return


def _print_whole(console: Console, shown: Group) -> None:
    """Print without breaking a line: a path stays in one piece, whatever the width of the terminal."""
    console.width = max(console.width, console.measure(shown, options=console.options.update(width=WIDEST)).maximum)
    with console.capture() as captured:
        console.print(shown)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def look(folder: Path, tell: Tell = refuse) -> list[WatchedRun]:
    """Every run below `folder` that was declared or has begun; other files may lie there, too. `tell`: as in `watch`.

    Raises UserError.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    files = RunFiles(folder)
    begun = {path.parent for path in folder.rglob(CONFIG) if SEED.fullmatch(path.parent.name)}
    packed = {
        folder / path: path
        for path in files.find(RECORD)
        if files.is_packed(path) and SEED.fullmatch(PurePosixPath(path).parent.name)
    }
    declared = {
        folder / place / seed_folder(seed) for place, cell in declarations(files, tell) for seed in cell["seeds"]
    }
    places = (begun - {folder}) | declared - {path.parent for path in packed}
    if not places and not packed:
        raise UserError(f"{folder}: no run and no {SWEEP} below it; start lra-train with out={folder} first")
    runs = [_run(folder, place) for place in places] + [_packed(files, path) for path in packed.values()]
    return sorted(runs, key=lambda run: (run.cell, run.seed))


def _packed(files: RunFiles, path: str) -> WatchedRun:
    """One whose record is in a receipts file; it has ended."""
    place = PurePosixPath(path).parent
    cell, seed = place.parent.as_posix(), int(SEED.fullmatch(place.name)[1])
    try:
        run = read_record(files, path)
    except ValueError as error:
        return WatchedRun(cell, seed, "refused", str(error))
    accuracy = run.get("validation", {}).get("last", {}).get("accuracy")
    return WatchedRun(
        cell, seed, run["status"], run.get("reason", ""), run.get("steps", 0), run.get("steps", 0), accuracy=accuracy
    )


def _run(folder: Path, place: Path) -> WatchedRun:
    """One that cannot be read is shown as refused, with the file."""
    cell, seed = place.parent.relative_to(folder).as_posix(), int(SEED.fullmatch(place.name)[1])
    metrics = place / METRICS
    try:
        state, note = outcome.state(place)
        step, spent, accuracy = _progress(metrics, metrics.stat().st_mtime_ns) if metrics.exists() else (0, 0.0, None)
        steps, saved = _steps(place / CONFIG), checkpoint.newest(place)
    except (UserError, OSError) as error:
        return WatchedRun(cell, seed, "refused", str(error))
    return WatchedRun(cell, seed, state, str(note), step, steps, spent, accuracy, saved)


def _steps(config: Path) -> int:
    """The steps of the whole run, 0 where it has not begun. Raises UserError."""
    try:
        return schema.check(schema.Steps, read_json(config)).train.steps
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise UserError(f"{config}: not the configuration of a run: {error}") from None


@cache
def _progress(metrics: Path, changed: int) -> tuple[int, float, float | None]:
    """Step, seconds and accuracy of the last evaluation; read again only when the file has `changed`.

    Raises UserError.
    """
    try:
        lines = [schema.check(schema.Evaluation, line) for line in records.read_lines(metrics)]
    except ValueError as error:
        raise UserError(f"{metrics}: not what a run measured: {error}") from None
    if not lines:
        return 0, 0.0, None
    return lines[-1].step, sum(line.seconds for line in lines), lines[-1].val_accuracy


def seconds_left(runs: list[WatchedRun]) -> float | None:
    """Until all have ended, if as many as now go on side by side; None where nothing runs or no pace is known.

    A run without a pace of its own takes as long as those of its cell do, or else as all do.
    """
    at_once = sum(run.state == "running" for run in runs)
    timed = [run for run in runs if run.whole is not None]
    if not at_once or not timed:
        return None
    left = 0.0
    for run in runs:
        if run.state not in ENDED:
            alike = [other.whole for other in timed if other.cell == run.cell] or [other.whole for other in timed]
            left += (run.whole or fmean(alike)) * (1 - run.part)
    return left / at_once


def frame(runs: list[WatchedRun], most: int | None = None) -> Group:
    """What is shown: a line for all; a line for each cell, those at work first; a line for each run that is at work or
    did not get to its end. `most` of either, where there is a limit."""
    cells = [list(group) for _, group in groupby(runs, key=lambda run: run.cell)]
    cells.sort(key=lambda cell: min(list(STATES).index(run.state) for run in cell))
    named = sorted((run for run in runs if run.state not in SILENT), key=lambda run: list(STATES).index(run.state))
    table = _table("cell", "runs", "done", "validation accuracy")
    for cell in cells[:most]:
        scores = " ".join(f"{run.accuracy:.1f}" for run in cell if run.accuracy is not None)
        bar = ProgressBar(total=len(cell), completed=sum(run.part for run in cell), width=12)
        table.add_row(Text(printable(cell[0].cell)), _counts(cell), bar, scores)
    notes = _table("", "run", "where it runs, or why not")
    for run in named[:most]:
        name = Text(printable(f"{run.cell}/seed{run.seed}"))
        notes.add_row(
            Text(run.state, style=STATES[run.state]), name, Text("\n".join(map(printable, run.note.splitlines())))
        )
    left = seconds_left(runs)
    summary = _counts(runs).append("" if left is None else f"; about {_duration(left)} left")
    parts = [summary, table, *_hidden(cells, most, "cells"), *([Text(), notes] if named else [])]
    return Group(*parts, *_hidden(named, most, "runs"))


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _hidden(lines: list, most: int | None, what: str) -> list[Text]:
    number = len(lines) - len(lines[:most])
    return [Text(f"and {number} more {what}", style="dim")] if number else []


def _counts(runs: list[WatchedRun]) -> Text:
    counts = Counter(run.state for run in runs)
    parts = [Text(f"{counts[state]} {state}", style=style) for state, style in STATES.items() if counts[state]]
    return Text(", ").join(parts)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
