"""Console commands: `hydra.main`, with one-line errors and exit codes."""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.config.compose import HYDRA_VERSION, help_page, parseable, refuse_our_names, set_up, with_packages
from lra.config.configure import check_packages, explain, is_mistake
from lra.core.errors import CONFIG_ERROR, UserError
from lra.core.paths import __version__, conf_dir
from lra.core.signals import interruptible

FAILED = 1


def command(config_name: str, function: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """Return the console command of a Hydra task function; a mistake ends it with one line and exit code 2."""
    program = f"lra-{config_name}"
    debug = os.environ.get("HYDRA_FULL_ERROR")

    def fail(error: BaseException) -> NoReturn:
        if debug:
            traceback.print_exception(error)
        print(f"{program}: error: {explain(error, config_name, sys.argv[1:])}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR)

    @wraps(function)
    def task(cfg: DictConfig) -> Any:
        try:
            check_packages(HydraConfig.get().overrides.task, cfg)
            return function(cfg)
        except UserError as error:  # here, because Hydra would print a line of its own first
            fail(error)

    @interruptible(program)
    def main() -> None:
        nonlocal debug
        if "--version" in sys.argv[1:]:
            print(f"lra {__version__}")
            return
        if {"--help", "-h"} & {*sys.argv[1:]}:
            print(help_page(config_name))
            return
        debug = os.environ.get("HYDRA_FULL_ERROR")
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
        sys.argv = [program, *with_packages(parseable(flags_first(sys.argv[1:])))]
        set_up()
        try:
            refuse_our_names()
            hydra.main(version_base=HYDRA_VERSION, config_path=str(conf_dir()), config_name=config_name)(task)()
        except Exception as error:
            if is_mistake(error):
                fail(error)
            raise
        finally:
            GlobalHydra.instance().clear()
            del os.environ["HYDRA_FULL_ERROR"]
            if debug:
                os.environ["HYDRA_FULL_ERROR"] = debug

    return main


def flags_first(arguments: list[str]) -> list[str]:
    """Move overrides behind the flags: argparse refuses two groups of them, as in `a=1 --multirun b=1,2`."""
    overrides = [text for text in arguments if text.startswith("~") or ("=" in text and not text.startswith("-"))]
    return [*(text for text in arguments if text not in overrides), *overrides]
