"""The caveats of a number, by rules that need no judgement; each is shown wherever the number is.

False alarms, for a system with nothing wrong, as tests/test_significance.py simulates them: none of selected on test,
pretrained, partial data, narrow, few seeds and untested, which are facts; of `collapsed` none where predictions are
kept, else 1 / sqrt(2 pi n p (1 - p)) of runs that are as good as the majority's share p of n examples, whose count they
meet by chance (2.4 % for 2,000 examples of ListOps); of `below baseline` 2.5 % of systems that are as good as the
baseline.
"""

import math
import re

from lra.report.published import PublishedTable
from lra.report.statistics import ENOUGH
from lra.report.table import TableRow
from lra.report.verdicts import UNTESTED, Badge

PARTIAL = re.compile(r"\blimit \d+|k train\b")  # in the name of a task
TWO_SIDED = 1.96  # sd of a normal
KINDS = {
    "T": ("selected on test", "the checkpoint was chosen by the split that it is tested on"),
    "C": ("collapsed", "so many seeds answer one class, or as the majority does"),
    "B": ("below baseline", "a trivial baseline is better than the whole interval of the mean"),
    "n": ("few seeds", f"fewer than {ENOUGH}: the interval leans on the runs' being normal"),
    "U": ("untested", "no test could be made against the reference"),
    "P": ("partial data", "a part of the published data"),
    "N": ("narrow", "the model is narrower than the one that the published number is of"),
    "W": ("pretrained", "weights of another training were taken"),
}
"""By the first letter of a code, what it is called and what it means."""


def badges(
    row: TableRow, baselines: dict[str, float], metric: str, published: PublishedTable | None
) -> tuple[Badge, ...]:
    """What a reader must know of the numbers of a row; `published`: the table whose numbers stand beside them."""
    done, selection = row.summary.done, row.cell.key.selection
    runs = [row.cell.runs[seed] for seed in row.cell.scores()]
    on_test = selection == "best_val" and any("best_test" in run["test"] for run in runs)
    shown = {
        "T": on_test or selection == "best_test",
        "C": bool(row.collapsed),
        "B": bool(done) and _below(row, baselines, metric),
        "n": done < ENOUGH,
        "U": row.verdict is not None and row.verdict.word == UNTESTED,
        "P": bool(PARTIAL.search(row.cell.key.task)),
        "N": published is not None and _narrow(row, published),
        "W": row.pretrained or any(run["config"].get("init") for run in runs),
    }
    numbers = {"C": (f"{row.collapsed}/{done}", f"collapsed {row.collapsed}/{done}"), "n": (str(done), f"n = {done}")}
    found = []
    for kind in (kind for kind, is_shown in shown.items() if is_shown and done):
        number, label = numbers.get(kind, ("", KINDS[kind][0]))
        found.append(Badge(f"{kind}{number}", label, KINDS[kind][1]))
    return tuple(found)


def _narrow(row: TableRow, published: PublishedTable) -> bool:
    theirs = published.settings.get(row.cell.key.task, {}).get("model.dim")
    widths = [run["config"].get("model", {}).get("dim") for run in row.cell.runs.values()]
    return theirs is not None and any(width is not None and width < theirs for width in widths)


def _below(row: TableRow, baselines: dict[str, float], metric: str) -> bool:
    """Whether the 95 % interval of the mean leaves out the strongest baseline, on the wrong side; with one seed, the
    interval over examples."""
    sign = -1 if metric == "perplexity" else 1
    strongest = max((sign * value for value in baselines.values()), default=-math.inf)
    if row.summary.interval is not None:
        return max(sign * end for end in row.summary.interval) < strongest
    return sign * row.summary.mean + _of_examples(row, metric) < strongest


def _of_examples(row: TableRow, metric: str) -> float:
    if metric == "perplexity":
        return 0.0
    [seed] = row.cell.scores()
    entry = row.cell.runs[seed]["test"][row.cell.key.selection]
    share = entry["correct"] / entry["examples"]
    return 100 * TWO_SIDED * math.sqrt(share * (1 - share) / entry["examples"])
