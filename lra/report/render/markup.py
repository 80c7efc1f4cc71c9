"""The pages of a report as templates of Jinja, in `lra/report/templates`: what a person reads there is the page. What
comes from records is text there, and no markup of Markdown, LaTeX or HTML."""

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.console import plural
from lra.core.errors import printable
from lra.report.render import layout, pictures
from lra.report.render.layout import Grid, TableText
from lra.report.render.pictures import colour_number
from lra.report.statistics import words
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
    engine = environment()
    if template.endswith(".tex.j2"):
        engine = engine.overlay(**OF_LATEX)
    return engine.get_template(template).render(values)


@cache
def environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    engine = Environment(
        loader=PackageLoader("lra.report"),
        autoescape=select_autoescape(["html.j2", "svg.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    engine.globals |= {
        "asset": lambda name: markup((ASSETS / name).read_text(encoding="utf-8")),
        "colour_number": colour_number,
        "dot_of": pictures.dot_of,
        "formats": words,
        "kinds": pictures.kinds,
        "layout": layout,
        "legend_of": layout.legend,
        "plural": plural,
        "printable": printable,
        "SIGNS": SIGNS,
    }
    engine.filters |= {
        "md": escape,
        "grid": markdown,
        "code": code,
        "link": link,
        "tex": tex,
        "tex_cell": tex_cell,
        "slug": slug,
    }
    return engine


def markup(text: str) -> str:
    """A text that is HTML already."""
    from markupsafe import Markup

    return Markup(text)


def data_block(data: Any) -> str:
    """JSON that no text in it can end as a script."""
    return markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"))


# Text as Markdown and as LaTeX.


def markdown(grid: Grid) -> str:
    ruler = ["---" if side == "l" else "---:" for side in grid.sides]
    lines = [list(map(escape, grid.header)), ruler, *([_text(text) for text in row] for row in grid.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(text: TableText) -> str:
    mark = "**" if text.bold else "*" if text.italic else ""
    shown = f"{mark}{escape(text.text)}{mark}" if text.text else ""
    return link(shown, text.link) if text.link else shown


def escape(text: str) -> str:
    """Names that come from records and files are text, not markup: neither code, emphasis, cells, tags and entities,
    nor the links `[a](b)`, `[a][b]`, `[a]: b` and `http://b`. A `_` inside of a word is none, and stays as it is."""
    return re.sub(r"([\\`*|~]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[\[(:])|:(?=//))", r"\\\1", text)


def code(text: str) -> str:
    """In a fence that is longer than any in the text."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def link(shown: str, address: str) -> str:
    """`shown`: Markdown; `address`: as `layout.address` gives it."""
    return f"[{shown}]({address})"


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "²": "$^2$",
    "³": "$^3$",
    "√": r"$\surd$",
    "–": "--",
    "—": "---",
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
MATHS = {"²": "^2", "³": "^3", "√": r"\surd ", "log": r"\log"}
ORDER = re.compile(r"O\([A-Za-z0-9 ()+*/.,²³√-]*\)")  # set as a formula; anything else is text


def tex_cell(text: TableText) -> str:
    if ORDER.fullmatch(text.text):
        return _order(text.text)
    shown = re.sub(r"^\+(?=\d)", "$+$", tex(text.text))
    command = r"\textbf" if text.bold else r"\textit" if text.italic else ""
    if command:
        return f"{command}{{{shown}}}"
    return f"{{{shown}}}" if shown.startswith(("[", "*")) else shown  # else the \\ before takes it for its option


def _order(text: str) -> str:
    """A complexity, as in O(L log L)."""
    shown = re.sub("|".join(MATHS), lambda match: MATHS[match[0]], text.removeprefix("O"))
    return f"$\\mathcal{{O}}{shown}$"


def tex(text: str) -> str:
    """Text for LaTeX; what its default fonts do not have is named by its code point."""
    shown = "".join(SPECIAL.get(character) or _plain(character) for character in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", shown.replace(" - ", " $-$ "))


def _plain(character: str) -> str:
    latin = character.isascii() or ("À" <= character <= "ÿ" and character not in "ÐÞðþ")
    return character if latin else f"U+{ord(character):04X}"


def slug(text: str) -> str:
    """The form of a text in a label."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
