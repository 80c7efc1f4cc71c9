"""lra-prepare: fetch or generate, verify and cache the data of one task."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pydantic import PositiveInt

from lra.cli.command import command
from lra.config import configure
from lra.core.console import Preparation, say
from lra.core.files import write_atomic
from lra.data import Place, TaskBuilder
from lra.data.cache import verify
from lra.data.card import card, summary


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """The checked configuration; the fields are the keys of `conf/prepare.yaml` that matter for data."""

    task: dict[str, Any]
    cache: str
    data_dir: str | None
    workers: PositiveInt | None
    packages: list[str]
    json: bool
    show: PositiveInt | None
    verify: bool


def job(cfg: DictConfig) -> None:
    """Prepare one task and print its card."""
    values = {key: value for key, value in configure.plain(cfg).items() if key in PrepareSettings.__dataclass_fields__}
    configure.check(PrepareSettings, values, "")
    settings = PrepareSettings(**values)
    builder = configure.build(settings.task, "task", settings.packages, kind=TaskBuilder)().at(Place.of(settings))
    started = time.monotonic()
    with Preparation(builder.facts.name) as progress:
        task = builder.build(replace(Place.of(settings, progress), verify=settings.verify))
    seconds = time.monotonic() - started
    if settings.verify:
        verify(task.folder)
        say("verified: the SHA-256 of every file of the cache and of the available raw data")
    if settings.show is not None:
        path = Path(f"{HydraConfig.get().runtime.choices['task']}.png")
        write_atomic(path, builder.show(task, settings.show))
        say(f"wrote {path}")
    if settings.json:
        print(json.dumps(summary(task, seconds), indent=1))
    else:
        print(card(task))
        say(f"ready in {seconds:.1f} s: {task.folder}")


main = command("prepare", job)
