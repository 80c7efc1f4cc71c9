"""The pages of a report as templates of Jinja, in `lra/report/templates`: what a person reads there is the page."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import printable
from lra.report.render import dots, layout
from lra.report.render.drawing import colour_number
from lra.report.statistics import formats
from lra.report.statistics.table import SIGNS

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = Path(__file__).parent.with_name("assets")


def rendered(template: str, **values: Any) -> str:
    """The page of a template. What it names and is not given is an error."""
    return environment().get_template(template).render(values)


@cache
def environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    known = Environment(
        loader=PackageLoader("lra.report"),
        autoescape=select_autoescape(["html.j2", "svg.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    known.globals |= {
        "asset": lambda name: markup((ASSETS / name).read_text(encoding="utf-8")),
        "colour_number": colour_number,
        "counted_verdicts": dots.counted_verdicts,
        "dot_of": dots.dot_of,
        "formats": formats,
        "kinds": dots.kinds,
        "legend_of": layout.legend,
        "printable": printable,
        "SIGNS": SIGNS,
    }
    return known


def markup(text: str) -> str:
    """A text that is HTML already."""
    from markupsafe import Markup

    return Markup(text)


def data_block(data: Any) -> str:
    """JSON that no text in it can end as a script."""
    return markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"))
