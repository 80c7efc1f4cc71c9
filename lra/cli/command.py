"""Run Hydra task functions as console commands, with one-line errors and exit codes."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lra.config import rates
from lra.config.cell import open_keys
from lra.config.compose import HYDRA_VERSION, compose, groups, help_page, parseable, refuse_our_names, set_up, top_keys
from lra.config.mistakes import explain, is_mistake
from lra.core.errors import CONFIG_ERROR, FAILED, UserError
from lra.core.paths import __version__, conf_dir

# Hydra's keys for output folders; they are refused, because lra has `out` instead.
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir")


def command(config_name: str, function: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """Return the console command of a Hydra task function; a mistake ends it with one line and exit code 2."""
    program = f"lra-{config_name}"

    def main() -> None:
        # Handle these flags before Hydra does: it would print its own version, and compose a configuration for --help.
        if "--version" in sys.argv[1:]:
            print(f"lra {__version__}")
            return
        if {"--help", "-h"} & {*sys.argv[1:]}:
            print(help_page(config_name))
            return
        debug = os.environ.get("HYDRA_FULL_ERROR")

        def fail(error: Exception) -> NoReturn:
            if debug:
                traceback.print_exception(error)
            print(f"{program}: error: {explain(error, config_name, sys.argv[1:])}", file=sys.stderr)
            raise SystemExit(CONFIG_ERROR)

        @wraps(function)
        def task(cfg: DictConfig) -> Any:
            try:
                return function(cfg)
            except UserError as error:  # caught here, because Hydra would print another line first
                fail(error)
            except BrokenPipeError:  # caught here for the same reason
                raise SystemExit(FAILED) from None

        # With this variable Hydra raises its errors, and `fail` prints them; otherwise Hydra would print them and exit.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        sys.argv = [program, *parseable(flags_first(sys.argv[1:]))]
        set_up()
        try:
            refuse_our_names()  # before Hydra composes: it would silently read lra's file instead of the user's
            check_words(config_name, sys.argv[1:])
            if {"--cfg", "-c"} & {*sys.argv}:
                sys.argv += show_rates(config_name, sys.argv[1:])
            hydra.main(version_base=HYDRA_VERSION, config_path=str(conf_dir()), config_name=config_name)(task)()
        except Exception as error:
            if is_mistake(error):
                fail(error)
            raise
        finally:
            GlobalHydra.instance().clear()  # another command may run in this process, as in tests and notebooks
            del os.environ["HYDRA_FULL_ERROR"]
            if debug:
                os.environ["HYDRA_FULL_ERROR"] = debug

    return main


def check_words(config_name: str, words: list[str]) -> None:
    """Raise UserError for command-line words that Hydra would misread or that set a key in `FOLDERS`."""
    keys = top_keys(config_name)
    for word in words:
        name, _, value = word.partition("=")
        if name.startswith("--") and name[2:].split(".")[0] in keys:
            raise UserError(f"{word}: choices and keys are written without dashes, {name[2:]}={value or '...'}")
        if name in FOLDERS:
            raise UserError(f"{word}: results go to out=FOLDER, in which lra names the folders of runs; omit {name}")
        if name in groups(config_name) and name != "logger" and value.startswith("["):
            raise UserError(f"{word}: expected one option, or a sweep: --multirun {name}={value.strip('[]')}")
    if {"--cfg", "-c"} & {*words} and {"--multirun", "-m"} & {*words}:
        raise UserError("--cfg prints the configuration of one run; omit --multirun")


def show_rates(config_name: str, words: list[str]) -> list[str]:
    """Return the values of `rates` as overrides, so that `--cfg` shows them; for a sweep, print how to choose a run."""
    try:
        config = compose(config_name, *(word for word in words if "=" in word and not word.startswith("-")))
    except (UserError, HydraException, OmegaConfBaseException):
        return []  # Hydra will report the error, unless it finds the option in --config-dir
    if missing := open_keys(config):
        print(f"# a sweep; choose one of its runs by {' '.join(f'{key}=...' for key in missing)}")
    values = rates.overrides(config, config.hydra) if config.get("rates") else {}
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]  # Hydra can parse JSON


def flags_first(arguments: list[str]) -> list[str]:
    """Return arguments with flags first.

    argparse refuses overrides on both sides of a flag, as in `a=1 --multirun b=1,2`.
    """
    overrides = [text for text in arguments if text.startswith("~") or ("=" in text and not text.startswith("-"))]
    return [*(text for text in arguments if text not in overrides), *overrides]
