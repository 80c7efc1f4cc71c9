"""index.html over many results, for a reader with a minute: what was found, one picture, a matrix for each benchmark,
and an answer in a sentence for each study."""

from collections.abc import Sequence
from dataclasses import dataclass

from lra.records.names import PAGE
from lra.report.read.records import RecordedCell
from lra.report.render import layout
from lra.report.render.cost import cost_svg, plain_rows
from lra.report.render.templates import markup, rendered
from lra.report.statistics import formats
from lra.report.statistics.answers import firm
from lra.report.statistics.table import COLLAPSED, UNTESTED, Column, Section, TableRow

LONGEST = 4  # answers of one result that are shown
BENCHMARK = 5  # systems, without settings of their own, that make a result a benchmark; others are studies


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

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(column.title for _, column in self.columns))

    @property
    def provenance(self) -> str:
        """The commits and the hours of its runs."""
        if not self.cells:
            return ""
        runs = [run for cell in self.cells for run in cell.runs.values()]
        commits = sorted({(run["provenance"]["commit"] or "unknown")[:9] for run in runs})
        hours = sum(sum(run.get("seconds", {}).values()) for run in runs) / 3600
        return f"Commit {', '.join(commits)}; {hours:.1f} hours"

    def cell_address(self, row: TableRow) -> str:
        """Of the cell on the page of a folder."""
        if not self.address.endswith(PAGE):
            return self.address
        rows = [other for _, column in self.columns for other in column.rows]
        return f"{self.address}#cell/{next(place for place, other in enumerate(rows) if other is row)}"


@dataclass(frozen=True)
class Number:
    """What the matrix shows of a cell. `rank`: what it is sorted by, greater is better; `kind`: its look; `said`: all
    that is known of it, in words."""

    text: str
    rank: float
    kind: str
    said: str
    address: str


@dataclass(frozen=True)
class Benchmark:
    """The systems of a result beside each other, those without settings of their own. `columns`: tasks on which they
    are told apart, with their names; `chance`: those on which nobody is."""

    entry: Listed
    columns: list[tuple[str, Column]]
    chance: list[tuple[str, Column]]

    @property
    def systems(self) -> list[tuple[TableRow, list[Number | None]]]:
        """A line for each system of these columns."""
        rows = {row.order: row for _, column in self.columns for row in plain_rows(column)}
        return [(rows[order], [self._number(column, order) for _, column in self.columns]) for order in sorted(rows)]

    @property
    def trivial(self) -> list[Number | None]:
        """The strongest baseline of each column."""
        return [
            Number(f"{column.strongest[1]:.1f}", column.strongest[1], "", column.strongest[0], "")
            if column.strongest
            else None
            for _, column in self.columns
        ]

    def _number(self, column: Column, order: tuple) -> Number | None:
        row = next((row for row in plain_rows(column) if row.order == order), None)
        if row is None or row.summary.mean is None:
            return None
        address = self.entry.cell_address(row)
        if row.race is None:
            sign = -1 if column.metric == "perplexity" else 1
            return Number(f"{row.summary.mean:.1f}", sign * row.summary.mean, _kind(row), _said(row), address)
        solved, seeds = len(row.race.solved), len(row.race.steps)
        if solved == seeds:
            return Number(f"{row.race.median:,}", 1e9 - row.race.median, "better", _said(row), address)
        if solved:
            return Number(f"{solved} of {seeds}", 1e6 * solved / seeds, "", _said(row), address)
        return Number(f"{row.summary.mean:.0f} %", row.summary.mean, "worse", _said(row), address)


def page(title: str, entries: Sequence[Listed], links: Sequence[tuple[str, str]], note: str, lead: str = "") -> str:
    """The text of the page. `links`: address and text of what lies beside; `note`: what made it, `lead`: what was
    found, both in HTML; without one the answers of the largest result stand there."""
    sound = sum(not entry.faults for entry in entries)
    records = sum(entry.records for entry in entries)
    known = benchmarks(entries)
    apart = {id(benchmark.entry) for benchmark in known}
    return rendered(
        "site.html.j2",
        title=title,
        facts=f"{formats.plural(records, 'record')}; {sound} of {len(entries)} verified",
        lead=markup(lead),
        benchmarks=known,
        picture=markup(cost_svg([column for _, column in known[0].columns])) if known else "",
        studies=[entry for entry in entries if id(entry) not in apart],
        note=markup(note),
        beside=links,
        LONGEST=LONGEST,
    )


def benchmarks(entries: Sequence[Listed]) -> list[Benchmark]:
    """The results that compare many systems, those with most races first."""
    found = []
    for entry in entries:
        columns = [(name, column) for name, column in entry.columns if len(plain_rows(column)) >= BENCHMARK]
        chance = [(name, column) for name, column in columns if _at_chance(column)]
        shown = [(name, column) for name, column in columns if not _at_chance(column)]
        if shown:
            found.append(Benchmark(entry, shown, chance))
    return sorted(found, key=lambda known: -sum(column.goal is not None for _, column in known.columns))


def _at_chance(column: Column) -> bool:
    """Whether nobody was compared, for want of anything learned."""
    return all(
        row.verdict is None or row.verdict.word == UNTESTED or any(badge.code == "U" for badge in row.badges)
        for row in column.rows
    ) and any(COLLAPSED in flags for row in column.rows for flags in row.flags.values())


def _kind(row: TableRow) -> str:
    lost = " lost" * any(mark.code == "B" for mark in row.badges)
    return (firm(row) if row.verdict else "reference") + lost


def _said(row: TableRow) -> str:
    """Mean, interval, verdict and caveats."""
    parts = [f"{formats.mean_sd(row.summary)} over {formats.plural(row.summary.done, 'seed')}"]
    if row.race:
        parts.append(row.race.word)
    if row.verdict and row.verdict.estimate is not None:
        known = row.verdict
        ends = formats.interval(known.interval)
        parts.append(f"{known.word}: {formats.signed(known.estimate)} {ends} to {known.reference}".replace("  ", " "))
    return "; ".join(parts + [f"{badge.label}: {badge.meaning}" for badge in row.badges])
