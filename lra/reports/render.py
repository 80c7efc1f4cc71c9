"""Frames as Markdown, CSV, LaTeX and HTML."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from lra.records.names import README, SEEDS, SEEDS_FIGURE, TABLE, TABLE_TEX
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
P = "p (Holm)"
SHOWN = {  # in a page, by column of the frame of cells
    "system": "system", "mean": "mean", "sd": "sd", "n": "n", "interval": "interval", "published": "published",
    "difference": "difference", "difference_interval": "its interval", "p_holm": P, "verdict": "verdict",
    "best": "best", "expected_best": "expected best", "majority_class": "at majority", "solved": "solved",
    "median_steps": "median steps", "lr": "learning rate", "best_val": "best validation",
    "train_seconds": "training (s)", "parameters": "parameters", "complexity": "complexity",
}  # fmt: skip
TEX = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: f"{{{letter}}}" for letter in "[*"},  # at the start of a row they would be options of the row before
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\n": r"\\", "±": r"$\pm$", "²": "$^2$", "−": "$-$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "…": r"\ldots{}",
}  # fmt: skip


def texts(report: "Report") -> dict[str, str]:
    """Return README.md, table.csv, table.tex and seeds.csv by name."""
    return {
        README: readme(report),
        TABLE: as_csv(report.cells.drop(columns=["kind", "short", "published_mean"])),
        TABLE_TEX: latex(report),
        SEEDS: as_csv(seeds(report.frame)),
    }


def seed_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what a page shows of each run: task and system first, no empty column."""
    rows = seeds(frame).drop(columns=CELL).dropna(axis="columns", how="all")
    first = ["short", "system"]
    return rows[[*first, *(column for column in rows if column not in first)]]


def as_csv(frame: pd.DataFrame) -> str:
    """Return a CSV; numbers have ten digits, and a text that a spreadsheet would compute follows an apostrophe."""
    guarded = frame.map(
        lambda value: f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
    )
    return guarded.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def readme(report: "Report") -> str:
    """Return README.md."""
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
    """Return index.html, which needs no other file."""
    assets = HERE / "assets"
    return _template("page.html.j2").render(
        **_summary(report),
        sections=map(section, report.columns),
        figures=figures,
        caption=caption(report.columns),
        seeds=html(seed_rows(report.frame)),
        script=(assets / "sortable.min.js").read_text(encoding="utf-8"),
        licence=(assets / "sortable.LICENSE").read_text(encoding="utf-8"),
    )  # fmt: skip


def section(column: Column) -> dict[str, Any]:
    """Return name, notes, HTML table and caveats of a column."""
    rows = column.rows()
    rows = rows.assign(
        system=rows.system.where(rows.kind == "system", "baseline: " + rows.system),
        interval=_intervals(rows.low, rows.high),
        difference_interval=_intervals(rows.difference_low, rows.difference_high),
    )
    rates, goals = rows.lr.dropna().unique(), rows.goal.dropna().unique()
    notes = [f"Goal: {goal:g} % validation accuracy." for goal in goals]
    if len(rates) == 1:  # a sentence instead of a column
        notes.append(f"Learning rate: {rates[0]:g}.")
        rows = rows.assign(lr=None)
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
    """Return what the numbers of the table are."""
    metrics = " or ".join(METRICS[name] for name in dict.fromkeys(column.metric for column in report.columns))
    rules = " or ".join(RULES[rule] for rule in report.frame.selection.unique())
    return f"Test {metrics}, mean ± sd over seeds, {rules}."


def _summary(report: "Report") -> dict[str, Any]:
    """Return the number of runs, their hours, hardware and commits."""
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
        # the version of an installed package stays whole
        "commits": sorted({re.sub("^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", commit) for commit in commits}),
    }


