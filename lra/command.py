"""From a command line to a composed configuration, and the boundary that option files do not cross.

Hydra composes; runs and sweeps are started here, so that no hook of Hydra's, which turns errors into warnings, takes
part in it.
"""

import os
import sys
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_hydra, create_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra import __version__
from lra.configure import dotted, explain, first_line, options, shown
from lra.errors import UserError
from lra.paths import conf_dir

FAILED, CONFIG_ERROR, INTERRUPTED = 1, 2, 130
HYDRAS_OWN = ("hydra._internal.core_plugins.", "hydra_plugins.")  # where launchers and sweepers live
SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}  # Hydra's logging that says nothing
# Our conf/hydra/launcher/joblib.yaml is meant to complete the plugin's configuration of that name.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")


def command(
    config_name: str, sweep: Callable[[DictConfig, TaskFunction], Any] | None = None
) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Make a console command of a function of the composed configuration; mistakes end in one line and exit code 2.

    `sweep` gets the configuration of a --multirun, Hydra's own part included, and the function.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], None]:
        program = f"lra-{config_name}"
        debug: str | None = None

        def complain(error: BaseException) -> NoReturn:
            if debug:
                traceback.print_exception(error)
            print(f"{program}: error: {explain(error, config_name)}", file=sys.stderr)
            raise SystemExit(CONFIG_ERROR)

        @wraps(function)
        def task(cfg: DictConfig) -> Any:
            try:
                return function(cfg)
            except UserError as error:  # caught here, since Hydra would print a preface of its own
                complain(error)

        def main() -> None:
            nonlocal debug
            debug = os.environ.get("HYDRA_FULL_ERROR")
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise, so that we can explain
            try:
                _start(program, config_name, task, sweep and partial(sweep, task=function))
            except KeyboardInterrupt:
                print(
                    f"\n{program}: interrupted; the same command again skips what is finished",
                    file=sys.stderr,
                )
                sys.exit(INTERRUPTED)
            except (UserError, HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
                complain(error)
            finally:
                os.environ.pop("HYDRA_FULL_ERROR")
                if debug:
                    os.environ["HYDRA_FULL_ERROR"] = debug

        return main

    return decorate


def _start(program: str, config_name: str, task: TaskFunction, sweep: Callable[[DictConfig], Any] | None) -> None:
    """Do what the command line says."""
    parser = _Parser(prog=program, parents=[get_args_parser()], add_help=False, conflict_handler="resolve")
    parser.add_argument("--version", action="version", version=f"lra {__version__}")
    arguments = parser.parse_intermixed_args()
    if arguments.experimental_rerun is not None:
        raise UserError("--experimental-rerun: a pickle runs whatever code is in it, so none is read")
    _check_folders(arguments)
    hydra.version.setbase("1.3")
    asks = ("help", "hydra_help", "cfg", "shell_completion", "info")
    if any(getattr(arguments, name) for name in asks):
        with composing(arguments.overrides, arguments.config_dir):
            _run_hydra(arguments, parser, task, str(conf_dir()), config_name)
        return
    try:
        loader = _loader(arguments, config_name)
        with composing(arguments.overrides, arguments.config_dir):
            composed = _composed(loader, arguments, arguments.config_name or config_name)
        check_boundary(composed)
        if composed.hydra.mode == RunMode.RUN:
            done = run_job(task, composed, "hydra.run.dir", None, HydraContext(loader, Callbacks()), False)
            _ = done.return_value  # raises what the task has raised
        elif sweep is None:
            raise UserError("--multirun: only lra-train has sweeps")
        else:
            sweep(composed)
    finally:
        GlobalHydra.instance().clear()


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


def _loader(arguments: Namespace, config_name: str) -> ConfigLoader:
    """Hydra's, for our groups and those of --config-dir."""
    path = create_config_search_path(arguments.config_path or str(conf_dir()))
    if arguments.config_dir is not None:
        folder = Path(arguments.config_dir).absolute()
        path.prepend("command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    return Hydra.create_main_hydra2(task_name=config_name, config_search_path=path).config_loader


def _composed(loader: ConfigLoader, arguments: Namespace, config_name: str) -> DictConfig:
    """The configuration of a run, or what the runs of a sweep have in common; hydra.mode says which."""
    overrides = arguments.overrides
    many = arguments.multirun
    if not (many or arguments.run):  # an experiment may be a sweep by itself
        try:
            first = loader.load_configuration(config_name, overrides, RunMode.MULTIRUN, validate_sweep_overrides=False)
            many = first.hydra.mode == RunMode.MULTIRUN
        except Exception:  # as a run, it fails with a better message
            many = False
    mode = RunMode.MULTIRUN if many else RunMode.RUN
    return loader.load_configuration(config_name, [*overrides, f"hydra.mode={mode.name}"], mode)


@contextmanager
def composing(overrides: list[str], folder: str | None = None) -> Iterator[None]:
    """Only option files are read inside, so whatever goes wrong is a mistake in one of them or in an override.

    `folder`: that of --config-dir.
    """
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException):
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{shown(mark.name)}, line {mark.line + 1}: {error.problem or error.context}") from error
    except Exception as error:
        nothing = next((text for text in overrides if text.endswith("=null")), None)
        if nothing is not None and "Config group override" in str(error):
            group = nothing.partition("=")[0]
            raise UserError(f"{nothing}: expected an option; known: {', '.join(options(group))}") from None
        reason = _mistake(Path(folder)) if folder is not None else None
        raise UserError(reason or first_line(error)) from error


def _mistake(folder: Path) -> str | None:
    """What is wrong with the first file of options that cannot be read, or that includes itself by way of others."""
    included: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        try:
            content = yaml.safe_load(path.read_bytes().decode())
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            return f"{shown(path)}, line {line}: not UTF-8: {error.reason}"
        except yaml.YAMLError as error:
            return f"{shown(path)}: {first_line(error)}"
        except RecursionError:
            return f"{shown(path)}: nested too deeply"
        defaults = content.get("defaults") if isinstance(content, dict) else None
        group = path.parent.relative_to(folder)
        names = [name for name in defaults if isinstance(name, str)] if isinstance(defaults, list) else []
        included[str(group / path.stem)] = [str(group / name) for name in names]
    circle = next((name for name in included if _leads_to(name, name, included, set())), None)
    return circle and f"{shown(folder / circle)}.yaml: its defaults include it again, and so on without end"


def _leads_to(name: str, goal: str, included: dict[str, list[str]], seen: set[str]) -> bool:
    fresh = [further for further in included.get(name, []) if further not in seen]
    seen.update(fresh)
    return goal in fresh or any(_leads_to(further, goal, included, seen) for further in fresh)


def check_boundary(config: DictConfig) -> None:
    """Option files describe: they run no code but that of `lra`, of Hydra's launchers, and of the packages that the
    command line names. Raises UserError for one that would, with the key; `config` has Hydra's own part."""
    check_packages(config)
    node = OmegaConf.masked_copy(config, ["hydra"]).hydra
    for key, expected in (("callbacks", {}), ("job_logging", SILENT), ("hydra_logging", SILENT)):
        if (node[key] or {}) != expected:
            raise UserError(f"hydra.{key}: can be told to run any code, so lra takes none; leave it out")
    if node.job.env_set:
        raise UserError("hydra.job.env_set: set variables of the environment in the shell")
    for key in ("launcher", "sweeper"):
        options = OmegaConf.to_container(config.hydra[key], resolve=True) or {}
        target = str(options.pop("_target_", None))
        if not target.startswith(HYDRAS_OWN) or (key == "sweeper" and not target.endswith(".BasicSweeper")):
            raise UserError(f"hydra.{key}._target_={target}: not one of Hydra's")
        inner = next((name for name in dotted(options, "") if name.split(".")[-1] == "_target_"), None)
        if inner is not None:
            raise UserError(f"hydra.{key}.{inner}: would run code of its own; leave it out")


def check_packages(config: DictConfig) -> None:
    """Raises UserError where option files, not the command line, say whose code is trusted."""
    chosen = OmegaConf.select(config, "packages")
    if not chosen:
        return
    parsed = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    if "packages" not in [override.key_or_group for override in parsed]:
        raise UserError(
            f"packages=[{','.join(map(str, chosen))}] stands in an option file; whose code is trusted, only the "
            "command line says"
        )
