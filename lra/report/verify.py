"""Does a report say what its records say, and do the records agree with themselves and with what lies beside them?"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from lra import record
from lra.errors import UserError
from lra.files import digest, read_json, read_regular
from lra.report import JSON, PAGE, Report, curves, schema
from lra.report.figures import write_figures
from lra.report.records import BESIDE, COSTS, PREDICTIONS, SAMPLE, Record, predictions

TEXT_BYTES = 2**28  # the most that a file of a report may have
WEIGHTS = "weights.safetensors"  # too large to be handed on with every results folder: may be missing
LEFT = {"accuracy": (record.METRICS, PREDICTIONS), "perplexity": (record.METRICS, COSTS, SAMPLE)}  # by a finished run


class _Built(schema.Checked):
    """How a report was built, as its table1.json says."""

    title: str
    selection: Literal[schema.RULES] | None
    figures: dict[Annotated[str, Field(pattern=r"^figures/\w+\.(svg|png)$")], str]


def verify(folder: Path, selection: str | None = None, published: Iterable[Path] = ()) -> tuple[int, list[str]]:
    """How many records were read, and a line for everything in `folder` that is not as they say.

    `selection`: None for the rule that the report was built with. Raises UserError where there is no record.
    """
    faults: list[str] = []
    built = _built(folder / JSON, faults)
    known = len(faults)
    try:
        report = Report(folder, selection or built.get("selection"), published, faults.append, built.get("title"))
    except UserError as error:
        if len(faults) == known:
            raise
        return 0, [*faults, str(error)]
    runs = [run for cell in report.cells for run in cell.runs.values()]
    for run in runs:
        try:
            faults += [f"{run['path']}: {fault}" for fault in _of_run(folder, run)]
        except UserError as error:
            faults.append(str(error))
    drawn = _drawn(report)
    figures = built.get("figures", record.sha256(folder, *drawn))
    faults += _of_figures(folder, figures, drawn)
    for name, text in {**report.files(figures), PAGE: report.page(figures)}.items():
        faults += _of_text(folder / name, text)
    return len(runs), list(dict.fromkeys(faults))


def _built(path: Path, faults: list[str]) -> dict[str, Any]:
    """How the report was built; empty, and a fault, where that cannot be read."""
    try:
        built = read_json(path)
        schema.check(_Built, built)
        return built
    except (OSError, ValueError) as error:
        faults.append(f"{path.name}: {error}; lra-report writes it anew")
        return {}


def _of_run(folder: Path, run: Record) -> Iterator[str]:
    """What in a record contradicts itself or the files beside it. Raises UserError."""
    place = (folder / run["path"]).parent
    if run["provenance"]["config_sha256"] != digest(run["config"]):
        yield "config_sha256 is not that of its config"
    yield from _of_config(place / record.CONFIG, run)
    yield from _of_files(place, run)
    for kind in ("test", "validation"):
        for name, entry in run.get(kind, {}).items():
            yield from _of_entry(f"{kind}.{name}", entry)
    if "val_accuracy" in (curve := curves.read(folder, run) or {}):
        yield from _of_validation(run, curve)
    if run["status"] == "finished" and run["metric"] == "accuracy":
        yield from _of_predictions(folder, run)


def _of_config(path: Path, run: Record) -> Iterator[str]:
    try:
        changes = record.differences(read_json(path), run["config"])
    except (OSError, ValueError) as error:
        yield f"{path.name} beside it is not readable: {_reason(error)}"
        return
    for key, there, recorded in changes:
        yield f"{path.name} beside it has {key}: {there!r}, the record {recorded!r}"


def _of_files(place: Path, run: Record) -> Iterator[str]:
    listed = run.get("files", {})
    if run["status"] == "finished":
        yield from (f"it lists no {name}" for name in LEFT[run["metric"]] if name not in listed)
    for name, sha in listed.items():
        if not (place / name).is_file():
            if name != WEIGHTS:
                yield f"{name}, which it lists, is not beside it"
        elif name not in BESIDE and record.sha256(place, name)[name] != sha:
            yield f"{name} has another SHA-256 than it says"


def _of_entry(name: str, entry: dict[str, Any]) -> Iterator[str]:
    accuracy = 100 * entry["correct"] / entry["examples"]
    if entry["accuracy"] != accuracy:
        yield f"{name}.accuracy is {entry['accuracy']}, but {entry['correct']} of {entry['examples']} is {accuracy}"
    loss, perplexity = entry["loss"], entry.get("perplexity")
    if loss is not None and perplexity is not None and not math.isclose(perplexity, math.exp(loss)):
        yield f"{name}.perplexity is {perplexity}, but exp({loss}) is {math.exp(loss)}"


def _of_validation(run: Record, curve: curves.Curve) -> Iterator[str]:
    """The evaluations that metrics.jsonl holds."""
    measured = dict(zip(curve["step"], zip(curve["val_accuracy"], curve["val_loss"], strict=True), strict=True))
    for name, entry in run.get("validation", {}).items():
        stated = entry["accuracy"], entry["loss"]
        if measured.get(entry["step"]) != stated:
            there = measured.get(entry["step"], "nothing")
            yield f"validation.{name} is {stated} at step {entry['step']}, {record.METRICS} has {there}"


def _of_predictions(folder: Path, run: Record) -> Iterator[str]:
    """Counts that the predictions contradict, all of them and class by class; and those of other groups, all in all."""
    found = predictions(folder, run, run["selection"])
    if found is None:
        return
    entry, (predicted, labels) = run["test"][run["selection"]], found
    counts = {"examples": len(labels), "correct": int((predicted == labels).sum())}
    if counts["correct"] != entry["correct"]:
        yield f"test.{run['selection']}.correct is {entry['correct']}, its predictions have {counts['correct']}"
    for group, values in run.get("diagnostics", {}).items():
        totals = {name: sum(value[name] for value in values.values()) for name in counts}
        if totals != counts:
            yield f"diagnostics.{group}: all in all {totals}, its predictions have {counts}"
        if group == "class":
            stated = {value: {name: one[name] for name in counts} for value, one in values.items()}
            there = {
                str(label): {
                    "examples": int((labels == label).sum()),
                    "correct": int(((predicted == label) & (labels == label)).sum()),
                }
                for label in np.unique(labels)
            }
            for label in sorted({*stated, *there}):
                if stated.get(label) != there.get(label):
                    yield f"diagnostics.class.{label} is {stated.get(label)}, its predictions have {there.get(label)}"
    bins = run.get("calibration", [])
    right = round(sum(one["accuracy"] * one["examples"] / 100 for one in bins))
    totals = {"examples": sum(one["examples"] for one in bins), "correct": right}
    if bins and totals != counts:
        yield f"calibration: all in all {totals}, its predictions have {counts}"


def _drawn(report: Report) -> dict[str, str]:
    """The figures that the records make on this machine: by path their SHA-256."""
    with tempfile.TemporaryDirectory() as place:
        paths = write_figures(Path(place), report.sections)
        return record.sha256(Path(place), *(path.as_posix() for path in paths))


def _of_figures(folder: Path, listed: dict[str, str], drawn: dict[str, str]) -> Iterator[str]:
    """Figures that are not those which the report wrote, by SHA-256; and, where this machine draws as that did which
    wrote them, those that the records do not make."""
    there = record.sha256(folder, *listed)
    for path, sha in listed.items():
        if path not in there:
            yield f"{path}: not there; lra-report draws it"
        elif there[path] != sha:
            yield f"{path}: not the figure that lra-report drew"
    for path in sorted(drawn.keys() - listed.keys()):
        yield f"{path}: a figure that the records make, but {JSON} does not list"
    for path in sorted(listed.keys() - drawn.keys()):
        yield f"{path}: a figure that {JSON} lists, but the records do not make"
    alike = any(drawn.get(path) == sha for path, sha in listed.items())
    for path, sha in listed.items():
        if alike and drawn.get(path, sha) != sha:
            yield f"{path}: the records make another figure than {JSON} lists"


def _of_text(path: Path, expected: str) -> Iterator[str]:
    """The first line of a file that is not what the records give."""
    try:
        found = read_regular(path, TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        yield f"{path.name}: not readable ({_reason(error)}); lra-report writes it"
        return
    pairs = enumerate(zip_longest(found.split("\n"), expected.split("\n")), start=1)
    wrong = [(line, one, other) for line, (one, other) in pairs if one != other]
    if wrong:
        line, one, other = wrong[0]
        more = f" (and {len(wrong) - 1} more lines)" if len(wrong) > 1 else ""
        one, other = _around(one, other)
        yield f"{path.name}, line {line}: found {one!r}, the records give {other!r}{more}"


def _around(one: str | None, other: str | None, most: int = 160) -> tuple[str | None, str | None]:
    """Both from a little before the place where they differ, where the lines are long: those of the page are."""
    if max(len(one or ""), len(other or "")) <= most:
        return one, other
    place = next((n for n, (a, b) in enumerate(zip(one or "", other or "", strict=False)) if a != b), 0)
    start = max(0, place - 40)
    return tuple(text and text[start : start + most] for text in (one, other))


def _reason(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, OSError | UnicodeDecodeError) else str(error)