def markdown(frame: pd.DataFrame, left: int = 2) -> str:
    """Return a Markdown table; the columns after the first `left` are aligned to the right."""
    rows = [[escape(str(value)) for value in row] for row in frame.itertuples(index=False)]
    rule = ["---" if index < left else "---:" for index in range(len(frame.columns))]
    lines = [[escape(str(name)) for name in frame.columns], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Escape what Markdown would read as markup, but for emphasis around a whole text and footnote marks."""
    body, marks = re.fullmatch(r"(.*?)((?:<sup>[a-z,]+</sup>)?)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    emphasised = re.fullmatch(r"\*(baseline: .*)\*", body)
    inner = emphasised[1] if emphasised else body
    inner = re.sub(r"[\\`*|]|<(?! )|(?<!\w)_|_(?!\w)|\](?=[(\[:])", r"\\\g<0>", inner)
    return (f"*{inner}*" if emphasised else inner) + marks


def latex(report: "Report") -> str:
    """Return the table in LaTeX, for booktabs and threeparttable: caption, label, and the footnotes as notes."""
    frame, systems = report.tables.results, len({cell.system for column in report.columns for cell in column.cells})
    trivial = "Below the second line: trivial baselines." if len(frame) > systems else ""
    return _template("table.tex.j2").render(
        caption=" ".join(filter(None, [_subject(report), trivial, unbeaten(report.columns)])),
        label=re.sub("[^a-z0-9]+", "-", report.title.lower()).strip("-"),
        headers=[re.sub(r"(?<=,) | (?=\(n = )", "\n", name) for name in frame.columns],
        rows=frame.values.tolist(),
        systems=systems,
        notes=report.tables.notes,
        significance=significance(report.columns),
    )


def _tex_cell(text: str) -> str:
    """Return a cell in LaTeX, with its star and footnote letters as marks."""
    body, star, letters = re.fullmatch(r"(.*?)(\*?)(?:<sup>([a-z,]+)</sup>)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if body.startswith("*baseline: "):
        body, star = body.removeprefix("*baseline: "), ""
    marks = ",".join(filter(None, [star, letters]))
    return tex(body) + (rf"\tnote{{{marks}}}" if marks else "")


def tex(text: str) -> str:
    """Escape a text for LaTeX. Letters beyond those of `TEX` and of Europe's languages need LuaLaTeX and a font."""
    text = re.sub("[" + re.escape("".join(TEX)) + "]", lambda found: TEX[found[0]], text)
    text = re.sub("`(.*?)`", r"\\texttt{\1}", text)
    return re.sub(r"√(\w)?", lambda found: rf"$\sqrt{{{found[1] or ''}}}$", text)


def html(frame: pd.DataFrame) -> str:
    """Return a sortable HTML table."""
    shown = {name: _formatted(frame[name]) for name in frame}
    if P in frame:
        shown[P] = [p_value(p) for p in frame[P]]
    return pd.DataFrame(shown).to_html(index=False, border=0, classes="sortable n-last")


def _formatted(column: pd.Series) -> list[Any]:
    """Format the numbers of a column alike: whole, or with two decimals; learning rates with three digits."""
    numbers = [value for value in column if _is_number(value)]
    whole = all(float(value).is_integer() for value in numbers)
    form = ".10g" if whole else ".3g" if column.name in ("lr", SHOWN["lr"]) else "z.2f"  # z: no sign before 0.00
    return [format(value, form) if _is_number(value) else "" if pd.isna(value) else value for value in column]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not pd.isna(value)


def p_value(p: float | None) -> str:
    """Return a p-value with three decimals, `<0.001` below that, empty if there is none."""
    return "<0.001" if p is not None and p < 0.001 else number(p, ".3f")


@cache
def _template(name: str) -> Template:
    brackets: dict[str, Any] = {}
    if name == "table.tex.j2":  # { and % have a meaning in LaTeX
        brackets = {"variable_start_string": "<<", "variable_end_string": ">>"}
        brackets |= {"block_start_string": "<%", "block_end_string": "%>"}
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=name == "page.html.j2", undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, **brackets,
    )  # fmt: skip
    environment.filters |= {"md": escape, "tex": tex, "cell": _tex_cell}
    return environment.get_template(name)
