"""Recompute a report from its runs and list what does not match."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from lra.core.errors import UserError, printable
from lra.core.files import digest, read_regular
from lra.records.names import METRICS, PREDICTIONS, README
from lra.records.record import CONTENTS_BYTES, RunRecord
from lra.records.runs import Run
from lra.report import Report

SHOWN = 5  # differing places of a file that are printed
WIDTH = 120  # characters of a line that are printed


def verify(folder: Path, selection: str | None = None, published: Iterable[Path] = ()) -> tuple[int, list[str]]:
    """Verify a results folder; arguments as of `Report`.

    Checks the SHA-256 of every record and of the files beside it, the accuracy of each run from its predictions, its
    best and last validation from its metrics, and README.md and the other text files of the report that are there.

    Returns:
        the number of runs, and one line for each mismatch.
    """
    mismatches: list[str] = []
    try:
        report = Report(folder, selection, published, mismatches.append)
    except UserError as error:
        return 0, [*mismatches, str(error)]
    for run in report.runs:
        mismatches += [printable(f"{folder / run.name}: {fault}") for fault in faults(run)]
    for name, text in report.texts().items():
        if name != README and not (report.folder / name).exists():
            continue  # a kept folder has README.md alone
        mismatches += [printable(line) for line in differences(report.folder / name, text)]
    return len(report.runs), mismatches


def faults(run: Run) -> Iterator[str]:
    """Yield the contradictions between a record, the metrics and the predictions of a run."""
    record = run.record
    if digest(record.config) != record.provenance.config_sha256:
        yield "config_sha256 is not the SHA-256 of config"
    if record.status != "finished":
        return
    if METRICS not in record.files:
        yield f"finished, but its record lists no {METRICS}"
    yield from _of_validation(run)
    yield from _of_groups(record)
    if run.predictions is None:
        if record.metric == "accuracy" and PREDICTIONS in record.files:
            yield f"{PREDICTIONS} is missing"
        return
    shown = record.test[record.selection]
    predicted, labels = run.predictions
    if len(labels) != shown.examples:
        yield f"test.{record.selection}.examples is {shown.examples}, {PREDICTIONS} has {len(labels)}"
        return
    correct = int((predicted == labels).sum())
    stated = shown.correct, shown.accuracy
    if stated[0] != correct or abs(stated[1] - 100 * correct / shown.examples) > 1e-9:
        found = f"{correct} correct, {100 * correct / shown.examples} %"
        yield f"test.{record.selection} is {stated[0]} correct, {stated[1]} %; {PREDICTIONS} gives {found}"
    counts = [(int((labels == c).sum()), int((predicted[labels == c] == c).sum())) for c in np.unique(labels)]
    classes = {name: (group.examples, group.correct) for name, group in record.diagnostics.get("class", {}).items()}
    if classes and [*classes.values()] != counts:  # in the order of the labels, under any names
        yield f"diagnostics.class is {classes}; {PREDICTIONS} gives {counts}"


def _of_groups(record: RunRecord) -> Iterator[str]:
    """Compare the counts of groups of test examples with those of all."""
    whole = record.test[record.selection]
    for name, groups in record.diagnostics.items():
        stated = sum(group.examples for group in groups.values()), sum(group.correct for group in groups.values())
        if stated != (whole.examples, whole.correct):
            found = f"{stated[1]} of {stated[0]} correct"
            yield f"diagnostics.{name} has {found}, test.{record.selection} {whole.correct} of {whole.examples}"


def _of_validation(run: Run) -> Iterator[str]:
    """Compare the best and the last validation of a record with its metrics."""
    lines = [line for line in run.metrics if "phase" not in line and line.get("val_accuracy") is not None]
    measured = {line["step"]: (line["val_accuracy"], line.get("val_loss")) for line in lines}
    for name, result in run.record.validation.items():
        stated = result.accuracy, result.loss
        if measured.get(result.step) != stated:
            yield f"validation.{name} is {stated} at step {result.step}, {METRICS} has {measured.get(result.step)}"
    if lines and run.record.steps != lines[-1]["step"]:
        yield f"steps is {run.record.steps}, the last evaluation in {METRICS} is at {lines[-1]['step']}"


def differences(path: Path, expected: str) -> Iterator[str]:
    """Yield the first places where a file of a report is not what its runs give."""
    try:
        actual = read_regular(path, CONTENTS_BYTES).decode()
    except (OSError, ValueError) as error:
        yield f"{path}: not readable ({type(error).__name__}); write it with lra-report"
        return
    found, given = actual.split("\n"), expected.split("\n")
    changes = [
        change for change in SequenceMatcher(None, found, given, autojunk=False).get_opcodes() if change[0] != "equal"
    ]
    for _, start, end, other_start, other_end in changes[:SHOWN]:
        texts = ["\n".join(lines)[:WIDTH] for lines in (found[start:end], given[other_start:other_end])]
        yield f"{path}, line {start + 1}: found {texts[0]!r}, expected {texts[1]!r}"
    if len(changes) > SHOWN:
        yield f"{path}: {len(changes) - SHOWN} more differences"
