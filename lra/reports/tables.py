"""The tables of a report: a row for each cell and trivial baseline, and what is printed of them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean
from string import ascii_lowercase
from typing import Any

import pandas as pd

from lra.core.errors import printable
from lra.reports.frame import CELL, COLUMN, baselines, declared_reference, present
from lra.reports.published import Published, PublishedTable
from lra.reports.statistics import ALPHA, Comparison, compare, holm, median_steps, summarise

VANILLA = ("softmax", "transformer")
RATE = re.compile(r"\btrain\.lr=\S+ ?")
CASE = re.compile(r"\b(case|pretrain[\w.]*|train\.lr)=\S+ ?")  # settings that a reference need not share
TESTED = ("reference", "difference", "difference_low", "difference_high", "p", "p_holm", "p_equivalent", "verdict")
RACE = ("goal", "ran", "solved", "median_steps")
SIGNIFICANT = ("better", "worse")  # verdicts
MARK = "*"  # a difference that is significant after Holm's correction


def cells_frame(frame: pd.DataFrame, published: Published) -> pd.DataFrame:
    """Return a row for each cell of each column, followed by its trivial baselines, which have only a mean."""
    columns = [_column(column, published) for _, column in frame.groupby("column", sort=False)]
    return pd.concat(columns, ignore_index=True)


def _column(frame: pd.DataFrame, published: Published) -> pd.DataFrame:
    runs = present(frame)
    metric = runs[0].record.metric if runs else "accuracy"
    source = published.source(frame.task.iloc[0])
    names = {name: frame[name].iloc[0] for name in (*COLUMN, "short", "column")} | {"metric": metric}
    rows = [_cell(cell, metric, published, source) for _, cell in frame.groupby(CELL, sort=False)]
    lower = metric == "perplexity"
    chosen = _by_rate(rows, lower=lower)
    for row in rows:
        row["best_rate"] = any(row is other for other in chosen) if len(chosen) < len(rows) else None
        if row["best_rate"] and row["best_val"] is not None:
            row["caveats"].append("best learning rate of this system by validation")
        if row["own"] and any(other["lr"] == row["lr"] for other in rows if not other["own"]):
            row["caveats"].append(f"untuned: learning rate {row['lr']:g}, as for other systems")
    _compared(chosen, *declared_reference(frame), lower=lower)
    known = published.baselines.get(frame.task.iloc[0], {}) | baselines(frame)
    trivial = [{"kind": "baseline", "system": name, "mean": known[name]} for name in sorted(known)]
    return pd.DataFrame([names | row for row in (*rows, *trivial)])


def _by_rate(rows: list[dict[str, Any]], *, lower: bool) -> list[dict[str, Any]]:
    """Return the rows without those that differ from another in the learning rate only and validate worse."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["attention"], row["variant"], RATE.sub("", row["settings"]).strip()), []).append(row)
    chosen = []
    for group in groups.values():
        tried = [row for row in group if row["best_val"] is not None]
        tried.sort(key=lambda row: row["best_val"] if lower else -row["best_val"])
        chosen += tried[:1] if len(group) > 1 and tried else group
    return [row for row in rows if any(row is other for other in chosen)]


