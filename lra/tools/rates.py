"""Which learning rates of a sweep a preset shall have: for each task and attention that with the best validation
accuracy, ties broken by the validation loss.

    lra-train experiment=hour train.lr=0.001,0.003,0.01 seed=11 out=runs/hour_rates
    python -m lra.tools.rates runs/hour_rates                    the lines of by_task that a preset takes

The validation accuracy is that of the best checkpoint; of several seeds the mean counts, and of several variants, since
a section of by_attention holds for all of them. Behind each choice, as a comment, stand the means of all rates with the
lowest and the highest run. A run that is not finished is named, and takes no part.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import CONFIG_ERROR
from lra.records import record
from lra.records.names import RECORD

Row = tuple[str, str]  # task and attention
Runs = list[tuple[float, float]]  # of one rate: validation accuracy in percent, and loss with its sign turned


def runs_by_rate(records: list[dict[str, Any]]) -> dict[Row, dict[float, Runs]]:
    """Of finished runs, by task and attention, then by rate."""
    rows: dict[Row, dict[float, Runs]] = defaultdict(lambda: defaultdict(list))
    for run in records:
        best = run["validation"]["best"]
        rates = rows[run["task"].partition(" ")[0], run["attention"]]
        rates[run["config"]["train"]["lr"]].append((best["accuracy"], -best["loss"]))
    return rows


def chosen(rates: dict[float, Runs]) -> float:
    """The rate with the best mean."""
    return max(rates, key=lambda rate: np.mean(rates[rate], axis=0).tolist())


def described(runs: Runs) -> str:
    """The mean accuracy, and of several runs the lowest and the highest."""
    accuracies = [accuracy for accuracy, _ in runs]
    spread = f" ({min(accuracies):.2f} to {max(accuracies):.2f})" if len(runs) > 1 else ""
    return f"{np.mean(accuracies):.2f}{spread}"


def lines(rows: dict[Row, dict[float, Runs]]) -> Iterator[str]:
    """YAML, by task."""
    yield "by_task:"
    for task in dict.fromkeys(task for task, _ in rows):
        yield f"  {task}:\n    by_attention:"
        for (other, attention), rates in rows.items():
            if other == task:
                means = ", ".join(f"{rate:g}: {described(rates[rate])}" for rate in sorted(rates))
                yield f"      {attention}: {{train: {{lr: {chosen(rates):g}}}}}  # {means}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.tools.rates", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="of a sweep over train.lr")
    folder = parser.parse_args().folder
    records = [record.read(path) for path in sorted(folder.rglob(RECORD))]
    if not records:
        print(f"lra.tools.rates: error: {folder}: no records below it", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR)
    for run in records:
        if run["status"] != "finished":
            print(f"{run['task']} {run['attention']} train.lr={run['config']['train']['lr']:g}: {run['status']}")
    print("\n".join(lines(runs_by_rate([run for run in records if run["status"] == "finished"]))))


if __name__ == "__main__":
    main()
