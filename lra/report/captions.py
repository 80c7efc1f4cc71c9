"""What stands below a figure: what it shows, of which task, and the caveats of the systems in it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lra.report.curves import PROBES
from lra.report.matrix import headings
from lra.report.table import Column, Section

SHOWS = {
    "forest": "differences to the reference",
    "seeds": "every seed",
    "cost": "score and cost",
    "curves": "learning curves",
    "depth": "accuracy and number of blocks",
    "diagnostics": "accuracy by kind of example",
    "calibration": "confidence and accuracy",
    **{probe: f"{what} in each block" for probe, what in PROBES.items()},
    "blocks": "all measurements in the blocks",
    "batches": "cost of every batch",
    "batches_each": "cost of every batch, by system",
    "difficulty": "accuracy and difficulty",
}
"""By the name of a drawing."""


@dataclass(frozen=True)
class Caption:
    """`title`: the task and what is shown; `caveats`: those of all its systems, then those of some."""

    title: str
    caveats: str = ""


def stem(drawing: str, heading: str) -> str:
    """The name of the file of a figure."""
    return re.sub(r"[^\w-]+", "_", f"{drawing} {heading}")


def captions(sections: Sequence[Section], paths: Sequence[Path]) -> dict[Path, Caption]:
    """The captions of these figures."""
    columns = [column for section in sections for column in section.columns]
    known = {
        stem(drawing, heading): Caption(f"{heading}: {shows}", caveats(column))
        for heading, column in zip(headings(sections), columns, strict=True)
        for drawing, shows in SHOWS.items()
    }
    return {path: known.get(path.stem, Caption(path.stem.replace("_", " "))) for path in paths}


def caveats(column: Column) -> str:
    """The caveats of a column in words, as its table has them."""
    some: dict[str, list[str]] = {}
    for row in column.rows:
        for badge in row.badges:
            if badge not in column.shared:
                some.setdefault(badge.label, []).append(row.name)
    parts = [shared(column)] + [f"{label}: {', '.join(names)}." for label, names in some.items()]
    return " ".join(filter(None, parts))


def shared(column: Column) -> str:
    """Those of every row, in a sentence."""
    return f"Every row: {', '.join(badge.label for badge in column.shared)}." if column.shared else ""
