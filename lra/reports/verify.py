"""Recompute a report from its runs and list what does not match."""

import hashlib
import io
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np

from lra.core.errors import UserError, printable
from lra.core.files import digest, sha256
from lra.records.names import METRICS, PREDICTIONS, README
from lra.records.runs import Run
from lra.reports import Report

WIDTH = 120  # maximum number of characters printed from a line that does not match
NAMED = ("# Results: ", r"\label{tab:")  # starts of lines with the folder's name, which may differ in a copy


def verify(folder: Path, selection: str | None = None) -> tuple[int, list[str]]:
    """Recompute the report of a results folder and list mismatches; for the arguments see `Report`.

    For each run, check the SHA-256 of its configuration and of the files that its record lists, its test accuracy
    against its predictions, and its best and last validation results against its metrics. Then compare README.md, and
    other text files of the report if they exist, with recomputed ones. Weights and samples may be deleted. Figures and
    index.html are not checked, because they depend on the version of matplotlib. Test losses are not checked, because
    predictions do not determine them.

    Returns:
        The number of runs, and one line for each mismatch.
    """
    try:
        report = Report(folder, selection)
    except UserError as error:
        return 0, [str(error)]
    mismatches = [
        printable(f"{folder / run.name}: {fault}") for run in report.runs for fault in faults(run, report.folder)
    ]
    for name, text in report.texts().items():
        path = report.folder / name
        if name == README or path.exists():  # only README.md is required: results/ keeps no other text file
            mismatches += map(printable, difference(path, text))
    return len(report.runs), mismatches


def faults(run: Run, results: Path) -> Iterator[str]:
    """Yield a message for each contradiction between the record of a run and the run's files."""
    record = run.record
    if digest(record.config) != record.provenance.config_sha256:
        yield "config_sha256 is not the SHA-256 of config"
    yield from _of_files(run, results / run.name)
    if record.status != "finished":
        return
    # lines with a phase are evaluations of self-pretraining
    lines = [line for line in run.metrics if "phase" not in line and line.get("val_accuracy") is not None]
    measured = {line["step"]: (line["val_accuracy"], line.get("val_loss")) for line in lines}
    for name, result in record.validation.items():
        if measured.get(result.step) != (result.accuracy, result.loss):
            stated, found = (result.accuracy, result.loss), measured.get(result.step)
            yield f"validation.{name} is {stated} at step {result.step}, {METRICS} has {found}"
    if lines and record.steps != lines[-1]["step"]:
        yield f"steps is {record.steps}, the last evaluation in {METRICS} is at {lines[-1]['step']}"
    yield from _of_counts(run)


def _of_counts(run: Run) -> Iterator[str]:
    """Yield a message for each contradiction between test result, groups of test examples and predictions of a run."""
    rule, diagnostics = run.record.selection, run.record.diagnostics
    test = run.record.test[rule]
    for name, groups in diagnostics.items():
        examples, correct = (sum(getattr(group, key) for group in groups.values()) for key in ("examples", "correct"))
        if (examples, correct) != (test.examples, test.correct):
            yield (
                f"diagnostics.{name} has {correct} of {examples} correct, test.{rule} {test.correct} of {test.examples}"
            )
    if run.predictions is None:
        return
    predicted, labels = run.predictions
    hits = predicted == labels
    # Nine digits, because the rounding of the last ones depends on the order of operations.
    stated = f"{test.correct} of {test.examples} correct, {test.accuracy:.9g} %"
    found = f"{hits.sum()} of {len(hits)} correct, {100 * hits.mean():.9g} %"
    if stated != found:
        yield f"test.{rule} has {stated}; {PREDICTIONS} gives {found}"
    counts = [(int((labels == label).sum()), int(hits[labels == label].sum())) for label in np.unique(labels)]
    classes = {name: (group.examples, group.correct) for name, group in diagnostics.get("class", {}).items()}
    # compared in the order of the labels, because predictions have no class names
    if classes and [*classes.values()] != counts:
        yield f"diagnostics.class is {classes}; {PREDICTIONS} gives {counts}"


def _of_files(run: Run, folder: Path) -> Iterator[str]:
    """Yield a message for each file that differs from its recorded digest, and for missing metrics or predictions."""
    # metrics.jsonl and predictions.npy are rebuilt in memory, byte for byte, because kept runs lack these files
    array = io.BytesIO()
    if run.predictions is not None:
        np.save(array, run.predictions)
    metrics = "".join(json.dumps(line) + "\n" for line in run.metrics)
    contents = {METRICS: metrics.encode(), PREDICTIONS: array.getvalue()}
    if METRICS not in run.record.files and run.record.status == "finished":
        yield f"finished, but its record lists no {METRICS}"
    for name, expected in run.record.files.items():
        if name in contents and not contents[name]:
            yield f"{name} is missing"
        # other files, such as weights, may have been deleted
        elif name in contents or (folder / name).exists():
            found = hashlib.sha256(contents[name]).hexdigest() if name in contents else sha256(folder / name)
            if found != expected:
                yield f"the SHA-256 of {name} does not match the record"


def difference(path: Path, expected: str) -> Iterator[str]:
    """Yield a message for the first line of a report file that differs from `expected`, if any."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        yield f"{path}: not readable ({type(error).__name__}); write it with lra-report"
        return
    for number, (found, wanted) in enumerate(zip_longest(lines, expected.split("\n")), start=1):
        if found != wanted and not all(str(line).startswith(NAMED) for line in (found, wanted)):
            yield f"{path}, line {number}: found {str(found)[:WIDTH]!r}, expected {str(wanted)[:WIDTH]!r}"
            return