def _cell(frame: pd.DataFrame, metric: str, published: Published, source: PublishedTable | None) -> dict[str, Any]:
    runs, done, first = present(frame), frame[frame.score.notna()], frame.iloc[0]
    lower, goals = metric == "perplexity", {run.record.goal for run in present(frame)} - {None}
    states = Counter(status for status in frame.status if status != "finished")
    seconds, rates = done.train_seconds.dropna().tolist(), frame.lr.dropna().unique() if "lr" in frame else []
    validated = [row.best_val for row in done.itertuples() if pd.notna(row.best_val)]
    row = {
        "kind": "system",
        **{name: first[name] for name in ("system", "attention", "variant", "settings")},
        "place": published.order(first.attention, first.variant, first.settings),
        "complexity": published.complexity(first.attention),
        **asdict(summarise(done.score.tolist(), lower_is_better=lower)),
        "lr": float(rates[0]) if len(rates) == 1 else None,
        "best_val": fmean(validated) if validated else None,
        "declared": int(frame.declared.sum()) or None,
        "problems": ", ".join(f"{count} {status}" for status, count in sorted(states.items())),
        "majority_class": int(done.majority_class.sum()),
        "scores": dict(zip(done.seed, done.score, strict=True)),
        "train_seconds": fmean(seconds) if seconds else None,
        "parameters": next((run.record.parameters for run in runs), None),
        "device": next((run.record.provenance.device for run in runs), None),
        "published": source and source.number(first.system, first.task),
        "published_mean": source and source.number(first.system, first.task, "mean"),
        "published_source": source and source.name,
        "own": any(run.record.row for run in runs),
        "pretrained": any(run.record.config.get("pretrain") for run in runs),
        "vanilla": _is_vanilla(frame),
        **dict.fromkeys((*RACE, *TESTED)),
    }
    if goals and len(goals) == 1:
        ended = frame[frame.status.isin(["finished", "diverged"])]
        steps = [row.steps if row.solved else None for row in ended.itertuples()]
        complete = len(ended) == len(frame)
        row |= {
            "goal": goals.pop(),
            "ran": len(ended),
            "solved": sum(count is not None for count in steps),
            "median_steps": median_steps(steps) if complete else None,
        }
    return row | {"caveats": list(_caveats(row, frame))}


def _is_vanilla(frame: pd.DataFrame) -> bool:
    """True for a Transformer that is trained from drawn weights, all of it."""
    configs = [run.record.config for run in present(frame)]
    helped = any(config.get(key) for config in configs for key in ("init", "pretrain"))
    frozen = any(config.get("train", {}).get("freeze") for config in configs)
    return (frame.attention.iloc[0], frame.variant.iloc[0]) == VANILLA and bool(configs) and not helped and not frozen


def _caveats(row: dict[str, Any], frame: pd.DataFrame) -> Iterator[str]:
    """Yield the footnotes of a cell."""
    records = [run.record for run in present(frame)]
    for folder in sorted({record.kept for record in records if record.kept}):
        seeds = [str(record.seed) for record in records if record.kept == folder]
        yield f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} taken from {folder}"
    if row["problems"]:
        yield f"of {len(frame)} seeds, {row['problems']}"
    if row["majority_class"]:
        yield f"{row['majority_class']} of {row['n']} seeds no better than the majority class"
    if any("best_test" in record.test for record in records) and frame.selection.iloc[0] != "last":
        yield "checkpoint selected on the test split"
    if row["pretrained"] or any(record.config.get("init") for record in records):
        yield "starts from pretrained weights"
    if inexact := sum(bool(record.inexact) for record in records):
        yield f"{inexact} of {len(records)} seeds resumed under other conditions (resume=inexact)"
    if any(record.full_pattern for record in records):
        yield "attends to every pair of positions at this length, as softmax attention does"


def _compared(rows: list[dict[str, Any]], name: str | None, margin: float, *, lower: bool) -> None:
    """Compare each row with its reference, in place; p-values are corrected over the rows of the column."""
    tests: list[Comparison | None] = []
    for row in rows:
        other = reference(row, rows, name)
        row["reference"] = None if other is None or other is row else other["system"]
        if row["reference"] and other:
            scores, others = (list(side["scores"].values()) for side in (row, other))
            tests.append(compare(scores, others, margin, lower_is_better=lower))
        else:
            tests.append(None)
    tested = {place: test.p for place, test in enumerate(tests) if test is not None and test.p is not None}
    corrected = dict(zip(tested, holm([*tested.values()]), strict=True))
    for place, (row, test) in enumerate(zip(rows, tests, strict=True)):
        if test is not None:
            row |= {
                "difference": test.difference,
                "difference_low": test.low,
                "difference_high": test.high,
                "p": test.p,
                "p_holm": corrected.get(place),
                "p_equivalent": test.p_equivalent,
                "verdict": test.word(corrected.get(place)),
            }


