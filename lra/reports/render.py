"""Format numbers, texts and DataFrames as Markdown, CSV, LaTeX and HTML."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

TEMPLATES = Path(__file__).with_name("templates")
TEX = str.maketrans({
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: f"{{{letter}}}" for letter in "[*"},  # the \\ before a row would read a [ or * at its start as an option
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\n": r"\\", "±": r"$\pm$", "²": "$^2$", "−": "$-$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "…": r"\ldots{}",
})  # fmt: skip


def number(value: Any, form: str = ".2f") -> str:
    """Return a formatted number, or an empty string for None and NaN."""
    return "" if value is None or pd.isna(value) else format(value, form)


def mean_sd(mean: float | None, sd: float | None) -> str:
    """Return `mean ± sd`, the mean alone if there is no sd, or an empty string if there is no mean."""
    return " ± ".join(filter(None, [number(mean), number(sd)]))


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, with ten significant digits.

    An apostrophe is put in front of any text that a spreadsheet would evaluate as a formula.
    """
    guarded = frame.map(
        lambda value: f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
    )
    # ten digits, because processors differ in the last ones of a double
    return guarded.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def markdown(frame: pd.DataFrame, left: int = 2) -> str:
    """Return a Markdown table; the first `left` columns are left-aligned, the others right-aligned."""
    rows = [[escape(str(value)) for value in row] for row in frame.itertuples(index=False)]
    rule = ["---" if index < left else "---:" for index in range(len(frame.columns))]
    lines = [[escape(str(name)) for name in frame.columns], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Escape Markdown markup, except the emphasis of `*baseline: NAME*` and footnote marks in `<sup>`."""
    body, marks = re.fullmatch(r"(.*?)((?:<sup>[a-z,]+</sup>)?)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    emphasised = re.fullmatch(r"\*(baseline: .*)\*", body)
    inner = emphasised[1] if emphasised else body
    # "<" opens a tag unless a space follows, "_" inside a word is plain, and "]" before "(", "[" or ":" ends a link
    inner = re.sub(r"[\\`*|]|<(?! )|(?<!\w)_|_(?!\w)|\](?=[(\[:])", r"\\\g<0>", inner)
    return (f"*{inner}*" if emphasised else inner) + marks


def _tex_cell(text: str) -> str:
    """Return the LaTeX of a table cell; its star and footnote letters become a `\\tnote`."""
    body, star, letters = re.fullmatch(r"(.*?)(\*?)(?:<sup>([a-z,]+)</sup>)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if body.startswith("*baseline: "):
        body, star = body.removeprefix("*baseline: "), ""
    marks = ",".join(filter(None, [star, letters]))
    return tex(body) + (rf"\tnote{{{marks}}}" if marks else "")


def tex(text: str) -> str:
    """Escape a text for LaTeX. Letters that are neither in `TEX` nor European need LuaLaTeX and a suitable font."""
    text = re.sub("`(.*?)`", r"\\texttt{\1}", text.translate(TEX))
    return re.sub(r"√(\w)?", lambda found: rf"$\sqrt{{{found[1] or ''}}}$", text)


def html(frame: pd.DataFrame) -> str:
    """Return a sortable HTML table.

    All numbers of a column get the same format: no decimals if all are whole, otherwise three significant digits for
    learning rates and two decimals for other columns.
    """
    shown: dict[str, list[Any]] = {}
    for name, values in frame.items():
        whole = all(float(value).is_integer() for value in values if _is_number(value))
        # z: 0.00 instead of -0.00
        form = ".10g" if whole else ".3g" if name in ("lr", "learning rate") else "z.2f"
        shown[str(name)] = [
            format(value, form) if _is_number(value) else "" if pd.isna(value) else value for value in values
        ]
    # n-last: empty cells stay at the end of a sorted column
    return pd.DataFrame(shown).to_html(index=False, border=0, classes="sortable n-last")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not pd.isna(value)


@cache
def template(name: str, folder: Path = TEMPLATES) -> Template:
    """Load a Jinja template of a report, or of another folder, with functions of this module as filters."""
    brackets: dict[str, Any] = {}
    if name == "table.tex.j2":  # Jinja's {{ }} and {% %} would clash with LaTeX
        brackets = {"variable_start_string": "<<", "variable_end_string": ">>"}
        brackets |= {"block_start_string": "<%", "block_end_string": "%>"}
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=name == "page.html.j2",
        undefined=StrictUndefined,  # a misspelt name in a template is an error instead of an empty text
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, **brackets,
    )  # fmt: skip
    environment.filters |= {"md": escape, "table": markdown, "mean_sd": mean_sd, "number": number}
    environment.filters |= {"tex": tex, "cell": _tex_cell}
    return environment.get_template(name)
