"""Are kept numbers what this code gives? Ten kept runs, of ten results folders, are trained again.

Which ones: of each folder the finished run that took least time and began with no other run's weights; of those the
ten that took least. A run is equal to the last bit where the packages, the threads and the kind of processor are those
of its record. Elsewhere the roundings differ, and training spreads them: then what it was given must be the same, and
its test result may be no more than DRIFT away. The padding that was computed may differ, for batches are cut as the
processor likes it; the real tokens may not.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from lra.records import record
from lra.records.names import RECEIPTS, RECORD

COUNT = 10
DRIFT = 5.0  # points of accuracy, percent of perplexity
ENVIRONMENT = ("packages", "python", "threads", "cpu", "instructions", "device")  # what decides the last bits
GIVEN = ("config", "task", "parameters", "tokens.real", "status")


@dataclass(frozen=True)
class Kept:
    """A run in the receipts of a results folder, and the seconds that it took."""

    seconds: float
    path: str
    record: dict


def cheapest(receipts: Path) -> Kept | None:
    """Of a results folder, None where every run began with another's weights."""
    with ZipFile(receipts) as archive:
        names = [name for name in archive.namelist() if Path(name).name == RECORD]
        records = {name: record.parse(archive.read(name)) for name in names}
    runs = [
        Kept(sum(one["seconds"].values()), f"{receipts}/{Path(name).parent}", one)
        for name, one in records.items()
        if one["status"] == "finished" and "init" not in one["config"]
    ]
    return min(runs, key=lambda run: (run.seconds, run.path), default=None)


def compared(kept: Kept, out: str) -> tuple[str, str]:
    """`equal`, `near` or `wrong`, and why."""
    command = [sys.executable, "-m", "lra", "train", f"rerun='{kept.path}'", f"out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "equal", ""
    lines = done.stdout.splitlines()
    folder = re.search(r"bit \((.+)\)$", next((line for line in lines if "equal to the last bit" in line), ""))
    if done.returncode != 1 or folder is None:
        return "wrong", " ".join(done.stderr.splitlines()[-1:])
    keys = {line.split(":")[0].strip() for line in lines if line.startswith("  ")}
    elsewhere = sorted({key.split(".")[0] for key in keys} & set(ENVIRONMENT))
    if not elsewhere or any(f"{key}.".startswith(f"{given}.") for key in keys for given in GIVEN):
        return "wrong", "; ".join(line.strip() for line in lines if line.startswith("  "))
    drift = max(_drifts(kept.record["test"], record.read(Path(folder[1]) / RECORD)["test"]))
    said = f"{', '.join(elsewhere)} differ; test result {drift:.2f} away"
    return ("near" if drift <= DRIFT else "wrong"), said


def _drifts(was: dict, now: dict) -> list[float]:
    """How far each test result is from what it was."""
    return [
        100 * abs(now[rule]["perplexity"] / one["perplexity"] - 1)
        if "perplexity" in one
        else abs(now[rule]["accuracy"] - one["accuracy"])
        for rule, one in was.items()
    ]


def chosen() -> list[Kept]:
    """The runs that are trained again."""
    found = [cheapest(path) for path in sorted(Path("results").glob(f"*/{RECEIPTS}"))]
    return sorted((run for run in found if run is not None), key=lambda run: (run.seconds, run.path))[:COUNT]


def main() -> int:
    verdicts = []
    with TemporaryDirectory() as out:
        for number, kept in enumerate(chosen()):
            verdict, why = compared(kept, f"{out}/{number}")
            print(f"{verdict}: {kept.path}{f' ({why})' if why else ''}", flush=True)
            verdicts.append(verdict)
    print(", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("equal", "near", "wrong")))
    return 1 if "wrong" in verdicts or len(verdicts) < COUNT else 0


if __name__ == "__main__":
    sys.exit(main())
