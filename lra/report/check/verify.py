"""Does a report say what its records say, and do the records agree with themselves and with what lies beside them?"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lra.core.errors import UserError
from lra.core.files import JSON_BYTES, digest, parse_json, read_regular
from lra.records import record
from lra.records.names import CARDS, CONFIG, COSTS, METRICS, PAGE, PREDICTIONS, SAMPLE, SWEEP, WEIGHTS
from lra.records.run_files import RunFiles
from lra.report import JSON, Built, Report, read_built
from lra.report.check import course
from lra.report.read import schema
from lra.report.read.records import BESIDE, Record, beside, contents, declarations, parsed, predictions, records
from lra.report.render import cards
from lra.report.render.figures import write_figures

TEXT_BYTES = 2**28  # the most that a file of a report may have
MOST = 20  # places of a file that are named one by one,
FEW = 3  # and where records have faults, from which those follow
LEFT = {"accuracy": (METRICS, PREDICTIONS), "perplexity": (METRICS, COSTS, SAMPLE)}  # by a finished run


def verify(root: Path, selection: str | None = None, published: Iterable[Path] = ()) -> tuple[int, list[str]]:
    """How many records were read, and a line for everything in a results folder, or in the folder of a receipts file,
    that is not as they say.

    `selection`: None for the rule that the report was built with. Raises UserError where there is no record.
    """
    files = RunFiles(root)
    faults: list[str] = []
    how = _built(files.folder, faults)
    runs, faults_of_records = _of_records(files)
    faults += faults_of_records
    try:
        rule = selection or (how.selection if how else None)
        report = Report(root, rule, published, faults.append, how.title if how else None)
        faults += _of_report(report, how, FEW if faults_of_records else MOST)
    except UserError as error:
        if not runs and not faults:
            raise
        faults.append(str(error))
    return len(runs), list(dict.fromkeys(faults))


def verify_records(root: Path) -> tuple[int, list[str]]:
    """Verify records alone, as `verify` does, whatever report may lie beside them."""
    runs, faults = _of_records(RunFiles(root))
    try:
        Report(root, tell=faults.append)
    except UserError as error:
        if not runs and not faults:
            raise
        faults.append(str(error))
    return len(runs), list(dict.fromkeys(faults))


def _of_records(files: RunFiles) -> tuple[list[Record], list[str]]:
    """The records that can be read, and what is wrong with them, with files beside them and with what was declared."""
    faults: list[str] = []
    runs = list(records(files, faults.append))
    for run in runs:
        try:
            faults += [f"{run['path']}: {fault}" for fault in _of_run(files, run)]
        except UserError as error:
            faults.append(str(error))
    return runs, [*faults, *_of_declarations(files, runs)]


def _of_declarations(files: RunFiles, runs: list[Record]) -> Iterator[str]:
    """Runs whose cell a sweep declares, but not their seed: of these, somebody chose which to show."""
    declared: dict[PurePosixPath, set[int]] = {}
    for place, cell in declarations(files, lambda _: None):  # the report tells of what cannot be read
        declared.setdefault(place, set()).update(cell["seeds"])
    for run in runs:
        seeds = declared.get(PurePosixPath(run["path"]).parent.parent)
        if seeds is not None and run["seed"] not in seeds:
            listed = ", ".join(map(str, sorted(seeds)))
            yield f"{run['path']}: seed {run['seed']} was run, but {SWEEP} declares {listed}"


def _built(folder: Path, faults: list[str]) -> Built | None:
    """How the report was built; None where it is README.md and index.html alone, and, with a fault, where that cannot
    be read."""
    try:
        return read_built(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        faults.append(f"{JSON}: {error}; lra-report writes it anew")
        return None


def _of_report(report: Report, how: Built | None, most: int) -> Iterator[str]:
    """What in the files of the report is not as the records say; `most` places of each."""
    texts = report.pages()
    if (report.folder / JSON).exists():
        drawn = _drawn(report)
        figures = how.figures if how else record.sha256(report.folder, *drawn)
        yield from _of_figures(report.folder, figures, drawn)
        texts = {**report.files(figures), PAGE: report.page(figures)}
    if (report.folder / CARDS).exists():
        texts[CARDS] = cards.page(report)
    for name, text in texts.items():
        yield from differences(report.folder / name, text, most)


def _of_run(files: RunFiles, run: Record) -> Iterator[str]:
    """What in a record contradicts itself or the files beside it. Raises UserError."""
    if run["provenance"]["config_sha256"] != digest(run["config"]):
        yield "config_sha256 is not that of its config"
    yield from _of_config(files, run)
    yield from _of_files(files, run)
    for kind in ("test", "validation"):
        for name, entry in run.get(kind, {}).items():
            yield from _of_entry(f"{kind}.{name}", entry)
    yield from _of_curve(files, run)
    if run["status"] == "finished" and run["metric"] == "accuracy":
        yield from _of_predictions(files, run)


def _of_config(files: RunFiles, run: Record) -> Iterator[str]:
    try:
        changes = record.differences(parse_json(files.read(beside(run, CONFIG), JSON_BYTES)), run["config"])
    except (OSError, ValueError) as error:
        yield f"{CONFIG} beside it is not readable: {_reason(error)}"
        return
    for key, there, recorded in changes:
        yield f"{CONFIG} beside it has {key}: {there!r}, the record {recorded!r}"


def _of_files(files: RunFiles, run: Record) -> Iterator[str]:
    listed = run.get("files", {})
    if run["status"] == "finished":
        yield from (f"it lists no {name}" for name in LEFT[run["metric"]] if name not in listed)
    for name in listed:
        path = beside(run, name)
        if not files.exists(path):
            if name != WEIGHTS and name not in run["damaged"]:
                yield f"{name}, which it lists, is not beside it"
        elif name not in BESIDE:
            try:
                record.check_contents(name, files.read(path), run)
            except (OSError, ValueError):
                yield f"{name} has another SHA-256 than it says"


def _of_entry(name: str, entry: dict[str, Any]) -> Iterator[str]:
    accuracy = 100 * entry["correct"] / entry["examples"]
    if entry["accuracy"] != accuracy:
        yield f"{name}.accuracy is {entry['accuracy']}, but {entry['correct']} of {entry['examples']} is {accuracy}"
    loss, perplexity = entry["loss"], entry.get("perplexity")
    if loss is not None and perplexity is not None and not math.isclose(perplexity, math.exp(loss)):
        yield f"{name}.perplexity is {perplexity}, but exp({loss}) is {math.exp(loss)}"


def _of_curve(files: RunFiles, run: Record) -> Iterator[str]:
    """What the evaluations in metrics.jsonl contradict, where it is there and is what the record lists."""
    data = contents(files, run, METRICS)
    if data is None:
        return
    lines = parsed(files.shown(beside(run, METRICS)), data)
    try:
        evaluations = [schema.check(schema.Evaluation, line) for line in lines]
    except ValueError as error:
        yield f"{METRICS} is not what a run measured: {error}"
        return
    yield from course.contradictions(run, evaluations)


def _of_predictions(files: RunFiles, run: Record) -> Iterator[str]:
    """Counts that the predictions contradict, all of them and class by class; and those of other groups, all in all."""
    pair = predictions(files, run, run["selection"])
    if pair is None:
        return
    stated, (predicted, labels) = run["test"][run["selection"]], pair
    right = predicted == labels
    counts = _counts(right)
    if counts["correct"] != stated["correct"]:
        yield f"test.{run['selection']}.correct is {stated['correct']}, its predictions have {counts['correct']}"
    for group, values in run.get("diagnostics", {}).items():
        totals = {name: sum(value[name] for value in values.values()) for name in counts}
        if totals != counts:
            yield f"diagnostics.{group}: all in all {totals}, its predictions have {counts}"
    of_classes = {str(label): _counts(right[labels == label]) for label in np.unique(labels)}
    classes = run.get("diagnostics", {}).get("class", {})
    said = {label: {name: counted[name] for name in counts} for label, counted in classes.items()}
    for label in sorted({*said, *of_classes}) if said else ():
        if said.get(label) != of_classes.get(label):
            yield f"diagnostics.class.{label} is {said.get(label)}, its predictions have {of_classes.get(label)}"
    bins = run.get("calibration", [])
    hits = round(sum(part["accuracy"] * part["examples"] / 100 for part in bins))
    totals = {"examples": sum(part["examples"] for part in bins), "correct": hits}
    if bins and totals != counts:
        yield f"calibration: all in all {totals}, its predictions have {counts}"


def _counts(right: np.ndarray) -> dict[str, int]:
    return {"examples": len(right), "correct": int(right.sum())}


def _drawn(report: Report) -> dict[str, str]:
    """The figures that the records make on this machine: by path their SHA-256."""
    with tempfile.TemporaryDirectory() as place:
        paths = write_figures(Path(place), report.columns)
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


def differences(path: Path, expected: str, most: int = MOST) -> Iterator[str]:
    """The lines of a file that are not what the records give, `most` places of them one by one."""
    try:
        text = read_regular(path, TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        yield f"{path.name}: not readable ({_reason(error)}); lra-report writes it"
        return
    written, given = text.split("\n"), expected.split("\n")
    matcher = SequenceMatcher(None, written, given, autojunk=False)
    places = [change[1:] for change in matcher.get_opcodes() if change[0] != "equal"]
    for first, last, start, end in places[:most]:
        actual, right = _around("\n".join(written[first:last]), "\n".join(given[start:end]))
        yield f"{path.name}, line {first + 1}: found {actual!r}, the records give {right!r}"
    if len(places) > most:
        yield f"{path.name}: {len(places) - most} more places are not what the records give"


def _around(text: str, other: str, most: int = 160) -> tuple[str, str]:
    """Both from a little before the place where they differ, where the lines are long: those of the page are."""
    if max(len(text), len(other)) <= most:
        return text, other
    place = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    start = max(0, place - 40)
    return text[start : start + most], other[start : start + most]


def _reason(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, OSError | UnicodeDecodeError) else str(error)
