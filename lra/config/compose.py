"""Composition of configurations with Hydra: our option files, a user's own, and the systems of two YAML tables.

Values that depend on a choice are OmegaConf resolvers: `${by_task:{text:16, image:32}, 128}`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError

from lra.config.user_options import user_options_folder
from lra.core.errors import UserError
from lra.core.paths import conf_dir, systems_file, table1_file

HYDRA_VERSION = "1.3"
SYSTEMS = {"system": table1_file, "system/other": systems_file}
"""Tables whose rows are the options of a config group, by group."""
RECIPE = "task/recipe@recipe"  # Hydra's key of the recipe that a task chooses with `- recipe: NAME`
RELEASED = "_lra_released"  # `NAME_lra_released` takes the values of `NAME` where it has none of its own
# conf/hydra/launcher/joblib.yaml extends the plugin's configuration of the same name on purpose.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")


class UserOptions(SearchPathPlugin):
    """Search path entry for `lra_options` in the working directory."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = user_options_folder()
        if folder is not None:
            search_path.append("lra_options", f"file://{folder.absolute()}")


def _resolver(group: str) -> Callable[..., Any]:
    """The resolver `by_GROUP`: the value of a table for the chosen option, else the default."""

    def value(table: dict[str, Any], *default: Any, _root_: DictConfig) -> Any:
        choices = (_root_ if "hydra" in _root_ else HydraConfig.instance().cfg).hydra.runtime.choices
        chosen = choices.get(group)
        names = {"task": [chosen, choices.get(RECIPE)], "attention": [chosen, str(chosen).removesuffix(RELEASED)]}
        for name in names.get(group, [chosen]):
            if name in table:
                return table[name]
        if default:
            return default[0]
        raise UserError(f"no value for {group}={chosen}; there are values for {', '.join(map(str, table))}")

    return value


def set_up() -> None:
    """Register resolvers, the search path of `lra_options` and the options of `system` with Hydra."""
    for group in ("task", "attention", "protocol", "size", "experiment"):
        OmegaConf.register_new_resolver(f"by_{group}", _resolver(group), replace=True)
    Plugins.instance().register(UserOptions)
    for group in SYSTEMS:
        for option, row in systems(group).items():
            defaults = [{f"override /{key}": row[key]} for key in ("attention", "variant")]
            ConfigStore.instance().store(
                option, {"defaults": defaults}, group=group, package="_global_", provider="lra"
            )


def compose(config_name: str, *overrides: str, with_hydra: bool = False) -> DictConfig:
    """Return the configuration of a command line; `with_hydra` includes the node `hydra`."""
    set_up()
    refuse_our_names()
    with _apart(), hydra.initialize_config_dir(version_base=HYDRA_VERSION, config_dir=str(conf_dir())):
        config = hydra.compose(config_name, overrides=list(overrides), return_hydra_config=True)
    if not GlobalHydra.instance().is_initialized():
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
    for key in config:
        if key != "hydra":
            settle(config, key)
    if not with_hydra:
        with open_dict(config):
            del config["hydra"]
    return config


def settle(parent: DictConfig, key: str) -> None:
    """Replace values by choice, `${by_...}`, by what they are for the choices of this configuration, in place.

    They would otherwise be resolved late, by the choices of whatever Hydra composed last.
    """
    if OmegaConf.is_interpolation(parent, key):
        if "${by_" in str(OmegaConf.to_container(parent, resolve=False)[key]):
            with suppress(InterpolationResolutionError):  # no value for this choice: an error for those who read it
                value = parent[key]
                parent[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    elif not OmegaConf.is_missing(parent, key) and isinstance(parent[key], DictConfig):
        for below in parent[key]:
            settle(parent[key], below)


@contextmanager
def _apart() -> Iterator[None]:
    """Set aside the Hydra application that is running, if there is one: only one can be initialised."""
    application = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = application


def refuse_our_names() -> None:
    """Raise UserError for an option of `lra_options` with the name of one of ours, which would hide it."""
    folder = user_options_folder()
    for path in sorted(folder.rglob("*.yaml")) if folder is not None else ():
        if (conf_dir() / path.relative_to(folder)).exists():
            raise UserError(f"{path}: lra has an option of this name; give it another one")


def options(group: str) -> list[str]:
    """Our options of a config group, in alphabetical order."""
    rows = systems(group) if group in SYSTEMS else ()
    return sorted([*rows, *(path.stem for path in (conf_dir() / group).glob("*.yaml"))])


def groups(config_name: str) -> list[str]:
    """The config groups of a command; none where its file is not one of ours."""
    path = conf_dir() / f"{config_name}.yaml"
    defaults = yaml.safe_load(path.read_text())["defaults"] if path.exists() else []
    keys = [key for default in defaults if isinstance(default, dict) for key in default]
    return sorted(key for key in keys if not key.startswith(("override ", "optional ")))


def help_page(config_name: str) -> str:
    """The `--help` of a command. Hydra's own would compose a configuration and list the groups of all commands."""
    content = yaml.safe_load((conf_dir() / f"{config_name}.yaml").read_text())["hydra"]["help"]
    own = user_options_folder()
    lines = []
    for group in groups(config_name):
        names = [*options(group), *(f"other/{name}" for name in (options("system/other") if group == "system" else ()))]
        names += sorted(path.stem for path in (own / group).glob("*.yaml")) if own is not None else []
        lines.append(f"{group}: {', '.join(names)}\n")
    text = content["template"].replace("${hydra.help.header}", content["header"])
    return text.replace("$APP_CONFIG_GROUPS", "".join(lines))


@cache
def systems(group: str) -> dict[str, dict[str, str]]:
    """The rows of a table of `SYSTEMS` that can be trained, by option."""
    rows = yaml.safe_load(SYSTEMS[group]().read_text())["systems"]
    return {row["option"]: row for row in rows if "option" in row}
