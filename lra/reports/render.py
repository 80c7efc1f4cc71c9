"""Frames as Markdown, CSV, LaTeX and HTML."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lra.records.names import README, SEEDS, SEEDS_FIGURE, TABLE, TABLE_TEX
from lra.reports.figures import caption
from lra.reports.frame import CELL
from lra.reports.tables import MARK, significance, unbeaten

if TYPE_CHECKING:
    from lra.reports import Report

HERE = Path(__file__).parent
METRICS = {"accuracy": "accuracy in percent", "perplexity": "perplexity"}
RULES = {
    "last": "after the last step (`last`)",
    "best_val": "at the best validation result (`best_val`)",
    "best_test": "at the best result on the test split itself (`best_test`)",
}
LEFT_OUT = ["published_mean", "kind", "short"]  # of table.csv
TECHNICAL = ["place", "caveats", "scores", "vanilla", "own", "pretrained"]  # of the frame of cells
INTERNAL = ["run", "cell", "column", "declared", "reference", "margin"]  # of seeds.csv
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
        TABLE: as_csv(table(report.cells).drop(columns=LEFT_OUT)),
        TABLE_TEX: latex(report),
        SEEDS: as_csv(seeds(report.frame)),
    }


def table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of cells with per-seed results and caveats as text."""

    def listed(value: Any, form: Any) -> str:
        return form(value) if isinstance(value, (dict, list)) else ""

    return cells.drop(columns=TECHNICAL).assign(
        seeds=[
            listed(scores, lambda known: " ".join(f"{score:.2f}" for score in known.values()))
            for scores in cells.scores
        ],
        footnotes=[listed(caveats, "; ".join) for caveats in cells.caveats],
    )


def seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of runs without what is no number or name."""
    names = [run.name if run is not None else "" for run in frame.run]
    return frame.drop(columns=INTERNAL).assign(name=names)


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
    matrix = report.matrix
    return _environment(autoescape=False).get_template("readme.md.j2").render(
        **_facts(report),
        figure=SEEDS_FIGURE,
        subject=_subject(report),
        matrix=markdown(matrix.table),
        solved=markdown(matrix.solved, left=1) if len(matrix.solved) else "",
        steps=markdown(matrix.steps, left=1) if len(matrix.steps) else "",
        notes=matrix.notes,
        significance=significance(report.cells),
        unbeaten=unbeaten(report.cells),
        caption=caption(report.columns()),
    )  # fmt: skip


def page(report: "Report", figures: Mapping[str, list[str]]) -> str:
    """Return index.html, which needs no other file."""
    assets = HERE / "assets"
    return _environment(autoescape=True).get_template("page.html.j2").render(
        **_facts(report),
        sections=sections(report),
        figures=figures,
        caption=caption(report.columns()),
        seeds=html(seed_rows(report.frame)),
        script=(assets / "sortable.min.js").read_text(encoding="utf-8"),
        licence=(assets / "sortable.LICENSE").read_text(encoding="utf-8"),
    )  # fmt: skip


def sections(report: "Report") -> list[dict[str, Any]]:
    """Return name, goal, note on the baselines, HTML table and caveats of each column of a report."""
    found = []
    for name, cells, _ in report.columns():
        whole = table(cells)
        whole = whole.assign(
            system=whole.system.where(whole.kind == "system", "baseline: " + whole.system),
            interval=_intervals(whole.low, whole.high),
            difference_interval=_intervals(whole.difference_low, whole.difference_high),
        )
        rates, goals = whole.lr.dropna().unique(), whole.goal.dropna().unique()
        notes = [f"Goal: {goal:g} % validation accuracy." for goal in goals]
        if len(rates) == 1:
            notes.append(f"Learning rate: {rates[0]:g}.")
        filled = [
            column for column in SHOWN
            if whole[column].replace("", None).notna().any() and (column != "lr" or len(rates) > 1)
        ]  # fmt: skip
        found.append({
            "name": name,
            "note": " ".join(filter(None, [*notes, unbeaten(cells)])),
            "table": html(whole[filled].rename(columns=SHOWN)),
            "caveats": _caveats(cells[cells.kind == "system"]),
        })  # fmt: skip
    return found


def _caveats(own: pd.DataFrame) -> list[str]:
    """Return each footnote of a column with the systems that have it."""
    systems: dict[str, list[str]] = {}
    for row in own.itertuples():
        for caveat in row.caveats:
            systems.setdefault(caveat, []).append(row.system)
    return [
        f"{'All systems' if len(names) == len(own) > 1 else ', '.join(names)}: {caveat}"
        for caveat, names in systems.items()
    ]


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(start) else f"{start:.2f} to {end:.2f}" for start, end in zip(low, high, strict=True)]


def _subject(report: "Report") -> str:
    """Return what the numbers of the table are."""
    metrics = " or ".join(METRICS[name] for name in report.cells.metric.unique())
    rules = " or ".join(RULES[rule] for rule in report.frame.selection.unique())
    return f"Test {metrics}, mean ± sd over seeds, {rules}."


def _facts(report: "Report") -> dict[str, Any]:
    records = [run.record for run in report.runs]
    return {
        "title": report.title,
        "done": int(report.frame.score.notna().sum()),
        "expected": len(report.frame),
        "runs": len(records),
        "hours": f"{sum(sum(record.seconds.values()) for record in records) / 3600:.1f}",
        "hardware": sorted({_hardware(record.provenance.device, record.provenance.cpu) for record in records}),
        "commits": sorted({_commit(record.provenance.commit or "unknown") for record in records}),
    }


def _commit(name: str) -> str:
    """Shorten a commit; the version of an installed package stays whole."""
    return name[:9] if re.fullmatch("[0-9a-f]{40}", name) else name


def _hardware(device: str, cpu: str) -> str:
    return cpu if device == "cpu" else device


def markdown(frame: pd.DataFrame, left: int = 2) -> str:
    """Return a Markdown table; the columns after the first `left` are aligned to the right."""
    rows = [[escape(str(value)) for value in row] for row in frame.itertuples(index=False)]
    rule = ["---" if place < left else "---:" for place in range(len(frame.columns))]
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
    frame = report.matrix.table
    notes = [rf"\item[{letter}] {tex(note)}." for letter, note in report.matrix.notes.items()]
    if stars := significance(report.cells):
        mark, text = (MARK, stars.removeprefix(MARK).strip()) if stars.startswith(MARK) else ("", stars)
        notes.append(rf"\item[{mark}] {tex(text)}.")
    rows = [" & ".join(map(_tex_cell, row)) + r" \\" for row in frame.itertuples(index=False)]
    headers = [re.sub(r"(?<=,) | (?=\(n = )", "\n", name) for name in frame.columns]
    count = report.cells[report.cells.kind == "system"].system.nunique()
    trivial = "Below the second line: trivial baselines." if rows[count:] else ""
    caption = " ".join(filter(None, [_subject(report), trivial, unbeaten(report.cells)]))
    label = re.sub("[^a-z0-9]+", "-", report.title.lower()).strip("-")
    lines = [
        r"% By lra-report; needs \usepackage{booktabs,threeparttable}. If too wide: table* or sidewaystable.",
        r"\begin{table}",
        r"\centering\small",
        r"\begin{threeparttable}",
        rf"\caption{{{tex(caption)}}}",
        rf"\label{{tab:{label}}}",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{ll{'r' * (len(frame.columns) - 2)}}}",
        r"\toprule",
        " & ".join(rf"\shortstack[r]{{{_tex_cell(name)}}}" for name in headers) + r" \\",
        r"\midrule",
        *rows[:count],
        *([r"\midrule"] if rows[count:] else []),
        *rows[count:],
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\begin{tablenotes}\footnotesize", *notes, r"\end{tablenotes}"] if notes else []),
        r"\end{threeparttable}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


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
    numeric = [isinstance(value, int | float) and not isinstance(value, bool) for value in column]
    numbers = [value for value, is_number in zip(column, numeric, strict=True) if is_number and not pd.isna(value)]
    whole = all(float(value).is_integer() for value in numbers)
    form = ".10g" if whole else ".3g" if column.name in ("lr", SHOWN["lr"]) else "z.2f"  # z: no sign before 0.00
    missing = column.isna()
    return [
        "" if absent else format(value, form) if is_number else value
        for value, is_number, absent in zip(column, numeric, missing, strict=True)
    ]


def p_value(p: float | None) -> str:
    """Return a p-value with three decimals, `<0.001` below that, empty if there is none."""
    if p is None or pd.isna(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


@cache
def _environment(autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=autoescape, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["md"] = escape
    return environment
