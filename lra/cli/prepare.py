"""lra-prepare: fetch or generate the data of one task, then verify, cache and export them."""

import json
import time

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import configure
from lra.core.console import say


def job(cfg: DictConfig) -> None:
    """Prepare the data of one task and print a summary of them."""
    # Here, because --help needs none of the libraries that read data.
    from lra.runs.prepare import PrepareSettings, card, prepare, summary

    settings = configure.part(PrepareSettings, cfg)
    started = time.monotonic()
    _, task = prepare(settings, HydraConfig.get().overrides.task)
    seconds = time.monotonic() - started
    if settings.json:
        print(json.dumps(summary(task, seconds), indent=1))
    else:
        print(card(task))
        say(f"ready in {seconds:.1f} s: {task.folder}")


main = command("prepare", job)
