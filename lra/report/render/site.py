"""index.html over many results: a matrix of systems and tasks, and for each folder or submission its answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from string import Template

from lra.core.errors import printable
from lra.records.names import PAGE
from lra.report.read.records import RecordedCell
from lra.report.render import dots, layout
from lra.report.statistics import formats
from lra.report.statistics.table import Badge, Column, Section, TableRow

ASSETS = Path(__file__).parent.with_name("assets")
LONGEST = 4  # answers of one result that are shown


@dataclass(frozen=True)
class Listed:
    """A results folder, or a file that somebody submitted. `address`: its page, or the file; `sections` and `cells` of
    its report, none where it cannot be made; `records`: how many verify; `faults`: why it does not verify."""

    name: str
    address: str
    sections: Sequence[Section]
    cells: Sequence[RecordedCell]
    records: int
    faults: Sequence[str]

    @property
    def columns(self) -> list[tuple[str, Column]]:
        """With their names."""
        columns = [column for section in self.sections for column in section.columns]
        return list(zip(layout.headings(self.sections), columns, strict=True))


def page(title: str, entries: Sequence[Listed], links: Sequence[tuple[str, str]], note: str) -> str:
    """The text of the page. `links`: address and text of what lies beside; `note`: what made it, in HTML."""
    sound = sum(not entry.faults for entry in entries)
    records = sum(entry.records for entry in entries)
    beside = "".join(f'<li><a href="{escape(address)}">{escape(text)}</a></li>' for address, text in links)
    return Template((ASSETS / "site.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        facts=escape(f"{formats.plural(records, 'record')}; {sound} of {len(entries)} verified"),
        style=(ASSETS / "page.css").read_text(encoding="utf-8"),
        note=note,
        together=_together(entries),
        entries="\n".join(map(_entry, entries)),
        beside=f"<h2>More</h2><ul>{beside}</ul>" if beside else "",
        legend=dots.legend([column for entry in entries for _, column in entry.columns]),
    )


def _together(entries: Sequence[Listed]) -> str:
    """Every system without settings of its own, on every task: a line for each result that has it."""
    columns: dict[tuple, list[tuple[Listed, Column]]] = {}
    for entry in entries:
        for _, column in entry.columns:
            columns.setdefault((column.task, column.key[0]), []).append((entry, column))
    rows: dict[tuple, TableRow] = {}
    for found in columns.values():
        for _, column in found:
            rows.update({row.order: row for row in column.rows if _plain(row)})
    kept = {name: found for name, found in columns.items() if any(_plain(row) for _, c in found for row in c.rows)}
    shown = dict(sorted(kept.items(), key=lambda item: -max(len(column.rows) for _, column in item[1])))
    if not rows:
        return ""
    head = "".join(_heading(found, protocol) for (_, protocol), found in shown.items())
    trivial = "".join(f"<td>{_trivial(found[0][1])}</td>" for found in shown.values())
    lines = [f'<tr class="baseline"><th scope="row">strongest baseline</th>{trivial}</tr>']
    for order in sorted(rows):
        cells = "".join(f"<td>{_of_all(order, found)}</td>" for found in shown.values())
        lines.append(f'<tr><th scope="row">{dots.key(rows[order])}</th>{cells}</tr>')
    body = "\n".join(lines)
    return (
        '<section class="scroll whole" tabindex="0" aria-label="All systems on all tasks">'
        f'<table class="matrix"><thead><tr><th scope="col">system</th>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></section>"
    )


def _heading(found: list[tuple[Listed, Column]], protocol: str) -> str:
    column = found[0][1]
    where = ", ".join([protocol, *(entry.name for entry, _ in found[:1] if len(found) == 1)])
    marks = "".join(map(dots.badge, _said(found)))
    short = f"{escape(column.short)}{marks}<small>{escape(where)}</small>"
    return f'<th scope="col" title="{escape(column.title)}">{short}</th>'


def _said(found: list[tuple[Listed, Column]]) -> list[Badge]:
    """The caveats that stand in the heading: those of all rows, where these are of one result."""
    return found[0][1].shared if len(found) == 1 else []


def _plain(row: TableRow) -> bool:
    return not row.cell.key.settings


def _trivial(column: Column) -> str:
    value = dots.strongest(column)
    names = [name for name, known in column.baselines.items() if known == value]
    return f"{value:.2f} <small>{escape(names[0])}</small>" if names else ""


def _of_all(order: tuple, found: list[tuple[Listed, Column]]) -> str:
    parts = []
    for entry, column in found:
        row = next((row for row in column.rows if row.order == order and _plain(row)), None)
        if row is not None:
            shown = dots.entry(column, row, partial(_leads_to, entry), _said(found), [other for _, other in found])
            shown += f'<small class="from">{escape(entry.name)}</small>' * (len(found) > 1)
            parts.append(f'<div class="{" ".join(dots.kinds(row))}">{shown}</div>')
    return "".join(parts)


def _leads_to(entry: Listed, column: Column, row: TableRow) -> str:
    """To the cell on the page of a folder."""
    if not entry.address.endswith(PAGE):
        return entry.address
    rows = [other for _, known in entry.columns for other in known.rows]
    return f"{entry.address}#cell/{next(place for place, other in enumerate(rows) if other is row)}"


def _entry(entry: Listed) -> str:
    state = f"{formats.plural(entry.records, 'record')} verified"
    if entry.faults:
        state = f"{formats.plural(len(entry.faults), 'fault')}: not verified"
    kind = "bad" if entry.faults else "good"
    answers = [dots.answer(name, column) for name, column in entry.columns]
    hidden = f"<p>{len(answers) - LONGEST} more on its page</p>" if len(answers) > LONGEST else ""
    faults = "".join(f"<li>{escape(printable(fault))}</li>" for fault in entry.faults)
    tasks = dict.fromkeys(column.title for _, column in entry.columns)
    return (
        f'<article id="{escape(entry.name)}"><h3><a href="{escape(entry.address)}">{escape(entry.name)}</a> '
        f'<small class="{kind}">{state}</small></h3>'
        f"{''.join(answers[:LONGEST])}{hidden}<ul>{faults}</ul>"
        f"<p><small>{escape('; '.join(tasks))}{_commits(entry)}</small></p></article>"
    )


def _commits(entry: Listed) -> str:
    if not entry.cells:
        return ""
    runs = [run for cell in entry.cells for run in cell.runs.values()]
    commits = sorted({(run["provenance"]["commit"] or "unknown")[:9] for run in runs})
    hours = sum(sum(run.get("seconds", {}).values()) for run in runs) / 3600
    return escape(f". Commit {', '.join(commits)}; {hours:.1f} hours")
