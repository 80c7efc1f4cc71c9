"""Format the frames of a report as Markdown, CSV, LaTeX and HTML."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from lra.records.names import SEEDS_FIGURE
from lra.reports.cells import Column
from lra.reports.figures import caption
from lra.reports.frame import CELL, seeds
from lra.reports.tables import number, significance, unbeaten

if TYPE_CHECKING:
    from lra.reports.report import Report

HERE = Path(__file__).parent
METRICS = {"accuracy": "accuracy in percent", "perplexity": "perplexity"}
RULES = {
    "last": "after the last step (`last`)",
    "best_val": "at the best validation result (`best_val`)",
    "best_test": "at the best result on the test split itself (`best_test`)",
}
SHOWN = {  # headers in index.html by column of `Report.cells`
    "system": "system", "mean": "mean", "sd": "sd", "n": "n", "interval": "interval", "published": "published",
    "difference": "difference", "difference_interval": "its interval", "p_holm": "p (Holm)", "verdict": "verdict",
    "best": "best", "expected_best": "expected best", "majority_class": "at majority", "solved": "solved",
    "median_steps": "median steps", "lr": "learning rate", "best_val": "best validation",
    "train_seconds": "training (s)", "parameters": "parameters", "complexity": "complexity",
}  # fmt: skip
TEX = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: f"{{{letter}}}" for letter in "[*"},  # at the start of a row, they would be options of the preceding \\
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\n": r"\\", "±": r"$\pm$", "²": "$^2$", "−": "$-$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "…": r"\ldots{}",
}  # fmt: skip


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, with ten significant digits.

    A text that a spreadsheet would evaluate as a formula gets an apostrophe in front.
    """
    guarded = frame.map(
        lambda value: f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
    )
    return guarded.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def readme(report: "Report") -> str:
    """Return the content of README.md."""
    tables = report.tables
    return _template("readme.md.j2").render(
        **_summary(report),
        figure=SEEDS_FIGURE,
        subject=_subject(report),
        results=markdown(tables.results),
        solved=markdown(tables.solved, left=1) if len(tables.solved) else "",
        steps=markdown(tables.steps, left=1) if len(tables.steps) else "",
        notes=tables.notes,
        significance=significance(report.columns),
        unbeaten=unbeaten(report.columns),
        caption=caption(report.columns),
    )  # fmt: skip


def page(report: "Report", figures: Mapping[str, list[str]]) -> str:
    """Return the content of index.html, which includes its scripts and `figures` (SVG panels by title)."""
    assets, runs = HERE / "assets", seeds(report.frame).drop(columns=CELL).dropna(axis="columns", how="all")
    first = ["short", "system"]
    return _template("page.html.j2").render(
        **_summary(report),
        sections=map(section, report.columns),
        figures=figures,
        caption=caption(report.columns),
        seeds=html(runs[[*first, *runs.columns.drop(first)]]),
        script=(assets / "sortable.min.js").read_text(encoding="utf-8"),
        licence=(assets / "sortable.LICENSE").read_text(encoding="utf-8"),
    )  # fmt: skip


def section(column: Column) -> dict[str, Any]:
    """Return the template values of a column in index.html: name, note, HTML table and caveats."""
    rows = column.rows()
    rows = rows.assign(
        system=rows.system.where(rows.kind == "system", "baseline: " + rows.system),
        interval=_intervals(rows.low, rows.high),
        difference_interval=_intervals(rows.difference_low, rows.difference_high),
        # NaN, of a row without a test, is not below 0.001 and gives an empty text
        p_holm=["<0.001" if p < 0.001 else number(p, ".3f") for p in rows.p_holm.astype(float)],
    )
    rates, goals = rows.lr.dropna().unique(), rows.goal.dropna().unique()
    notes = [f"Goal: {goal:g} % validation accuracy." for goal in goals]
    if len(rates) == 1:  # one learning rate for all systems: state it in a sentence instead of a column
        notes.append(f"Learning rate: {rates[0]:g}.")
        rows = rows.assign(lr=None)
    if not rows.majority_class.fillna(0).any():
        rows = rows.assign(majority_class=None)  # a column of zeros
    filled = [name for name in SHOWN if rows[name].replace("", None).notna().any()]
    systems: dict[str, list[str]] = {}
    for cell in column.cells:
        for caveat in cell.caveats():
            systems.setdefault(caveat, []).append(cell.system)
    everyone = len(column.cells) if len(column.cells) > 1 else None
    return {
        "name": column.name,
        "note": " ".join(filter(None, [*notes, unbeaten([column])])),
        "table": html(rows[filled].rename(columns=SHOWN)),
        "caveats": [
            f"{'All systems' if len(names) == everyone else ', '.join(names)}: {caveat}"
            for caveat, names in systems.items()
        ],
    }


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(start) else f"{start:.2f} to {end:.2f}" for start, end in zip(low, high, strict=True)]


