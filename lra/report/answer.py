"""The verdicts of a column in words, and the tasks' short names."""

from collections.abc import Container, Iterable

from lra.report import formats
from lra.report.statistics import ALPHA
from lra.report.table import Column, TableRow
from lra.report.verdicts import BETTER, EQUIVALENT, UNDECIDED, UNTESTED, WORSE

NAMED = 3  # rows of one verdict that a sentence names


def short_names(tasks: Iterable[str], published: Container[str]) -> dict[str, str]:
    """Each task in one word: `listops`, and `listops-short` where sizes are not those of a published table,
    `image-copies` where the data alone are not; numbered where two would be the same."""
    names: dict[str, str] = {}
    for task in tasks:
        base, _, note = task.partition(" (")
        name = base + (_other_data(note) if base in published else "")
        same = sum(other == name or other.startswith(f"{name}-") for known, other in names.items() if known != task)
        names.setdefault(task, f"{name}-{same + 1}" if same else name)
    return names


def _other_data(note: str) -> str:
    """How data differ from those of a published table, by the note of a task's name."""
    if "length" in note:
        return "-short"
    if note.startswith("JPEG copies") and "limit" not in note:
        return "-copies"
    return "-small" if note else ""


def answer(column: Column) -> str:
    """What the runs of a column say of its question."""
    judged = [row for row in column.rows if row.verdict is not None]
    if not judged:
        return "One system alone, so nothing is compared." + _baselines(column)
    if not any(row.verdict.seeds for row in judged):
        reference = judged[0].verdict.reference
        return f"Nothing is compared: no row has a seed in common with {reference}.{_baselines(column)}"
    best = f" {column.bold} is better than every other row." if column.bold else ""
    parts = "; ".join(_parts(judged))
    return f"{_against(column, judged)}: {parts}.{_holm(judged)}{_means(judged)}{best}{_baselines(column)}"


def _against(column: Column, judged: list[TableRow]) -> str:
    """The references, with their numbers where there is a single one."""
    names = list(dict.fromkeys(row.verdict.reference for row in judged))
    margin = f"margin {judged[0].verdict.margin:g}"
    if len(names) > 1:
        own = ", what is self-pretrained against itself from scratch" * any(row.pretrained for row in judged)
        return f"Each against the reference of its settings{own} ({names[0]} and so on; {margin})"
    known = [row for row in column.rows if row.name == names[0]]
    return f"Against {names[0]} ({', '.join([formats.mean_sd(row.summary) for row in known] + [margin])})"


def _parts(judged: list[TableRow]) -> list[str]:
    parts = []
    for word in (BETTER, WORSE, EQUIVALENT, UNDECIDED, UNTESTED):
        rows = [row for row in judged if row.verdict.word == word]
        if rows:
            rows.sort(key=_weight)
            shown = [_untested(row) if word == UNTESTED else _number(row) for row in rows[:NAMED]]
            more = [f"{len(rows) - NAMED} more"] if len(rows) > NAMED else []
            parts.append(f"{len(rows)} {word} ({', '.join(shown + more)})")
    return parts


def _weight(row: TableRow) -> tuple[float, float]:
    """Of what is not told apart, that of most seeds first; else large differences before small ones."""
    known = row.verdict
    if known.word in (EQUIVALENT, UNDECIDED):
        return -known.seeds, known.needed
    return 0, -abs(known.estimate or 0)


def _untested(row: TableRow) -> str:
    return f"{row.name}: {row.verdict.reason}"


def _number(row: TableRow) -> str:
    known = row.verdict
    text = f"{row.name} {formats.signed(known.estimate)} {formats.interval(known.interval)}"
    return text + f", {known.needed:,} seeds each would decide" * (known.word == UNDECIDED)


def _means(judged: list[TableRow]) -> str:
    """Where the differences are not those of the means that stand beside them."""
    apart = [abs(row.verdict.of_means - row.verdict.estimate) for row in judged if row.verdict.of_means is not None]
    if not apart:
        return ""
    return f" Differences are over common seeds, and up to {max(apart):.2f} from those of the printed means."


def _holm(judged: list[TableRow]) -> str:
    """Which differences stand when all rows are held against the reference at once."""
    claimed = [row for row in judged if row.verdict.word in (BETTER, WORSE)]
    tested = sum(row.verdict.holm is not None for row in judged)
    if not claimed or tested < 2:
        return ""
    held = [row.name for row in claimed if row.verdict.holm < ALPHA]
    names = ", ".join(held[:NAMED]) + f" and {len(held) - NAMED} more" * (len(held) > NAMED)
    return f" After Holm's correction over {tested} rows {names or 'none'} remain{'s' * (len(held) < 2)}."


def _baselines(column: Column) -> str:
    if not column.baselines:
        return ""
    name, value = (min if column.metric == "perplexity" else max)(column.baselines.items(), key=lambda known: known[1])
    done = [row for row in column.rows if row.summary.done]
    below = sum(any(badge.code == "B" for badge in row.badges) for row in done)
    return f" {below} of {len(done)} below the strongest baseline ({name}, {value:.2f})." if below else ""