def reference(row: dict[str, Any], rows: list[dict[str, Any]], name: str | None) -> dict[str, Any] | None:
    """Return the row to compare with: the named system, else the same system from scratch if `row` is pretrained, else
    the Transformer from scratch, else the first row; with the settings of `row` where there are several."""
    measured = [other for other in rows if other["n"]]

    def settings(other: dict[str, Any]) -> str:
        return CASE.sub("", other["settings"]).strip()

    if name is None and row["pretrained"]:
        same = [other for other in measured if not other["pretrained"] and settings(other) == settings(row)
                and (other["attention"], other["variant"]) == (row["attention"], row["variant"])]  # fmt: skip
        if same:
            return same[0]
    if name is None:
        named = [other for other in measured if other["vanilla"]]
    else:
        named = [other for other in measured if name in (other["system"], _base(other))]
    same_settings = [other for other in named or measured if settings(other) == settings(row)]
    if named:
        return same_settings[0] if same_settings else named[0] if len(named) == 1 else None
    if name is not None or not measured:
        return None
    return same_settings[0] if len(same_settings) > 1 else measured[0]


def _base(row: dict[str, Any]) -> str:
    return row["system"].removesuffix(f" ({row['settings']})")


# What is printed.


def number(value: Any, form: str = ".2f") -> str:
    """Format a number; empty where there is none."""
    return "" if value is None or pd.isna(value) else format(value, form)


def mean_sd(row: Any) -> str:
    """Return `mean ± sd`."""
    return number(row.mean_) + (f" ± {row.sd:.2f}" if pd.notna(row.sd) else "")


