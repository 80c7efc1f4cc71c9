"""The pages of a report as templates of Jinja, in `lra/report/templates`: what a person reads there is the page."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import printable
from lra.report.render import dots, layout
from lra.report.render.drawing import colour_number
from lra.report.render.markup import code, escape, link, markdown, tex, tex_cell
from lra.report.statistics import formats
from lra.report.statistics.table import SIGNS

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = Path(__file__).parent.with_name("assets")
OF_LATEX = {  # whose own braces and signs mean something else to Jinja
    "block_start_string": r"\BLOCK{",
    "block_end_string": "}",
    "variable_start_string": r"\VAR{",
    "variable_end_string": "}",
    "comment_start_string": r"\#{",
    "comment_end_string": "}",
}


def rendered(template: str, **values: Any) -> str:
    """The page of a template. What it names and is not given is an error."""
    known = environment()
    if template.endswith(".tex.j2"):
        known = known.overlay(**OF_LATEX)
    return known.get_template(template).render(values)


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
        "dot_of": dots.dot_of,
        "formats": formats,
        "kinds": dots.kinds,
        "layout": layout,
        "legend_of": layout.legend,
        "printable": printable,
        "SIGNS": SIGNS,
    }
    known.filters |= {"md": escape, "grid": markdown, "code": code, "link": link, "tex": tex, "tex_cell": tex_cell}
    return known


def markup(text: str) -> str:
    """A text that is HTML already."""
    from markupsafe import Markup

    return Markup(text)


def data_block(data: Any) -> str:
    """JSON that no text in it can end as a script."""
    return markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"))
