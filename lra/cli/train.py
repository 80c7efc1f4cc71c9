"""lra-train: train one run, or a sweep of runs."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import rates
from lra.core.console import say
from lra.core.errors import FAILED, UserError
from lra.core.files import Locked
from lra.core.signals import PAUSED, Paused

# Modules of lra.runs and lra.sweep are imported in the functions below: with NumPy and the classes of the settings they
# would take a third of the time of `lra-train --help`, which needs none of them.

RERUN = ("rerun", "out", "cache", "data_dir", "workers", "packages", "device", "init", "init.folder")
"""Keys that may be set together with `rerun=...`: records lack them, and a set `device` replaces the recorded one."""
QUICK = "lra-train experiment=small_listops train.steps=800"


def train(cfg: DictConfig) -> str | float:
    """Train one run, which may be one of a sweep; this is Hydra's task function.

    Returns:
        The status of the run; in a sweep the result of `lra.sweep.job.train`.
    """
    if cfg.rerun is not None:
        return _rerun(cfg)
    hydra_cfg = HydraConfig.get()
    if hydra_cfg.mode == RunMode.MULTIRUN:
        from lra.sweep import job as of_sweep

        return of_sweep.train(cfg)
    from lra.runs.build import Job, assemble
    from lra.runs.run_folder import Status
    from lra.runs.settings import settings_of

    cell, settings = rates.apply(cfg, hydra_cfg), settings_of(cfg)
    if settings.also:
        raise UserError(f"also={settings.also}: adds rows to a sweep, and this is one run; omit it, or add --multirun")
    if not hydra_cfg.overrides.task and hydra_cfg.job.config_name == "train":
        raise UserError(f"choose a task, an attention or an experiment, as in {QUICK} (20 seconds); lra lists them")
    job = Job(settings=settings, components=assemble(settings), cell=cell, title=f"{cell} seed {settings.seed}")
    if settings.describe:
        from lra.runs.describe import print_summary

        print_summary(job, measured=True)
        return "described"
    from lra.runs.run import run

    try:
        outcome = run(job)
    except Locked as other:
        say(f"{job.title}: {other}")
        raise SystemExit(PAUSED) from None
    except Paused as pause:
        pause.title = job.title
        say(pause.line)
        raise SystemExit(pause.code) from None
    if outcome in (Status.FAILED, Status.DIVERGED):
        raise SystemExit(FAILED)
    return outcome


def _rerun(cfg: DictConfig) -> str:
    """Train a kept run again and compare both results bit by bit. Raises SystemExit with code 1 if they differ."""
    from lra.runs.rerun import rerun
    from lra.runs.settings import settings_of

    parsed = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    others = [override.input_line for override in parsed if override.key_or_group not in RERUN]
    if others:
        raise UserError(
            f"{others[0]}: cannot be combined with rerun=...; the record sets all keys except {', '.join(RERUN[1:])}"
        )
    settings = settings_of(cfg)
    default_out = not any(override.key_or_group == "out" for override in parsed)
    try:
        equal = rerun(Path(settings.rerun), settings, default_out)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise UserError(f"rerun={cfg.rerun}: {error}") from None
    if not equal:
        raise SystemExit(FAILED)
    return "finished"


main = command("train", train)
