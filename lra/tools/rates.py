"""Which learning rates of a sweep a preset shall have, for each task and attention.

That with the best validation accuracy, ties broken by the validation loss; in a race first that with which most seeds
solve the task, then the quickest.

    lra-train experiment=hour train.lr=0.001,0.003,0.01 seed=11 out=runs/hour_rates
    python -m lra.tools.rates runs/hour_rates                    the lines of by_task that a preset takes

The validation accuracy is that of the best checkpoint; of several seeds the mean counts, and of several variants, since
a section of by_attention holds for all of them. Where runs have a goal (`train.goal`), the rate with which most of them
reach it comes first, and of those with as many the one with which they need fewest steps. A run that diverged is the
worst. Behind each choice, as a comment, stand the variants where there are several, and the means of all rates with the
lowest and the highest run. A run that came to no end is named, and takes no part.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.core.errors import CONFIG_ERROR, UserError, printable
from lra.records import course
from lra.records.names import RECORD
from lra.records.run_files import RunFiles
from lra.report.read.records import read_record


class Pilot(NamedTuple):
    """One run of a rate; of two, the greater is the better. `quickness`: its steps to the goal with their sign turned,
    0 where it did not get there; `accuracy`: of validation, in percent; `fit`: the loss with its sign turned."""

    solved: bool
    quickness: int
    accuracy: float
    fit: float


Runs = list[Pilot]  # of one rate
DIVERGED = Pilot(solved=False, quickness=0, accuracy=-math.inf, fit=-math.inf)


@dataclass
class PilotRow:
    """What ran of one attention on one task: which of its variants, and the runs of each rate."""

    variants: set[str] = field(default_factory=set)
    rates: dict[float, Runs] = field(default_factory=lambda: defaultdict(list))


def rows_of(records: dict[Path, dict[str, Any]]) -> dict[str, dict[str, PilotRow]]:
    """The rows of runs that ended, by task, then by attention; a folder's path begins with the option of the task.
    Raises UserError where it begins below."""
    rows: dict[str, dict[str, PilotRow]] = defaultdict(lambda: defaultdict(PilotRow))
    for folder, run in records.items():
        if folder.parts[0] == run["protocol"]:
            raise UserError(f"{folder}: expected the folder of a whole sweep, found that of a task in it")
        row = rows[folder.parts[0]][run["attention"]]
        row.variants.add(run["variant"])
        row.rates[run["config"]["train"]["lr"]].append(_pilot(run))
    return rows


def _pilot(run: dict[str, Any]) -> Pilot:
    if run["status"] == "diverged":
        return DIVERGED
    best, solved = run["validation"]["best"], course.solved(run)
    return Pilot(solved, -run["steps"] * solved, best["accuracy"], -best["loss"])


def chosen(rates: dict[float, Runs]) -> float:
    """The rate with the best mean."""
    return max(rates, key=lambda rate: np.mean(rates[rate], axis=0).tolist())


def described(runs: Runs) -> str:
    """The mean accuracy, and of several runs the lowest and the highest; how many are solved, and their mean steps; how
    many diverged."""
    accuracies = [run.accuracy for run in runs if run is not DIVERGED]
    steps, diverged = [-run.quickness for run in runs if run.solved], len(runs) - len(accuracies)
    spread = f" ({min(accuracies):.2f} to {max(accuracies):.2f})" if len(accuracies) > 1 else ""
    mean = f"{np.mean(accuracies):.2f}{spread}" if accuracies else "no accuracy"
    solved = f", {len(steps)} of {len(runs)} solved in {np.mean(steps):.0f} steps" if steps else ""
    return mean + solved + f", {diverged} of {len(runs)} diverged" * bool(diverged)


def lines(rows: dict[str, dict[str, PilotRow]]) -> Iterator[str]:
    """YAML, by task."""
    yield "by_task:"
    for task, by_attention in rows.items():
        yield f"  {task}:\n    by_attention:"
        for attention, row in by_attention.items():
            means = "; ".join(f"{rate:g}: {described(runs)}" for rate, runs in sorted(row.rates.items()))
            over = f"{', '.join(sorted(row.variants))}: " if len(row.variants) > 1 else ""
            yield f"      {attention}: {{train: {{lr: {chosen(row.rates)!r}}}}}  # {over}{means}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.tools.rates", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="of a sweep over train.lr")
    folder = parser.parse_args().folder
    try:
        files = RunFiles(folder)
        records = {Path(path).parent: read_record(files, path) for path in files.find(RECORD)}
        if not records:
            raise UserError(f"{folder}: no records below it")
        ended = {path: run for path, run in records.items() if run["status"] in ("finished", "diverged")}
        rows = rows_of(ended)
    except (UserError, ValueError) as error:
        print(f"lra.tools.rates: error: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR) from None
    for path, run in records.items():
        if path not in ended:
            print(f"{path}: {run['status']}")
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
