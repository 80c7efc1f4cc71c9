"""The tables that set systems beside each other: the matrix of all tasks, verdicts, depths, the field."""

from collections.abc import Sequence

from lra.report.badges import KINDS
from lra.report.formats import count, decimals, interval, mean_sd, short_p, signed, whole
from lra.report.layout import Grid, TableText, texts
from lra.report.published import Published, PublishedTable
from lra.report.table import FULL_PATTERN, Column, Section, TableRow
from lra.report.verdicts import SIGNS, Badge


def headings(sections: Sequence[Section]) -> list[str]:
    """What each column is called beside all others: its task in one word, with the protocol where there are several."""
    rules = {(section.protocol, section.selection) for section in sections}
    several = {protocol for protocol, _ in rules} if len(rules) > 1 else set()
    names = []
    for section in sections:
        where = f", {section.protocol}" if several else ""
        where += f", {section.selection}" if len(rules) > max(1, len(several)) else ""
        names += [column.short + where for column in section.columns]
    return names


def matrix(columns: Sequence[Column], headings: Sequence[str], most: int | None = None) -> Grid:
    """One row a system, one column a task; the caveats that a whole column shares stand in its heading.

    `most`: so many systems at most."""
    header = ["system", "complexity", *map(with_caveats, columns, headings)]
    names = sorted({name for column in columns for name in column.baselines})
    rows = [
        [TableText(f"baseline: {name}", italic=True), TableText("")]
        + texts(*(decimals(column.baselines.get(name)) for column in columns))
        for name in names
    ]
    systems = {row.order: row for column in columns for row in column.rows}
    for order in sorted(systems)[:most]:
        line = texts(systems[order].name, systems[order].complexity)
        for column in columns:
            row = next((row for row in column.rows if row.order == order), None)
            line.append(_short(row, column, column.shared) if row else TableText(""))
        rows.append(line)
    return Grid(header, rows, numbers=2, baselines=len(names))


def overview(section: Section) -> Grid:
    """Table 1 in the paper's shape."""
    return matrix(section.columns, [column.short for column in section.columns])


def tasks(columns: Sequence[Column], most: int | None = None) -> str:
    """The full name of each task that has a shorter one; `most`: of so many at most."""
    named = dict.fromkeys((column.short, column.title) for column in columns if column.short != column.title)
    return "; ".join(f"{short}: {title}" for short, title in list(named)[:most]) + "." * bool(named)


def with_caveats(column: Column, name: str) -> str:
    """What a column is called, with the caveats that all its rows share."""
    codes = " ".join(badge.code for badge in column.shared)
    return name + " (perplexity)" * (column.metric == "perplexity") + f" [{codes}]" * bool(codes)


def _short(row: TableRow, column: Column, shared: Sequence[Badge] = ()) -> TableText:
    """Mean, seeds, the sign of the verdict, and the caveats that are not `shared`."""
    score = f"{mean_sd(row.summary)} ({count(row.summary)})" if row.summary.done else count(row.summary)
    sign = f" {SIGNS[row.verdict.word]}" if row.verdict and row.verdict.word in SIGNS else ""
    codes = " ".join(badge.code for badge in row.badges if badge not in shared)
    mark = f" {FULL_PATTERN}" if row.full_pattern else ""
    return TableText(score + sign + f" [{codes}]" * bool(codes) + mark, bold=row.name == column.bold)


def legend(columns: Sequence[Column]) -> str:
    """What the signs and codes of these columns mean, those that stand there."""
    words = {row.verdict.word for column in columns for row in column.rows if row.verdict}
    signs = [f"`{sign}` {word}" for word, sign in SIGNS.items() if word in words]
    kinds = {badge.code[0] for column in columns for row in column.rows for badge in row.badges}
    codes = [f"`{kind}` {name} ({meaning})" for kind, (name, meaning) in KINDS.items() if kind in kinds]
    return "; ".join(signs + codes)


def verdicts(column: Column) -> Grid:
    """Every row beside its reference."""
    header = ["system", "minus", "difference", "95 %, seeds", "95 %, seeds and examples", "p", "p (Holm)"]
    header += ["p (equivalent)", "seeds", "verdict", "seeds to decide"]
    rows = []
    for row in column.rows:
        known = row.verdict
        if known is None:
            continue
        apart = "" if known.of_means is None else f" (means: {known.of_means:+.2f})"
        line = [row.name, known.reference, signed(known.estimate) + apart]
        line += [
            interval(known.interval),
            interval(known.crossed),
            short_p(known.p),
            short_p(known.holm),
            short_p(known.equivalence),
        ]
        word = f"{known.word}: {known.reason}" if known.reason else known.word
        rows.append(texts(*line, str(known.seeds), word, whole(known.needed)))
    return Grid(header, rows, numbers=2)


def by_depth(column: Column) -> Grid:
    """Table 2: a row for each number of blocks, a column for each system, published numbers beside ours."""
    compared = column.source is not None
    names = list(column.by_depth)
    header = ["blocks", *names, *(f"{name}, published" for name in names if compared)]
    rows = []
    for depth in sorted({depth for rows in column.by_depth.values() for depth in rows}):
        at_depth = [column.by_depth[name].get(depth) for name in names]
        line = [TableText(str(depth)), *(_short(row, column) if row else TableText("") for row in at_depth)]
        rows.append(line + texts(*(decimals(row and row.summary.published_best) for row in at_depth if compared)))
    return Grid(header, rows)


def field(columns: list[Column], published: Published) -> Grid:
    """Our means under each protocol and rule beside all published numbers for one task."""
    task = columns[0].task
    sources = covering(task, published)
    known = list(published.systems(task))
    others = {row.order: row.name for column in columns for row in column.rows if row.name not in known}
    rows = []
    for name in [*known, *(others[order] for order in sorted(others))]:
        ours = [
            next((_short(row, column) for row in column.rows if row.name == name), TableText("")) for column in columns
        ]
        rows.append([TableText(name), *ours, *texts(*(_number(source, name, task) for source in sources))])
    header = [f"ours: {column.key[0]}, {column.key[1]}" for column in columns]
    return Grid(["system", *header, *(source.name for source in sources)], rows)


def covering(task: str, published: Published) -> list[PublishedTable]:
    return [source for source in published.sources if source.covers(task)]


def _number(source: PublishedTable, name: str, task: str) -> str:
    best, mean = source.number(name, task), source.number(name, task, "mean")
    return decimals(best) + ("" if mean is None else f" (mean {mean:.2f})")
