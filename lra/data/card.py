"""Card of a prepared task: origin, sizes, doubtful examples, baselines."""

from typing import Any

import numpy as np

from lra.data import Split, Task
from lra.data.cache import SPLITS
from lra.data.splits import LMWindows, PositionLabels, contradictions, repeats, seen

BARS = " ▁▂▃▄▅▆▇█"
BINS = 24


def summary(task: Task, seconds: float) -> dict[str, Any]:
    """Return the facts of a prepared task as a JSON object."""
    return {
        "task": task.name,
        "task_version": task.version,
        "source": task.source,
        "rows": {split: len(getattr(task, split)) for split in SPLITS},
        "digest": task.digest,
        "cache": str(task.folder),
        "seconds": round(seconds, 3),
        "baselines": task.baselines,
        "test_in_train": seen(task.train, task.test),
    }


def card(task: Task) -> str:
    """Return a section of Markdown, a function of the prepared data alone."""
    lines = [f"## {task.name}", "", f"Version {task.version}, digest `{task.digest}`.", ""]
    lines += _source(task.source)
    lines += [f"- baseline, {name}: {value:.2f}" for name, value in task.baselines.items()]
    if task.validates_on_test:
        lines += ["- validation is the test split"]
    lines += ["", "| split | rows | tokens | length: min / median / mean / max | at the limit | lengths | classes |"]
    lines += ["|---|---:|---:|---:|---:|---|---|"]
    lines += [_row(task, split) for split in _own_splits(task)]
    lines += ["", *_doubts(task), ""]
    return "\n".join(lines)


def _source(source: Any) -> list[str]:
    """Lines for each fact of the source."""
    if not isinstance(source, dict):
        return [f"- source: {source}"]
    return [f"- {'source' if key == 'from' else key}: {_flat(value)}" for key, value in source.items()]


def _flat(value: Any) -> str:
    return ", ".join(f"{key} {_flat(item)}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def _own_splits(task: Task) -> list[str]:
    return [split for split in SPLITS if not (split == "val" and task.validates_on_test)]


def _row(task: Task, name: str) -> str:
    split: Split = getattr(task, name)
    lengths = np.diff(split.offsets)[split.index]
    full = 100 * np.mean(lengths >= task.max_len)
    spread = f"{lengths.min()} / {np.median(lengths):.0f} / {lengths.mean():.0f} / {lengths.max()}"
    if isinstance(split, LMWindows):
        limit, shares = "", f"{len(split.index)} documents in one stream"
    elif isinstance(split, PositionLabels):
        limit, shares = f"{full:.1f} %", f"{len(split.labels):,} answers, {len(np.unique(split.labels)):,} different"
    else:
        counts = np.bincount(split.labels, minlength=task.classes)
        limit = f"{full:.1f} %"
        shares = ", ".join(f"{label}: {100 * count / len(split):.1f} %" for label, count in enumerate(counts))
    cells = [name, f"{len(split):,}", f"{int(lengths.sum()):,}", spread, limit, f"`{histogram(lengths)}`", shares]
    return f"| {' | '.join(cells)} |"


def histogram(lengths: np.ndarray) -> str:
    """Return the distribution from the shortest to the longest as a line of bars."""
    counts, _ = np.histogram(lengths, bins=BINS)
    heights = np.ceil(counts / counts.max() * (len(BARS) - 1)).astype(int)
    return "".join(BARS[height] for height in heights)


def _doubts(task: Task) -> list[str]:
    """Lines on equal examples within and between splits (all documents of an example), and on contradictions."""
    splits = {split: getattr(task, split) for split in _own_splits(task)}
    lines = repeats(splits) + [f"{number:,} {what}" for what, number in contradictions(splits).items()]
    return [f"- {line}" for line in lines]