def _subject(report: "Report") -> str:
    """Return a sentence that names the metric and the selection rule of the table."""
    metrics = " or ".join(METRICS[name] for name in dict.fromkeys(column.metric for column in report.columns))
    rules = " or ".join(RULES[rule] for rule in report.frame.selection.unique())
    return f"Test {metrics}, mean ± sd over seeds, {rules}."


def _summary(report: "Report") -> dict[str, Any]:
    """Return template values that summarise the runs: title, counts, total hours, hardware and commits."""
    records = [run.record for run in report.runs]
    machines = [record.provenance for record in records]
    commits = [machine.commit or "unknown" for machine in machines]
    return {
        "title": report.title,
        "done": int(report.frame.score.notna().sum()),
        "expected": len(report.frame),
        "runs": len(records),
        "hours": f"{sum(sum(record.seconds.values()) for record in records) / 3600:.1f}",
        "hardware": sorted({machine.cpu if machine.device == "cpu" else machine.device for machine in machines}),
        # only commit hashes are shortened, not "lra VERSION, installed"
        "commits": sorted({re.sub("^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", commit) for commit in commits}),
    }


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
    inner = re.sub(r"[\\`*|]|<(?! )|(?<!\w)_|_(?!\w)|\](?=[(\[:])", r"\\\g<0>", inner)
    return (f"*{inner}*" if emphasised else inner) + marks


def latex(report: "Report") -> str:
    """Return table.tex: the table with caption, label and footnotes, for booktabs and threeparttable."""
    frame, systems = report.tables.results, len({cell.system for column in report.columns for cell in column.cells})
    trivial = "Below the second line: trivial baselines." if len(frame) > systems else ""
    return _template("table.tex.j2").render(
        caption=" ".join(filter(None, [_subject(report), trivial, unbeaten(report.columns)])),
        label=re.sub("[^a-z0-9]+", "-", report.title.lower()).strip("-"),
        # long headers break after commas and before (n = 3)
        headers=[re.sub(r"(?<=,) | (?=\(n = )", "\n", name) for name in frame.columns],
        rows=frame.values.tolist(),
        systems=systems,
        notes=report.tables.notes,
        significance=significance(report.columns),
    )


def _tex_cell(text: str) -> str:
    """Return the LaTeX of a table cell; its star and footnote letters become a `\\tnote`."""
    body, star, letters = re.fullmatch(r"(.*?)(\*?)(?:<sup>([a-z,]+)</sup>)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if body.startswith("*baseline: "):
        body, star = body.removeprefix("*baseline: "), ""
    marks = ",".join(filter(None, [star, letters]))
    return tex(body) + (rf"\tnote{{{marks}}}" if marks else "")


def tex(text: str) -> str:
    """Escape a text for LaTeX. Letters outside `TEX` and European languages need LuaLaTeX and a suitable font."""
    text = re.sub("[" + re.escape("".join(TEX)) + "]", lambda found: TEX[found[0]], text)
    text = re.sub("`(.*?)`", r"\\texttt{\1}", text)
    return re.sub(r"√(\w)?", lambda found: rf"$\sqrt{{{found[1] or ''}}}$", text)


def html(frame: pd.DataFrame) -> str:
    """Return a sortable HTML table.

    The numbers of a column have one format: no decimals if all are whole, otherwise three significant digits for
    learning rates, and two decimals for all others.
    """
    shown: dict[str, list[Any]] = {}
    for name in frame:
        numbers = [value for value in frame[name] if _is_number(value)]
        form = ".3g" if name in ("lr", SHOWN["lr"]) else "z.2f"  # z: never -0.00
        if all(float(value).is_integer() for value in numbers):
            form = ".10g"
        shown[name] = [
            format(value, form) if _is_number(value) else "" if pd.isna(value) else value for value in frame[name]
        ]
    return pd.DataFrame(shown).to_html(index=False, border=0, classes="sortable n-last")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not pd.isna(value)


@cache
def _template(name: str) -> Template:
    brackets: dict[str, Any] = {}
    if name == "table.tex.j2":  # Jinja's {{ }} and {% %} would clash with LaTeX
        brackets = {"variable_start_string": "<<", "variable_end_string": ">>"}
        brackets |= {"block_start_string": "<%", "block_end_string": "%>"}
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=name == "page.html.j2", undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, **brackets,
    )  # fmt: skip
    environment.filters |= {"md": escape, "tex": tex, "cell": _tex_cell}
    return environment.get_template(name)
