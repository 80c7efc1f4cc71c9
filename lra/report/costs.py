"""The Extractor paper's Figures 4 to 8: the cost of every batch, as quartiles over each 100 batches.

python -m lra.report.costs DIR               DIR/costs.csv and DIR/costs.png, from the costs.npy below DIR
"""

import argparse
import csv
import io
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from lra import record
from lra.errors import UserError
from lra.files import write_atomic
from lra.report.records import settings_text

WINDOW = 100  # batches, not overlapping
COSTS = "costs.npy"


def quartiles(costs: np.ndarray) -> np.ndarray:
    """[windows, 3]: first quartile, median and third quartile of each whole window of costs [batches]."""
    windows = costs[: len(costs) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return np.quantile(windows, (0.25, 0.5, 0.75), axis=1).T


def read(folder: Path) -> dict[str, dict[int, np.ndarray]]:
    """Costs by model and seed. Raises UserError where there are none."""
    found: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for path in sorted(folder.rglob(COSTS)):
        run = record.read(path.with_name(record.NAME))
        name = settings_text(run["settings"]) or f"{run['attention']}, {run['variant']}"
        found[name][run["seed"]] = np.load(path)
    if not found:
        raise UserError(f"{folder}: no {COSTS} below it; runs of task=books leave one")
    return found


def as_csv(costs: dict[str, dict[int, np.ndarray]]) -> str:
    """A row for each model, seed and window."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "seed", "batches", "first_quartile", "median", "third_quartile"])
    for name, seeds in costs.items():
        for seed, values in seeds.items():
            for window, row in enumerate(quartiles(values), start=1):
                writer.writerow([name, seed, window * WINDOW, *(f"{value:.5f}" for value in row)])
    return text.getvalue()


def as_png(costs: dict[str, dict[int, np.ndarray]]) -> bytes:
    """Medians as lines, quartiles as bands; the windows of all seeds together."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, seeds in costs.items():
        shortest = min(len(values) for values in seeds.values()) // WINDOW * WINDOW
        pooled = np.stack([values[:shortest].reshape(-1, WINDOW) for values in seeds.values()], axis=1)
        low, middle, high = np.quantile(pooled.reshape(len(pooled), -1), (0.25, 0.5, 0.75), axis=1)
        batches = np.arange(1, len(pooled) + 1) * WINDOW
        axes.plot(batches, middle, label=f"{name} ({len(seeds)} seed{'s' * (len(seeds) > 1)})")
        axes.fill_between(batches, low, high, alpha=0.2)
    axes.set(xlabel="batches", ylabel=f"training cost: quartiles over {WINDOW} batches")
    axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    return image.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.report.costs", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder with runs of task=books below it")
    folder = parser.parse_args().folder
    try:
        costs = read(folder)
        write_atomic(folder / "costs.csv", as_csv(costs).encode())
        write_atomic(folder / "costs.png", as_png(costs))
    except (UserError, ValueError, OSError) as error:
        print(f"lra.report.costs: error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {folder / 'costs.csv'} and costs.png", file=sys.stderr)


if __name__ == "__main__":
    main()
