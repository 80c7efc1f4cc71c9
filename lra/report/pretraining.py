"""What pretraining reached: how well models predicted hidden or next tokens of training inputs that were held out."""

from statistics import fmean, stdev

from lra.report.layout import Grid, texts
from lra.report.table import Column, TableRow

MEASURES = ("loss", "perplexity", "accuracy")


def reached(row: TableRow, measure: str) -> list[float]:
    """Where the weights were taken, by seed; of the finished runs that have it."""
    phases = [row.cell.runs[seed].get("pretrain", {}) for seed in sorted(row.cell.scores())]
    best = [phase.get("validation", {}).get("best", {}) for phase in phases]
    return [known[measure] for known in best if known.get(measure) is not None]


def mean_reached(row: TableRow, measure: str) -> list[float]:
    """The mean over its seeds; nothing where none has it."""
    values = reached(row, measure)
    return [fmean(values)] if values else []


def table(column: Column) -> Grid | None:
    """A line for each row that was pretrained, mean ± sd over its seeds; None where there is none."""
    rows = [row for row in column.rows if reached(row, "loss")]
    if not rows:
        return None
    lines = [[row.name, *(_mean_sd(reached(row, measure)) for measure in MEASURES)] for row in rows]
    return Grid(["system", *MEASURES], [texts(*line) for line in lines])


def _mean_sd(values: list[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")
