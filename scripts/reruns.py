"""Are kept numbers what this code gives? Kept runs are trained again, twelve of them or `--count`.

Which ones: the cheapest first, of those that began with no other run's weights, each of a task or an attention that
none before it had. A run is equal to the last bit where the packages, the threads and the kind of processor are those
of its record. Elsewhere the roundings differ, and training spreads them: then what it was given must be the same, and
its test result may be no more than DRIFT away. The padding that was computed may differ, for batches are cut as the
processor likes it; the real tokens may not, unless a goal or a patience has ended the training.

`--against COMMIT` trains each of them with the code of that commit as well, and asks whether this code gives the same
bits: what a change that means to change no number has to show, on any machine.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from lra.records.names import RUNS
from lra.records.record import RunRecord
from lra.records.runs import read_kept, read_runs

COUNT = 12
DRIFT = 5.0  # points of accuracy, percent of perplexity
ENVIRONMENT = (  # what decides the last bits
    "packages",
    "python",
    "threads",
    "cpu",
    "cpu_model",
    "instructions",
    "device",
)
GIVEN = ("config", "task", "parameters", "tokens.real", "status")


@dataclass(frozen=True)
class Kept:
    """A kept run, the path that `rerun=` takes, and the seconds that it took."""

    seconds: float
    path: str
    record: RunRecord

    @property
    def what(self) -> tuple[str, str]:
        """Its task and its attention."""
        config = self.record.config
        return config["task"]["_target_"], config["attention"]["_target_"]


def runs_of(path: Path) -> list[Kept]:
    """The finished runs of a `runs.jsonl` that began with weights of their own."""
    return [
        Kept(sum(run.record.seconds.values()), f"{path}/{run.name}", run.record)
        for run in read_runs(path)
        if run.record.status == "finished" and "init" not in run.record.config
    ]


def at_commit(kept: Kept, code: str) -> str:
    """The path of a kept run for the code in a folder: in its receipts.zip, where that commit has no runs.jsonl."""
    file, _, name = kept.path.partition(f"{RUNS}/")
    if (Path(code) / file / RUNS).exists():
        return f"{code}/{kept.path}"
    for receipts in sorted(Path(code).glob("results/*/receipts.zip")):
        with ZipFile(receipts) as archive:
            if f"{name}/record.json" in archive.namelist():
                digest = kept.record.provenance.config_sha256.encode()
                if digest in archive.read(f"{name}/record.json"):
                    return f"{receipts}/{name}"
    raise SystemExit(f"reruns: error: {kept.path}: not in the results of {code}")


def trained(path: str, out: str, code: str | None = None) -> tuple[subprocess.CompletedProcess[str], Path | None]:
    """The run of `path` again, with the code in the folder `code` or with this; and its folder, if it ended."""
    command = [sys.executable, "-m", "lra", "train", f"rerun='{Path(path).absolute()}'", f"out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=code)
    folder = re.search(r"equal to the last bit \((.+)\)$", done.stdout, re.MULTILINE)
    return done, Path(folder[1]) if folder else None


def compared(kept: Kept, out: str) -> tuple[str, str]:
    """`equal`, `near` or `wrong`, and why."""
    done, folder = trained(kept.path, out)
    if done.returncode == 0:
        return "equal", ""
    lines = done.stdout.splitlines()
    if done.returncode != 1 or folder is None:
        return "wrong", " ".join(done.stderr.splitlines()[-1:])
    keys = {line.split(":")[0].strip() for line in lines if line.startswith("  ")}
    elsewhere = sorted({key.split(".")[0] for key in keys} & set(ENVIRONMENT))
    made = read_kept(folder).record
    given = GIVEN if _all_steps(kept.record) and _all_steps(made) else (*set(GIVEN) - {"tokens.real"},)
    if not elsewhere or any(f"{key}.".startswith(f"{name}.") for key in keys for name in given):
        return "wrong", "; ".join(line.strip() for line in lines if line.startswith("  "))
    drift = _drift(kept.record, made)
    said = f"{', '.join(elsewhere)} differ; test result {drift:.2f} away"
    return ("near" if drift <= DRIFT else "wrong"), said


def _all_steps(run: RunRecord) -> bool:
    """Return True if no stopping rule ended the training; rounding may move the step at which one does."""
    return run.ended in (None, "steps")


def _drift(was: RunRecord, now: RunRecord) -> float:
    """Return the largest change of a test result, in the metric of the task."""
    pairs = [(was.score(rule), now.score(rule)) for rule in was.test]
    if was.metric == "perplexity":
        return max(100 * abs(after / before - 1) for before, after in pairs)
    return max(abs(after - before) for before, after in pairs)


def chosen(count: int = COUNT) -> list[Kept]:
    """The runs that are trained again: so many, or as many as bring something new."""
    runs = [run for path in sorted(Path("results").glob(f"*/{RUNS}")) for run in runs_of(path)]
    picked: list[Kept] = []
    for run in sorted(runs, key=lambda run: (run.seconds, run.path)):
        tasks, attentions = {other.what[0] for other in picked}, {other.what[1] for other in picked}
        if len(picked) < count and (run.what[0] not in tasks or run.what[1] not in attentions):
            picked.append(run)
    return picked


@contextmanager
def code_of(commit: str) -> Iterator[str]:
    """A folder with the code of a commit."""
    with TemporaryDirectory() as folder:
        added = ["git", "worktree", "add", "--quiet", "--detach", folder, commit]
        done = subprocess.run(added, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"reruns: error: --against {commit}: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)


def compared_with(code: str, kept: Kept, out: str) -> tuple[str, str]:
    """As `compared`, beside what the code in the folder `code` gives here: nothing but `equal` will do."""
    done, folder = trained(at_commit(kept, code), f"{out}/before", code)
    if folder is None:
        return "wrong", " ".join(["the other code cannot train it:", *done.stderr.splitlines()[-1:]])
    verdict, why = compared(replace(kept, path=str(folder)), f"{out}/now")
    return ("equal" if verdict == "equal" else "wrong"), why


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--against", metavar="COMMIT", help="compare with what the code of this commit gives here")
    parser.add_argument(
        "--count", type=int, default=COUNT, metavar="N", help="so many runs at most; default: %(default)s"
    )
    arguments = parser.parse_args()
    verdicts = []
    with TemporaryDirectory() as out, code_of(arguments.against) if arguments.against else nullcontext() as code:
        for number, kept in enumerate(chosen(arguments.count)):
            folder = f"{out}/{number}"
            verdict, why = compared_with(code, kept, folder) if code else compared(kept, folder)
            print(f"{verdict}: {kept.path}{f' ({why})' if why else ''}", flush=True)
            verdicts.append(verdict)
    print(", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("equal", "near", "wrong")))
    return 1 if "wrong" in verdicts or len(verdicts) < min(COUNT, arguments.count) else 0


if __name__ == "__main__":
    sys.exit(main())
