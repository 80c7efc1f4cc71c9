"""What surrounds a command: a disk without room, a clock that is set back, another command, a lock that is gone."""

import os
import resource
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from time import sleep

from faults.kinds import KINDS, left, undisturbed
from faults.runs import Ended, small_disk, with_mounts
from faults.trial import Case, Outcome, Verdict, equal

import lra.records.provenance as provenance
from lra.core.signals import PAUSED
from lra.records.names import LOCK

KIBIBYTES = (4, 2000)  # of a disk or a file, the least and the most


def once_more(injected: str, name: str, ended: Ended, folder: Path) -> Outcome:
    """What was disturbed is in one line, if it came to no end, and the same command leaves what it should."""
    if ended.code != 0 and (ended.code < 0 or "Traceback" in ended.err or not ended.err.strip()):
        return Outcome(injected, f"{ended.code}, {ended.said}", Verdict.WRONG)
    first = "ended" if ended.code == 0 else f"{ended.code}, {ended.err.strip().splitlines()[-1]}"
    again = KINDS[name].command()
    outcome = equal(injected, again, left(folder), undisturbed(name).left)
    return Outcome(injected, f"{first}; then {outcome.seen}", outcome.verdict)


def full_disk(name: str, rng: Random, folder: Path) -> Outcome:
    """A file system that has room for so much; later there is more."""
    size = round(KIBIBYTES[0] * (KIBIBYTES[1] / KIBIBYTES[0]) ** rng.random())
    injected = f"a disk with room for {size} kB"
    undisturbed(name)  # in this process, for all cases

    def scenario() -> list:
        small_disk(folder, "size=64m")
        os.chdir(folder)
        KINDS[name].lay(folder)
        used = sum(-(-path.stat().st_size // 4096) * 4 for path in folder.rglob("*") if path.is_file())
        small_disk(folder, f"size={used + size}k")
        ended = KINDS[name].command()
        small_disk(folder, "size=64m")
        outcome = once_more(injected, name, ended, folder)
        return [outcome.seen, outcome.verdict]

    seen, verdict = with_mounts(scenario)
    return Outcome(injected, seen, Verdict(verdict))


def limited_files(name: str, rng: Random, folder: Path) -> Outcome:
    """No file may be larger."""
    size = round(1024 * KIBIBYTES[0] * (KIBIBYTES[1] / KIBIBYTES[0]) ** rng.random())

    def limit() -> None:
        KINDS[name].inside()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    KINDS[name].lay(folder)
    return once_more(f"files of at most {size} bytes", name, KINDS[name].command(inside=limit), folder)


def clock_back(name: str, rng: Random, folder: Path) -> Outcome:
    """A command is stopped, and goes on before it has begun, by the clock."""
    kind, days = KINDS[name], rng.choice((1, 365, 9000))
    kind.lay(folder)
    share = rng.uniform(0.2, 0.9)
    child = kind.start()
    sleep(share * undisturbed(name).seconds)
    os.kill(child.process, signal.SIGKILL)
    child.ends()
    now = time.time

    def earlier() -> None:
        kind.inside()
        time.time = lambda: now() - 86400 * days
        provenance.now = lambda: (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")

    return once_more(f"{days} days back, stopped at {share:.2f}", name, kind.command(inside=earlier), folder)


def at_once(name: str, rng: Random, folder: Path) -> Outcome:
    """Two of the same command: each does its work or says who is at it."""
    kind, pause = KINDS[name], rng.uniform(0, undisturbed(name).seconds)
    kind.lay(folder)
    first = kind.start()
    sleep(pause)
    second = kind.start()
    ended = [first.ends(), second.ends()]
    return _both(f"another one after {pause:.2f} s", name, ended, folder)


def lock_gone(name: str, rng: Random, folder: Path) -> Outcome:
    """The locks are deleted under a running command, and another begins."""
    kind, pause = KINDS[name], rng.uniform(0.3, 0.9)
    kind.lay(folder)
    first = kind.start()
    sleep(pause * undisturbed(name).seconds)
    gone = sorted(path.name for pattern in (LOCK, ".*.lock") for path in folder.rglob(pattern) if _unlinked(path))
    second = kind.start()
    ended = [first.ends(), second.ends()]
    return _both(f"{', '.join(gone) or 'no lock'} deleted at {pause:.2f}", name, ended, folder)


def _unlinked(path: Path) -> bool:
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def _both(injected: str, name: str, ended: list[Ended], folder: Path) -> Outcome:
    for command in ended:
        if command.code not in (0, 1, 2, PAUSED) or "Traceback" in command.err:
            return Outcome(injected, f"{command.code}, {command.said}", Verdict.WRONG)
    again = KINDS[name].command()
    outcome = equal(injected, again, left(folder), undisturbed(name).left)
    codes = " and ".join(str(command.code) for command in ended)
    return Outcome(injected, f"{codes}; then {outcome.seen}", outcome.verdict)


RUNS = ("probe", "files", "pretraining, masked", "sweep")
PAGES = ("report", "pack", "unpack")
CONDITIONS: dict[str, tuple[Callable[[str, Random, Path], Outcome], tuple[str, ...]]] = {
    "full disk": (full_disk, (*RUNS, *PAGES)),
    "limit of file sizes": (limited_files, (*RUNS, *PAGES)),
    "two at once": (at_once, (*RUNS, *PAGES)),
    "clock set back": (clock_back, RUNS),
    "lock deleted": (lock_gone, RUNS),
}
INPUTS: dict[str, Case] = {
    f"{name}: {condition}": partial(act, name) for condition, (act, names) in CONDITIONS.items() for name in names
}
