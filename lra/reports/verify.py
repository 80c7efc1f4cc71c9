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
from lra.records.record import RunRecord
from lra.records.runs import Run
from lra.reports import Report

WIDTH = 120  # maximum number of characters printed from a line that does not match
NAMED = ("# Results: ", r"\label{tab:")  # starts of lines with the folder's name, which may differ in a copy


def verify(folder: Path, selection: str | None = None) -> tuple[int, list[str]]:
    """Recompute the report of a results folder and list mismatches; for the arguments see `Report`.

    For each run, checks the SHA-256 of its configuration and of the files that its record lists, its test accuracy
    against its predictions, and its best and last validation results against its metrics. Then compares README.md, and
    other text files of the report if they exist, with recomputed ones. Weights and samples may be deleted. Figures and
    index.html are not checked because they depend on the version of matplotlib, nor test losses because predictions
    do not determine them.

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
    yield from _of_validation(run)
    yield from _of_groups(record)
    if run.predictions is None:
        return
    shown = record.test[record.selection]
    predicted, labels = run.predictions
    correct = int((predicted == labels).sum())
    stated, found = (shown.correct, shown.examples, shown.accuracy), (correct, len(labels), 100 * correct / len(labels))
    if stated[:2] != found[:2] or abs(stated[2] - found[2]) > 1e-9:
        yield f"test.{record.selection} has {_said(*stated)}; {PREDICTIONS} gives {_said(*found)}"
    counts = [(int((labels == c).sum()), int((predicted[labels == c] == c).sum())) for c in np.unique(labels)]
    classes = {name: (group.examples, group.correct) for name, group in record.diagnostics.get("class", {}).items()}
    # compared in the order of the labels, because predictions have no class names
    if classes and [*classes.values()] != counts:
        yield f"diagnostics.class is {classes}; {PREDICTIONS} gives {counts}"


def _said(correct: int, examples: int, accuracy: float) -> str:
    return f"{correct} of {examples} correct, {accuracy} %"


def _of_files(run: Run, folder: Path) -> Iterator[str]:
    """Yield a message for each file of a run that is missing or differs from the digest in its record."""
    # metrics.jsonl and predictions.npy are rebuilt in memory, byte for byte, because kept runs lack these files
    array = io.BytesIO()
    if run.predictions is not None:
        np.save(array, run.predictions)
    metrics = "".join(json.dumps(line) + "\n" for line in run.metrics)
    for name, data in ((METRICS, metrics.encode()), (PREDICTIONS, array.getvalue())):
        expected = run.record.files.get(name)
        if expected is None and name == METRICS and run.record.status == "finished":
            yield f"finished, but its record lists no {METRICS}"
        elif expected is not None and not data:
            yield f"{name} is missing"
        elif expected is not None and hashlib.sha256(data).hexdigest() != expected:
            yield f"the SHA-256 of {name} does not match the record"
    for name, expected in run.record.files.items():
        path = folder / name
        if name not in (METRICS, PREDICTIONS) and path.exists() and sha256(path) != expected:
            yield f"the SHA-256 of {name} does not match the record"


def _of_groups(record: RunRecord) -> Iterator[str]:
    """Yield a message for each grouping of test examples whose counts do not add up to those of the test split."""
    whole = record.test[record.selection]
    for name, groups in record.diagnostics.items():
        stated = sum(group.examples for group in groups.values()), sum(group.correct for group in groups.values())
        if stated != (whole.examples, whole.correct):
            found = f"{stated[1]} of {stated[0]} correct"
            yield f"diagnostics.{name} has {found}, test.{record.selection} {whole.correct} of {whole.examples}"


def _of_validation(run: Run) -> Iterator[str]:
    """Yield a message for each validation result, and for the number of steps, that differs from the run's metrics."""
    lines = [line for line in run.metrics if "phase" not in line and line.get("val_accuracy") is not None]
    measured = {line["step"]: (line["val_accuracy"], line.get("val_loss")) for line in lines}
    for name, result in run.record.validation.items():
        stated = result.accuracy, result.loss
        if measured.get(result.step) != stated:
            yield f"validation.{name} is {stated} at step {result.step}, {METRICS} has {measured.get(result.step)}"
    if lines and run.record.steps != lines[-1]["step"]:
        yield f"steps is {run.record.steps}, the last evaluation in {METRICS} is at {lines[-1]['step']}"


def difference(path: Path, expected: str) -> Iterator[str]:
    """Yield a message for the first line of a report file that differs from `expected`, if any.

    Lines with the folder's name (`NAMED`) may differ, since a copied folder may have another name.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        yield f"{path}: not readable ({type(error).__name__}); write it with lra-report"
        return
    for number, (found, wanted) in enumerate(zip_longest(lines, expected.split("\n")), start=1):
        if found != wanted and not all(str(line).startswith(NAMED) for line in (found, wanted)):
            yield f"{path}, line {number}: found {str(found)[:WIDTH]!r}, expected {str(wanted)[:WIDTH]!r}"
            return
