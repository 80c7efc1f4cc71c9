"""Learning curves: the lines of `metrics.jsonl` beside each record, by name, and their course over the seeds."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import UserError
from lra.core.files import parse_json, read_regular
from lra.records.names import METRICS
from lra.records.record import CONTENTS_BYTES
from lra.records.run_files import RunFiles
from lra.report.beside import Record, beside, contents

PROBES = {
    "attention_std": "sd of attention outputs",
    "score_std": "sd of A",
    "score_asymmetry": "‖A − Aᵀ‖ / ‖A‖",
    "residual_norm": "length of residuals",
    "gradient_norm": "norm of gradients",
}
"""What lra/training/probe.py measures in each block; A = Q Kᵀ, scaled, before any softmax."""

Curve = dict[str, list[Any]]
"""One list per quantity, all of the length of `step`; what an evaluation did not measure is None."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The evaluations of the training in a `metrics.jsonl`, none where there is no file; a last line that is being
    written is left out, and so are those of a pretraining.

    Raises UserError.
    """
    try:
        return parsed(str(path), read_regular(path, CONTENTS_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable: {error}") from None


def parsed(path: str, data: bytes) -> list[dict[str, Any]]:
    """The evaluations of the training in these bytes of `path`."""
    *complete, _ = data.decode(errors="replace").split("\n")
    lines = []
    for number, text in enumerate(complete, start=1):
        try:
            line = parse_json(text)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: expected a JSON object, found {error}") from None
        if not isinstance(line, dict) or "step" not in line:
            raise UserError(f"{path}, line {number}: expected an object with a step, found {text[:40]!r}")
        if "phase" not in line:
            lines.append(line)
    return lines


def read(files: RunFiles, run: Record) -> Curve | None:
    """The curve of a run that left one; `val_perplexity`, which no line holds, is the exponential of `val_loss`."""
    lines = parsed(files.shown(beside(run, METRICS)), contents(files, run, METRICS) or b"")
    if not lines:
        return None
    curve = {
        name: [line.get(name) for line in lines] for name in dict.fromkeys(name for line in lines for name in line)
    }
    if "val_loss" in curve:
        curve["val_perplexity"] = [None if loss is None else math.exp(min(loss, 700)) for loss in curve["val_loss"]]
    return curve


def over_seeds(curves: Iterable[Curve], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values [seeds, steps, ...]) of one quantity, at the steps where every curve that measured it has it."""
    measured = [
        {step: value for step, value in zip(curve["step"], curve[name], strict=True) if value is not None}
        for curve in curves
        if name in curve
    ]
    steps = sorted(set.intersection(*map(set, measured))) if measured else []
    values = [[points[step] for step in steps] for points in measured]
    return np.array(steps), np.array(values, dtype=float)


def reached(curve: Curve, name: str, target: float, *, lower: bool) -> int | None:
    """The first step at which a quantity was as good as `target`, or better."""
    points = zip(curve["step"], curve[name], strict=True)
    return next(
        (step for step, value in points if value is not None and (value <= target if lower else value >= target)), None
    )
