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
from lra.datasets.task import DataConfig, Task
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

    The data card of an export quotes `overrides`, the command line of `lra-prepare`.

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
            # The card may be published, so its command leaves out settings of this machine.
            local = ("export", "cache", "data_dir", "workers")
            words = [word for word in overrides if word.partition("=")[0] not in local]
            text, source = card(task), task.source if isinstance(task.source, dict) else {"from": task.source}
            if "licence" not in source:  # else `card` has listed it
                generated = source["from"] == GENERATED
                licence = "none needed, generated from a seed" if generated else "not stated by the source"
                text += f"- licence: {licence}\n"
            text += f"- written by lra {__version__}: `{shlex.join(['lra-prepare', *words, 'export=DIR'])}`\n"
            (staging / "README.md").write_text(text, encoding="utf-8")
        say(f"exported: {folder}")
    return builder, task


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
    for name, split in splits.items():
        lengths = np.diff(split.offsets)[split.index]  # tokens of each document; pairs have two documents
        full = f"{100 * np.mean(lengths >= task.max_len):.1f} %"
        spread = f"{lengths.min()} / {np.median(lengths):.0f} / {lengths.mean():.0f} / {lengths.max()}"
        if isinstance(split, LMWindows):
            full, shares = "", f"{len(split.index)} documents in one stream"
        elif isinstance(split, PositionLabels):
            shares = f"{len(split.labels):,} answers, {len(np.unique(split.labels)):,} different"
        else:
            counts = np.bincount(split.labels, minlength=task.classes)
            shares = ", ".join(f"{label}: {100 * count / len(split):.1f} %" for label, count in enumerate(counts))
        lines.append(f"| {name} | {len(split):,} | {int(lengths.sum()):,} | {spread} | {full} | {shares} |")
    lines += ["", f"- test examples in train: {seen(task.train, task.test):.2f} %"]
    lines += [f"- {what}: {number:,}" for what, number in contradictions(splits).items()]
    return "\n".join([*lines, ""])


def _flat(value: Any) -> str:
    return ", ".join(f"{key} {_flat(item)}" for key, item in value.items()) if isinstance(value, dict) else str(value)
