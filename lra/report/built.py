"""How a report was built, as its table1.json says."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lra.core.files import read_json
from lra.report import schema

JSON = "table1.json"
TABLES = (JSON, "table1.csv", "table1.tex", "seeds.csv", "pairs.csv")
"""For other programs; where table1.json is not there, the report is README.md and index.html alone."""


class Built(schema.Checked):
    """`figures`: by path below the folder their SHA-256."""

    title: str
    selection: Literal[schema.RULES] | None
    figures: dict[Annotated[str, Field(pattern=r"^figures/[\w-]+\.(svg|png)$")], str]


def read(folder: Path) -> Built:
    """Raises OSError, and ValueError where it is not readable."""
    value = read_json(folder / JSON)
    schema.check(Built, value)
    return Built.model_validate(value)
