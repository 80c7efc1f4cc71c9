"""Prepare the data of one task, export them, and describe them in a data card."""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from lra.config import configure
from lra.config.values import STRICT
from lra.core.console import say
from lra.core.paths import __version__, expanded
from lra.datasets.builder import GENERATED, TaskBuilder
from lra.datasets.cache import SPLITS
from lra.datasets.rows import new_folder, refuse_used
from lra.datasets.splits import LMWindows, PositionLabels, contradictions, seen
from lra.datasets.task import DataConfig, Split, Task
from lra.runs.run_folder import prepared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareSettings:
    """The checked configuration; the fields are the keys of `conf/prepare.yaml` that concern data."""

    task: dict[str, Any]
    cache: str
    data_dir: str | None
    workers: PositiveInt | None
    json: bool
    export: Annotated[str, Field(min_length=1)] | None


def prepare(settings: PrepareSettings, overrides: Sequence[str]) -> tuple[TaskBuilder, Task]:
    """Prepare a task, export it if `settings.export` names a folder, and return its builder and data.

    Args:
        settings: configuration of the command.
        overrides: command line of `lra-prepare`, which the data card of the export quotes.

    Raises:
        UserError: the data are missing or damaged, or the export folder is in use or cannot be written.
    """
    builder = configure.build(settings.task, "task", kind=TaskBuilder)().at(DataConfig.of(settings))
    folder = None if settings.export is None else expanded(settings.export, "export")
    if folder is not None:
        refuse_used(folder, "export")  # before the data are prepared, which may take an hour
    task = prepared(builder, settings)
    if folder is not None:
        with new_folder(folder, "export") as staging:
            builder.export(task, staging)
            (staging / "README.md").write_text(_export_card(task, overrides), encoding="utf-8")
        say(f"exported: {folder}")
    return builder, task


def _export_card(task: Task, overrides: Sequence[str]) -> str:
    """Return the data card of an export, with the licence and the command without local folders and `workers`."""
    words = [word for word in overrides if word.partition("=")[0] not in ("export", "cache", "data_dir", "workers")]
    source = task.source if isinstance(task.source, dict) else {"from": task.source}
    licence = "none needed, generated from a seed" if source["from"] == GENERATED else "not stated by the source"
    lines = [f"- written by lra {__version__}: `{shlex.join(['lra-prepare', *words, 'export=DIR'])}`", ""]
    if "licence" not in source:
        lines.insert(0, f"- licence: {licence}")
    return "\n".join([card(task).rstrip("\n"), *lines])


def summary(task: Task, seconds: float) -> dict[str, Any]:
    """Return the summary of prepared data that `lra-prepare json=true` prints."""
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
    """Return the data card of a prepared task in Markdown: source, baselines, sizes, numbers of repeated examples."""
    source = task.source if isinstance(task.source, dict) else {"from": task.source}
    splits = {name: getattr(task, name) for name in SPLITS if not (name == "val" and task.validates_on_test)}
    lines = [f"## {task.name}", "", f"Version {task.version}, digest `{task.digest}`.", ""]
    lines += [f"- {'source' if key == 'from' else key}: {_flat(value)}" for key, value in source.items()]
    lines += [f"- baseline, {name}: {value:.2f}" for name, value in task.baselines.items()]
    lines += ["- validation is the test split"] if task.validates_on_test else []
    lines += ["", "| split | rows | tokens | length: min / median / mean / max | at the limit | classes |"]
    lines += ["|---|---:|---:|---:|---:|---|"]
    lines += [_row(task, name, split) for name, split in splits.items()]
    lines += ["", f"- test examples in train: {seen(task.train, task.test):.2f} %"]
    lines += [f"- {what}: {number:,}" for what, number in contradictions(splits).items()]
    return "\n".join([*lines, ""])


def _flat(value: Any) -> str:
    return ", ".join(f"{key} {_flat(item)}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def _row(task: Task, name: str, split: Split) -> str:
    lengths = np.diff(split.offsets)[split.index]
    full = f"{100 * np.mean(lengths >= task.max_len):.1f} %"
    spread = f"{lengths.min()} / {np.median(lengths):.0f} / {lengths.mean():.0f} / {lengths.max()}"
    if isinstance(split, LMWindows):
        full, shares = "", f"{len(split.index)} documents in one stream"
    elif isinstance(split, PositionLabels):
        shares = f"{len(split.labels):,} answers, {len(np.unique(split.labels)):,} different"
    else:
        counts = np.bincount(split.labels, minlength=task.classes)
        shares = ", ".join(f"{label}: {100 * count / len(split):.1f} %" for label, count in enumerate(counts))
    cells = [name, f"{len(split):,}", f"{int(lengths.sum()):,}", spread, full, shares]
    return f"| {' | '.join(cells)} |"
