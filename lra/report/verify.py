"""Does a report say what its records say, and do the records agree with themselves?"""

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from lra.files import digest
from lra.report import JSON, Report
from lra.report.records import Record, predictions


def verify(folder: Path, selection: str | None = None, published: Iterable[Path] = ()) -> tuple[Report, list[str]]:
    """The report as the records make it now, and a line for everything in `folder` that does not match it.

    `selection`: None for the rule that the report was built with. Raises UserError.
    """
    built = _built(folder / JSON)
    report = Report(folder, selection or built.get("selection"), published)
    mismatches = [
        f"{run['path']}: {found}"
        for cell in report.cells
        for run in cell.runs.values()
        for found in _inside(folder, run)
    ]
    expected = report.files([Path(path) for path in built.get("figures", [])])
    for name, text in expected.items():
        mismatches += _beside(folder / name, text)
    return report, mismatches


def _built(path: Path) -> dict:
    """How the report was built; empty where that cannot be read, which the comparison of the file then shows."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _inside(folder: Path, run: Record) -> Iterator[str]:
    """What in a record contradicts itself or the predictions beside it."""
    if run["provenance"]["config_sha256"] != digest(run["config"]):
        yield "config_sha256 is not that of its config"
    results = {f"{kind}.{name}": entry for kind in ("test", "validation") for name, entry in run.get(kind, {}).items()}
    for name, entry in results.items():
        accuracy = 100 * entry["correct"] / entry["examples"]
        if entry["accuracy"] != accuracy:
            yield f"{name}.accuracy is {entry['accuracy']}, but {entry['correct']} of {entry['examples']} is {accuracy}"
    if run["status"] != "finished":
        return
    found = predictions(folder, run, run["selection"])
    if found is not None:
        correct = int((found[0] == found[1]).sum())
        stated = run["test"][run["selection"]]["correct"]
        if correct != stated:
            yield f"test.{run['selection']}.correct is {stated}, its predictions have {correct}"


def _beside(path: Path, expected: str) -> Iterator[str]:
    """The first line of a file that is not what the records give."""
    try:
        found = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path.name}: not readable ({type(error).__name__}); lra-report writes it"
        return
    pairs = enumerate(zip_longest(found.split("\n"), expected.split("\n")), start=1)
    wrong = [(line, one, other) for line, (one, other) in pairs if one != other]
    if wrong:
        line, one, other = wrong[0]
        more = f" (and {len(wrong) - 1} more lines)" if len(wrong) > 1 else ""
        yield f"{path.name}, line {line}: found {one!r}, the records give {other!r}{more}"
