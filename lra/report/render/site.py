"""index.html over many results: a matrix of systems and tasks, and for each folder or submission its answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lra.records.names import PAGE
from lra.report.read.records import RecordedCell
from lra.report.render import dots, layout
from lra.report.render.templates import markup, rendered
from lra.report.statistics import formats
from lra.report.statistics.table import Badge, Column, Section, TableRow

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
        return f". Commit {', '.join(commits)}; {hours:.1f} hours"


@dataclass(frozen=True)
class Shared:
    """A task under one protocol, in the results that have it. `said`: the caveats that its heading says of all its
    numbers, where these are of one result; `trivial`: the strongest baseline and its name."""

    protocol: str
    places: list[tuple[Listed, Column]]

    @property
    def column(self) -> Column:
        return self.places[0][1]

    @property
    def of_many(self) -> bool:
        return len(self.places) > 1

    @property
    def together(self) -> list[Column]:
        return [column for _, column in self.places]

    @property
    def said(self) -> list[Badge]:
        return [] if self.of_many else self.column.shared

    @property
    def where(self) -> str:
        return self.protocol if self.of_many else f"{self.protocol}, {self.places[0][0].name}"

    @property
    def trivial(self) -> tuple[str, str] | None:
        value = dots.strongest(self.column)
        names = [name for name, known in self.column.baselines.items() if known == value]
        return (formats.decimals(value), names[0]) if names else None

    def rows(self) -> Iterator[tuple[Listed, Column, TableRow]]:
        """Of systems without settings of their own."""
        for entry, column in self.places:
            yield from ((entry, column, row) for row in column.rows if not row.cell.key.settings)


def page(title: str, entries: Sequence[Listed], links: Sequence[tuple[str, str]], note: str) -> str:
    """The text of the page. `links`: address and text of what lies beside; `note`: what made it, in HTML."""
    sound = sum(not entry.faults for entry in entries)
    records = sum(entry.records for entry in entries)
    columns = _shared(entries)
    return rendered(
        "site.html.j2",
        title=title,
        facts=f"{formats.plural(records, 'record')}; {sound} of {len(entries)} verified",
        columns=columns,
        systems=_systems(columns),
        every_column=[column for entry in entries for _, column in entry.columns],
        note=markup(note),
        entries=entries,
        beside=links,
        LONGEST=LONGEST,
    )


def _shared(entries: Sequence[Listed]) -> list[Shared]:
    """The tasks on which a system without settings of its own ran, those of most systems first."""
    places: dict[tuple[str, str], list[tuple[Listed, Column]]] = {}
    for entry in entries:
        for _, column in entry.columns:
            places.setdefault((column.task, column.key[0]), []).append((entry, column))
    columns = [Shared(protocol, found) for (_, protocol), found in places.items()]
    kept = [shared for shared in columns if any(True for _ in shared.rows())]
    return sorted(kept, key=lambda shared: -max(len(column.rows) for column in shared.together))


def _systems(columns: Sequence[Shared]) -> list[tuple[TableRow, list[tuple[Shared, list[tuple]]]]]:
    """A line for each system: one of its rows, and for each task its rows in the results that have it, with what their
    numbers lead to."""
    lines: dict[tuple, TableRow] = {}
    for shared in columns:
        lines |= {row.order: row for _, _, row in shared.rows()}
    return [
        (
            lines[order],
            [
                (shared, [(*place, _address(place[0], place[2])) for place in shared.rows() if place[2].order == order])
                for shared in columns
            ],
        )
        for order in sorted(lines)
    ]


def _address(entry: Listed, row: TableRow) -> str:
    """Of the cell on the page of a folder."""
    if not entry.address.endswith(PAGE):
        return entry.address
    rows = [other for _, column in entry.columns for other in column.rows]
    return f"{entry.address}#cell/{next(place for place, other in enumerate(rows) if other is row)}"
