"""What option files may say: they describe and run no code; a mistake in one is a line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.config.compose import options
from lra.config.configure import dotted, first_line, shown
from lra.core.errors import UserError

HYDRAS_OWN = ("hydra._internal.core_plugins.", "hydra_plugins.")  # where launchers and sweepers live
SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}  # Hydra's logging that says nothing


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
        nothing = next((text for text in overrides if text.endswith("=null") and options(text[:-5])), None)
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
        plugin = OmegaConf.to_container(config.hydra[key], resolve=True) or {}
        target = str(plugin.pop("_target_", None))
        if not target.startswith(HYDRAS_OWN) or (key == "sweeper" and not target.endswith(".BasicSweeper")):
            raise UserError(f"hydra.{key}._target_={target}: not one of Hydra's")
        inner = next((name for name, _ in dotted(plugin) if name.split(".")[-1] == "_target_"), None)
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
