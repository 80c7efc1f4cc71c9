"""lra-check: run the correctness checks of an attention."""

from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import FAILED


def job(cfg: DictConfig) -> None:
    """Check every law and print its verdict. Raises SystemExit where a law is broken."""
    from lra.checks.report import CheckSettings, examine, maker  # imports torch, which takes seconds

    settings = configure.part(CheckSettings, cfg)
    name = HydraConfig.get().runtime.choices["attention"]
    findings = examine(name, maker(settings), settings, partial(say, to_stdout=True))
    if any(finding.verdict == "broken" for finding in findings):
        raise SystemExit(FAILED)


main = command("check", job)
