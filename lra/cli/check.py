"""lra-check: run the correctness checks of an attention."""

from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import FAILED


def job(cfg: DictConfig) -> None:
    """Run every check and print its verdict. Raises SystemExit if one fails."""
    from lra.checks.report import CheckSettings, examine, maker  # here, because it imports torch

    settings = configure.part(CheckSettings, cfg)
    name = HydraConfig.get().runtime.choices["attention"]
    results = examine(name, maker(settings), settings, partial(say, to_stdout=True))
    if any(result.verdict == "failed" for result in results):
        raise SystemExit(FAILED)


main = command("check", job)