class Matrix:
    """The tables of a report as text: systems by columns, and footnotes.

    Args:
        notes: footnotes of columns by name.

    Attributes:
        table: test results, trivial baselines last.
        solved: seeds that solved a task; empty where no task has a goal.
        steps: median steps to the goal; empty if there are none.
        notes: footnotes by letter.
    """

    def __init__(self, cells: pd.DataFrame, notes: Mapping[str, list[str]]) -> None:
        self.notes: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        cells = cells.rename(columns={"mean": "mean_"})  # DataFrame rows have a method of that name
        rows: dict[tuple[str, str], dict[str, str]] = {}
        trivial = cells[cells.kind == "baseline"]
        own = cells[cells.kind == "system"].sort_values("place").drop_duplicates("system")
        for name, complexity in zip(own.system, own.complexity, strict=True):
            rows["system", name] = {"system": name, "complexity": complexity}
        for name in trivial.system.drop_duplicates():
            rows["baseline", name] = {"system": f"*baseline: {name}*", "complexity": ""}
        headers: list[str] = []
        races: dict[str, dict[str, str]] = {}
        steps: dict[str, dict[str, str]] = {}
        for name, column in cells.groupby("column", sort=False):
            several = column[column.kind == "system"]
            counts, shared = several.n.mode(), self._shared(column)
            title = f"{name} (n = {int(counts.iloc[0])})" if len(counts) else str(name)
            if (several.metric == "perplexity").any():
                title += ", perplexity"
            title += self._mark([*shared, *notes.get(str(name), [])])
            heads = [title, *([f"{name}, published"] if several.published.notna().any() else [])]
            headers += heads
            for row in column.itertuples():
                entry = rows[row.kind, row.system]
                entry[title] = self._cell(row, counts, shared)
                if len(heads) > 1:
                    entry[heads[1]] = number(row.published)
                if row.kind == "system" and pd.notna(row.goal):
                    goal = f"{name}, {row.goal:g} %"
                    races.setdefault(row.system, {})[goal] = solved(row)
                    steps.setdefault(row.system, {})[goal] = number(row.median_steps, ",.0f")
        self.table = pd.DataFrame(list(rows.values()), columns=["system", "complexity", *headers]).fillna("")
        self.solved, self.steps = (
            pd.DataFrame([{"system": name} | known[name] for name in own.system if name in known]).fillna("")
            for known in (races, steps)
        )
        if not any(any(known.values()) for known in steps.values()):
            self.steps = pd.DataFrame()

    def _shared(self, column: pd.DataFrame) -> list[str]:
        """Return the caveats of all cells with a number."""
        own = column[column.kind == "system"]
        lists = own[own.n > 0].caveats.tolist()
        return [text for text in lists[0] if all(text in others for others in lists)] if len(lists) > 1 else []

    def _mark(self, caveats: list[str]) -> str:
        if not caveats:
            return ""
        for text in caveats:
            if text not in self._marks:
                place = len(self._marks)
                self._marks[text] = ascii_lowercase[place % 26] * (place // 26 + 1)
                self.notes[self._marks[text]] = text
        return f"<sup>{','.join(sorted(self._marks[text] for text in caveats))}</sup>"

    def _cell(self, row: Any, counts: pd.Series, shared: list[str]) -> str:
        if row.kind == "baseline":
            return number(row.mean_)
        caveats = [text for text in row.caveats if text not in shared]
        if len(counts) and row.n and row.n != counts.iloc[0]:
            caveats.append(f"n = {int(row.n)}")
        return mean_sd(row) + MARK * (row.verdict in SIGNIFICANT) + self._mark(caveats)


def solved(row: Any) -> str:
    """Return how many seeds solved a task; empty where it has no goal."""
    return "" if pd.isna(row.goal) else f"{int(row.solved)} of {int(row.ran)}"


def unbeaten(cells: pd.DataFrame) -> str:
    """Name the columns in which no system beats the best trivial baseline; empty if there are none."""
    found = []
    for name, column in cells.groupby("column", sort=False):
        own, trivial = column[(column.kind == "system") & (column.n > 0)], column[column.kind == "baseline"]
        if own.empty or trivial.empty:
            continue
        lower = column.metric.iloc[0] == "perplexity"
        best = trivial.sort_values("mean", ascending=lower, kind="stable").iloc[0]
        if (own["mean"] >= best["mean"] if lower else own["mean"] <= best["mean"]).all():
            found.append(f"{name} ({best.system}, {best['mean']:.2f})")
    return f"No system beats the best trivial baseline on {'; '.join(found)}." if found else ""


def significance(cells: pd.DataFrame) -> str:
    """Explain the mark of a significant difference, with the number of such differences; empty if none is tested."""
    tested = cells[cells.p.notna()]
    if tested.empty:
        return ""
    bases = {row["system"]: _base(row) for row in cells[cells.kind == "system"].to_dict("records")}
    references = {bases[name] for name in tested.reference}
    name = references.pop() if len(references) == 1 else "its reference in table.csv"
    test = f"(Welch's t-test, Holm-corrected, p < {ALPHA})"
    count = int(tested.verdict.isin(SIGNIFICANT).sum())
    if not count:
        return f"No difference from {name} is significant {test}"
    return f"{MARK} differs significantly from {name} {test}: {count} of {len(tested)} differences"


def column_notes(cells: pd.DataFrame, frame: pd.DataFrame, published: Published) -> dict[str, list[str]]:
    """Describe the data of each column, and the published numbers next to them."""
    notes: dict[str, list[str]] = {}
    for name, column in frame.groupby("column", sort=False):
        runs, task = present(column), column.task.iloc[0]
        mine = notes.setdefault(str(name), [])
        if task.casefold() != column.short.iloc[0].casefold():
            mine.append(f"data: {task}")
        seen = {percent for run in runs if (percent := run.record.test_in_train)}
        if seen:
            mine.append(f"{max(seen):.1f} % of the test examples are also in the training set")
        source = published.source(task)
        if source is not None and cells[cells.column == name].published.notna().any():
            others = _other_settings(source, task, [run.record.config for run in runs])
            mine.append(f"published numbers: {source.name} ({source.numbers}){others}")
    return notes


def _other_settings(source: PublishedTable, task: str, configs: list[dict[str, Any]]) -> str:
    """Return the settings in which our runs differ from the published ones."""
    differing = []
    for key, theirs in source.settings.get(task, {}).items():
        group, name = key.split(".")
        ours = {str(config[group][name]) for config in configs if config.get(group, {}).get(name, theirs) != theirs}
        if ours:
            differing.append(f"{key} {', '.join(sorted(ours))} ({theirs} there)")
    return printable(f". Other settings here: {'; '.join(differing)}") if differing else ""
