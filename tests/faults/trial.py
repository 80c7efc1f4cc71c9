"""One case of the trial: what a case is, what may come of it, and the place that it happens in.

A case is a function `(rng, folder) -> Outcome`. It works in `folder`, an empty one that is the working directory, draws
whatever it draws from `rng`, and starts commands by `faults.runs`, in children, so that nothing of it stays in this
process. A module of tests/faults lists its cases by name, in `KILLS` for commands that are killed, in `INPUTS` for
files and arguments that are exchanged, damaged or made to do harm; the trial finds the module by these names:

    def another_seed(rng: Random, folder: Path) -> Outcome:
        ended = command(...)
        return equal("the checkpoint of seed 2", ended, left(folder), expected)

    INPUTS = {"checkpoint of another seed": another_seed}

Things lie around the folder (`..`), one of them is HOME, another TMPDIR. The trial compares them afterwards, and looks
for processes that are left: a case says nothing of that.
"""

import hashlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from faults.runs import Ended

KINDS_OF_CASES = ("kills", "inputs")
HERE = Path(__file__).parent
SHARED = ("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR")  # where libraries may keep what is no one's own
PATIENCE_SECONDS = 5.0  # for the processes of a command that was killed to end


class Verdict(StrEnum):
    """The first two are well."""

    EQUAL = "equal bytes"  # what the undisturbed command leaves
    REFUSED = "one line"  # and an exit code that is not 0
    LOST = "lost"  # the command cannot come to its end any more, or never ends
    WRONG = "wrong"  # it ends with something else, with a traceback, or touches what is not its own
    ABSENT = "not possible here"  # for want of a permission; counted apart


WELL = (Verdict.EQUAL, Verdict.REFUSED, Verdict.ABSENT)


@dataclass(frozen=True)
class Outcome:
    """What was done to a command or its files, what came of it, and how that is judged."""

    injected: str
    seen: str
    verdict: Verdict


Case = Callable[[Random, Path], Outcome]


def equal(injected: str, ended: Ended, seen: object, expected: object) -> Outcome:
    """Of a command that must end with 0 and leave what the undisturbed one leaves."""
    if ended.code != 0:
        return Outcome(injected, f"{ended.code}, {ended.said}", Verdict.LOST)
    if seen == expected:
        return Outcome(injected, "the same end", Verdict.EQUAL)
    return Outcome(injected, f"another end: {difference(seen, expected)}", Verdict.WRONG)


def difference(seen: Any, expected: Any) -> str:
    """The first thing in which two values differ, by its place."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        name = min((key for key in seen | expected if seen.get(key, "") != expected.get(key, "")), default="", key=str)
        if name in seen and name in expected:
            return f"{name}: {difference(seen[name], expected[name])}"
        return f"{name}: {'only here' if name in seen else 'missing'}"
    return f"{seen!s:.60}, expected {expected!s:.60}"


def cases(kind: str) -> dict[str, Case]:
    """All that the modules beside this one list under `KILLS` or `INPUTS`."""
    by_name: dict[str, Case] = {}
    for path in sorted(HERE.glob("[!_]*.py")):
        if path.stem.startswith("test_") or path.stem == "table":
            continue
        listed = getattr(import_module(f"faults.{path.stem}"), kind.upper(), {})
        assert not listed.keys() & by_name.keys(), f"{path}: two cases of one name"
        by_name |= listed
    return by_name


def named(kind: str, part: str = "") -> dict[str, Case]:
    """The cases with `part` in their names."""
    return {name: case for name, case in cases(kind).items() if part in name}


def drawn(kind: str, seed: int, number: int, part: str = "") -> tuple[str, Case, Random]:
    """The `number`-th case, from 1 on, of a seed, of those with `part` in their names: in the order that the seed draws
    all come once before one comes again."""
    known = named(kind, part)
    order = Random(f"{seed} {kind}").sample(sorted(known), len(known))
    name = order[(number - 1) % len(order)]
    return name, known[name], Random(f"{seed} {kind} {number}")


def tried(case: Case, rng: Random) -> Outcome:
    """Let a case happen in a new folder, and look at what lies around it."""
    with tempfile.TemporaryDirectory(prefix="lra-trial-") as place, _around(Path(place).resolve()) as folder:
        before = state(folder.parent, folder)
        try:
            outcome = case(rng, folder)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            seen = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            outcome = Outcome("the case itself failed", seen, Verdict.WRONG)
        touched = sorted({name for name, _ in before.items() ^ state(folder.parent, folder).items()})
        left = _left_at(folder)
        wrong = [f"touched outside: {', '.join(touched)}"] if touched else []
        wrong += [f"processes are left: {', '.join(left)}"] if left else []
        return replace(outcome, seen="; ".join([outcome.seen, *wrong]), verdict=Verdict.WRONG) if wrong else outcome


@contextmanager
def _around(place: Path) -> Iterator[Path]:
    """The folder of a case, as the working directory, among things that it must leave as they are."""
    folder = place / "work"
    for name in ("work", "home", "tmp", "precious/deep"):
        (place / name).mkdir(parents=True)
    (place / "precious/deep/thesis.txt").write_text("years of work")
    (place / "precious/link").symlink_to("deep/thesis.txt")
    (place / "record.json").write_text("{}")
    environment = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), "LRA_CACHE": str(folder / "cache")}
    environment |= dict.fromkeys(SHARED, tempfile.gettempdir())
    earlier, directory = {name: os.environ.get(name) for name in environment}, tempfile.tempdir
    os.environ |= environment
    tempfile.tempdir = environment["TMPDIR"]
    try:
        with chdir(folder):
            yield folder
    finally:
        tempfile.tempdir = directory
        for name, value in earlier.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def state(place: Path, besides: Path | None = None) -> dict[str, str]:
    """Every name below a folder with what is there: the digest of a file, the aim of a link; nothing of `besides`."""
    contents = {}
    for folder, names, files in os.walk(place):
        names[:] = [name for name in names if Path(folder, name) != besides]
        for path in (Path(folder, name) for name in [*names, *files]):
            name = path.relative_to(place).as_posix()
            if path.is_symlink():
                contents[name] = f"link to {path.readlink()}"
            elif path.is_file():
                contents[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                contents[name] = "folder" if path.is_dir() else "neither file nor folder"
    return contents


def _left_at(folder: Path) -> list[str]:
    """The processes that still work in a folder, after a while."""
    end = monotonic() + PATIENCE_SECONDS
    while True:
        left = [f"{process} ({words[:60].strip()})" for process, words in processes_at(folder).items()]
        if not left or monotonic() > end:
            return left
        sleep(0.1)


def processes_at(folder: Path) -> dict[int, str]:
    """The other processes that work in a folder, with their command lines."""
    command_lines = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            at, words = (process / "cwd").readlink(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if process.name != str(os.getpid()) and words and at.is_relative_to(folder.absolute()):
            command_lines[int(process.name)] = words.replace(bytes(1), b" ").decode(errors="replace")
    return command_lines
