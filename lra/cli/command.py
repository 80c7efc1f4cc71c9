"""Console commands: a command line in, an exit code out.

Hydra composes; runs and sweeps are started here, so that no hook of Hydra's, which turns errors into warnings, takes
part in it.
"""

import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lra.config.compose import start
from lra.config.configure import explain
from lra.config.user_options import with_packages
from lra.config.validation import check_boundary, composing
from lra.core.errors import CONFIG_ERROR, UserError
from lra.core.signals import interruptible
from lra.core.version import __version__

FAILED = 1


def command(
    config_name: str,
    function: Callable[[DictConfig], Any],
    sweep: Callable[[DictConfig, TaskFunction], Any] | None = None,
) -> Callable[[], None]:
    """Make a console command of a function of the composed configuration; mistakes end in one line and exit code 2.

    `sweep` gets the configuration of a --multirun, Hydra's own part included, and the function.
    """
    program = f"lra-{config_name}"
    debug: str | None = None

    def complain(error: BaseException) -> NoReturn:
        if debug:
            traceback.print_exception(error)
        print(f"{program}: error: {explain(error, config_name, sys.argv[1:])}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR)

    @wraps(function)
    def task(cfg: DictConfig) -> Any:
        try:
            return function(cfg)
        except UserError as error:  # caught here, since Hydra would print a preface of its own
            complain(error)

    @interruptible(program)
    def main() -> None:
        nonlocal debug
        debug = os.environ.get("HYDRA_FULL_ERROR")
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise, so that we can explain
        try:
            _start(program, config_name, task, sweep and partial(sweep, task=function))
        except (UserError, HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            complain(error)
        finally:
            os.environ.pop("HYDRA_FULL_ERROR")
            if debug:
                os.environ["HYDRA_FULL_ERROR"] = debug

    return main


def _start(program: str, config_name: str, task: TaskFunction, sweep: Callable[[DictConfig], Any] | None) -> None:
    """Do what the command line says."""
    parser = _Parser(prog=program, parents=[get_args_parser()], add_help=False, conflict_handler="resolve")
    parser.add_argument("--version", action="version", version=f"lra {__version__}")
    arguments = parser.parse_intermixed_args()
    if arguments.experimental_rerun is not None:
        raise UserError("--experimental-rerun: a pickle runs whatever code is in it, so none is read")
    _check_folders(arguments)
    arguments.overrides = with_packages(arguments.overrides)
    config_name = arguments.config_name or config_name
    folder = arguments.config_dir and Path(arguments.config_dir)
    try:
        with composing(arguments.overrides, arguments.config_dir):
            engine = start(config_name, folder, arguments.config_path)
            if _answered(engine, parser, arguments, config_name):
                return
            composed = _composed(engine.config_loader, arguments, config_name)
        check_boundary(composed)
        if composed.hydra.mode == RunMode.RUN:
            context = HydraContext(engine.config_loader, Callbacks())
            done = run_job(task, composed, "hydra.run.dir", None, context, False)
            _ = done.return_value  # raises what the task has raised
        elif sweep is None:
            raise UserError("--multirun: only lra-train has sweeps")
        else:
            sweep(composed)
    finally:
        GlobalHydra.instance().clear()


def _answered(engine: Hydra, parser: ArgumentParser, arguments: Namespace, config_name: str) -> bool:
    """Whether the command line asks to be told something and is to run nothing; it has been told then."""
    overrides = arguments.overrides
    if arguments.help:
        engine.app_help(config_name, parser, arguments)
    elif arguments.hydra_help:
        engine.hydra_help(config_name, parser, arguments)
    elif arguments.cfg:
        engine.show_cfg(config_name, overrides, arguments.cfg, arguments.package, arguments.resolve)
    elif arguments.shell_completion:
        engine.shell_completion(config_name, overrides)
    elif arguments.info:
        engine.show_info(arguments.info, config_name, overrides)
    else:
        return False
    return True


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help tells more")


def _check_folders(arguments: Namespace) -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory is gone; cd to one that exists") from None
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise UserError(f"--config-dir {arguments.config_dir}: no such folder")


def _composed(loader: ConfigLoader, arguments: Namespace, config_name: str) -> DictConfig:
    """The configuration of a run, or what the runs of a sweep have in common; hydra.mode says which."""
    overrides = arguments.overrides
    many = arguments.multirun
    if not (many or arguments.run):  # an experiment may be a sweep by itself
        first = loader.load_configuration(config_name, overrides, RunMode.MULTIRUN, validate_sweep_overrides=False)
        many = first.hydra.mode == RunMode.MULTIRUN
        if not many and _is_of_one_run(first, overrides):
            first.hydra.mode = RunMode.RUN
            return first
    mode = RunMode.MULTIRUN if many else RunMode.RUN
    return loader.load_configuration(config_name, [*overrides, f"hydra.mode={mode.name}"], mode)


def _is_of_one_run(composed: DictConfig, overrides: list[str]) -> bool:
    """Whether a run's configuration is no other than this, which a sweep may have left open."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return "???" not in composed.hydra.runtime.choices.values() and not any(
        override.is_sweep_override() for override in parsed
    )
