"""index.html over many results, for a reader with a minute: what was found, one picture, a matrix for each benchmark,
and an answer in a sentence for each study."""

from collections.abc import Sequence
from dataclasses import dataclass

from lra.records.names import PAGE
from lra.report.render import pictures
from lra.report.render.layout import Named
from lra.report.render.markup import markup, rendered
from lra.report.render.pictures import kinds, plain_rows
from lra.report.statistics import words
from lra.report.statistics.columns import Tables
from lra.report.statistics.table import COLLAPSED, Column, TableRow, Word

LONGEST = 4  # answers of one result that are shown
BENCHMARK = 5  # systems, without settings of their own, that make a result a benchmark; others are studies


@dataclass(frozen=True)
class Listed:
    """A results folder, or a file that somebody submitted. `address`: its page, or the file; `tables`: None where they
    cannot be made; `records`: how many verify; `faults`: why it does not verify."""

    name: str
    address: str
    tables: Tables | None
    records: int
    faults: Sequence[str]

    @property
    def columns(self) -> Named:
        return self.tables.named if self.tables else []

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(column.title for _, column in self.columns))

    @property
    def provenance(self) -> str:
        """The commits and the hours of its runs."""
        if not self.tables:
            return ""
        return f"Commit {', '.join(self.tables.commits)}; {self.tables.hours:.1f} hours"

    def cell_address(self, row: TableRow) -> str:
        """Of the cell on the page of a folder."""
        if not self.address.endswith(PAGE):
            return self.address
        place = next(place for place, (_, other) in enumerate(self.tables.rows) if other is row)
        return f"{self.address}#cell/{place}"


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
    columns: Named
    chance: Named

    @property
    def systems(self) -> list[tuple[TableRow, list[Number | None]]]:
        """A line for each system of these columns."""
        rows = {row.order: row for _, column in self.columns for row in plain_rows(column)}
        return [(rows[order], [self._number(column, order) for _, column in self.columns]) for order in sorted(rows)]

    @property
    def trivial(self) -> list[Number | None]:
        """The strongest baseline of each column."""
        known = [column.strongest for _, column in self.columns]
        return [best and Number(f"{best[1]:.1f}", best[1], "", best[0], "") for best in known]

    def _number(self, column: Column, order: tuple) -> Number | None:
        row = column.by_order.get(order)
        if row is None or not row.summary.done:
            return None
        mean, known = row.summary.mean, row.race
        if known is None:
            sign = -1 if column.metric == "perplexity" else 1
            text, rank, kind = f"{mean:.1f}", sign * mean, kinds(row, word=words.firm)
        elif len(known.solved) == len(known.steps):
            text, rank, kind = f"{known.median:,}", 1e9 - known.median, "better"
        elif known.solved:
            solved, seeds = len(known.solved), len(known.steps)
            text, rank, kind = f"{solved} of {seeds}", 1e6 * solved / seeds, ""
        else:
            text, rank, kind = f"{mean:.0f} %", mean, "worse"
        return Number(text, rank, kind, _said(row), self.entry.cell_address(row))


def page(title: str, entries: Sequence[Listed], links: Sequence[tuple[str, str]], note: str, lead: str = "") -> str:
    """The text of the page. `links`: address and text of what lies beside; `note`: what made it, `lead`: what was
    found, both in HTML; without one the answers of the largest result stand there."""
    sound = sum(not entry.faults for entry in entries)
    records = sum(entry.records for entry in entries)
    known = benchmarks(entries)
    apart = {id(benchmark.entry) for benchmark in known}
    cost = pictures.cost(column for _, column in known[0].columns) if known else None
    return rendered(
        "site.html.j2",
        title=title,
        facts=f"{words.plural(records, 'record')}; {sound} of {len(entries)} verified",
        lead=markup(lead),
        benchmarks=known,
        picture=markup(rendered("cost.svg.j2", **cost)) if cost else "",
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
        row.verdict is None or row.verdict.word == Word.UNTESTED or any(badge.code == "U" for badge in row.badges)
        for row in column.rows
    ) and any(COLLAPSED in flags for row in column.rows for flags in row.flags.values())


def _said(row: TableRow) -> str:
    """Mean, interval, verdict and caveats."""
    parts = [f"{words.mean_sd(row.summary)} over {words.plural(row.summary.done, 'seed')}"]
    if row.race:
        parts.append(row.race.word)
    if row.verdict and row.verdict.estimate is not None:
        known = row.verdict
        ends = words.interval(known.interval)
        parts.append(f"{known.word}: {words.signed(known.estimate)} {ends} to {known.reference}".replace("  ", " "))
    return "; ".join(parts + [f"{badge.label}: {badge.meaning}" for badge in row.badges])
