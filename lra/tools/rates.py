"""Which learning rates of a sweep a preset shall have: for each task and attention that with the best validation
accuracy, ties broken by the validation loss.

    lra-train experiment=hour train.lr=0.001,0.003,0.01 seed=11 out=runs/hour_rates
    python -m lra.tools.rates runs/hour_rates                    the lines of by_task that a preset takes

The validation accuracy is that of the best checkpoint; of several seeds the mean counts, and of several variants, since
a section of by_attention holds for all of them. A run that is not finished is named, and takes no part.
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


def chosen(records: list[dict[str, Any]]) -> dict[Row, float]:
    """Of finished runs, the rate of each task and attention."""
    found: dict[Row, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in records:
        best = run["validation"]["best"]
        rates = found[run["task"].partition(" ")[0], run["attention"]]
        rates[run["config"]["train"]["lr"]].append((best["accuracy"], -best["loss"]))
    means = {row: {rate: np.mean(runs, axis=0).tolist() for rate, runs in of.items()} for row, of in found.items()}
    return {row: max(rates, key=rates.__getitem__) for row, rates in means.items()}


def lines(rates: dict[Row, float]) -> Iterator[str]:
    """YAML, by task."""
    yield "by_task:"
    for task in dict.fromkeys(task for task, _ in rates):
        yield f"  {task}:\n    by_attention:"
        for (other, attention), rate in rates.items():
            if other == task:
                yield f"      {attention}: {{train: {{lr: {rate:g}}}}}"


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
    print("\n".join(lines(chosen([run for run in records if run["status"] == "finished"]))))


if __name__ == "__main__":
    main()
