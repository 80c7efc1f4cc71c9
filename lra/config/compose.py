"""Compose configurations with Hydra from the options in conf/ and the user's lra_options/.

An option is a file GROUP/NAME.yaml, or an entry of a YAML table. Values that depend on several choices, such as
task and protocol, are in option files. Defaults lists choose a file by a resolver: `recipe@_global_: ${recipe_page:}`.
Values that depend on one choice use OmegaConf resolvers: `${by_task:{text:16, image:32}, 128}`.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import Container, DictConfig, OmegaConf

from lra.core.errors import UserError
from lra.core.files import read_yaml
from lra.core.paths import USER_OPTIONS, conf_dir

HYDRA_VERSION = "1.3"
GLOBAL = "# @package _global_\n"  # first line of an option file that sets keys of the whole configuration
RECIPE = "recipe"  # config group; the defaults list of a task chooses from it with `- /recipe: NAME`
RELEASED = "_lra_released"  # if `by_attention` has no value for `NAME_lra_released`, it uses that of `NAME`
# No warning: conf/hydra/launcher/*.yaml extend the plugins' configurations of the same names on purpose.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")


class OptionSource(ConfigSource):
    """Plugin from which Hydra reads the options in conf/.

    It parses each file once in a process. Hydra's own source would parse the files again for each composition, and
    parsing takes a quarter of a composition's time. Hydra's ConfigStore could hold entries of tables, but each
    composition copies it.
    """

    @staticmethod
    def scheme() -> str:
        return "lra"

    def load_config(self, config_path: str) -> ConfigResult:
        config, package = _option(config_path.removesuffix(".yaml"))
        # Return a copy, because Hydra removes the defaults list and moves nodes of the configuration that it gets.
        return ConfigResult(self.provider, self.full_path(), deepcopy(config), header={"package": package})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in tables() or (conf_dir() / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        path = config_path.removesuffix(".yaml")
        group, _, name = path.rpartition("/")
        return name in tables().get(group, {}) or (conf_dir() / f"{path}.yaml").is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        below = f"{config_path}/".lstrip("/")
        groups = {group.removeprefix(below).split("/")[0] for group in tables() if group.startswith(below)}
        names = {ObjectType.CONFIG: options(config_path), ObjectType.GROUP: sorted(groups)}
        return names[results_filter] if results_filter in names else sorted({*groups, *names[ObjectType.CONFIG]})


@cache
def _option(path: str) -> tuple[Container, str | None]:
    """Return the content of the option GROUP/NAME and its package, the key below which Hydra merges it.

    The package None stands for the name of the group.
    """
    group, _, name = path.rpartition("/")
    if name in tables().get(group, {}):
        return OmegaConf.create(tables()[group][name]), "_global_"
    file = conf_dir() / f"{path}.yaml"
    return OmegaConf.load(file), "_global_" if file.read_text(encoding="utf-8").startswith(GLOBAL) else None


class SearchPath(SearchPathPlugin):
    """Plugin that prepends conf/ to Hydra's search path, and appends `lra_options` in the working directory."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.prepend("lra", "lra://conf")
        if USER_OPTIONS.is_dir():
            search_path.append("lra_options", f"file://{USER_OPTIONS.absolute()}")


def _choices(root: DictConfig) -> DictConfig:
    """Return the chosen options by config group, from the node `hydra` or, without this node, from Hydra itself."""
    return (root if "hydra" in root else HydraConfig.instance().cfg).hydra.runtime.choices


def _by(group: str) -> Callable[..., Any]:
    """Return the resolver `by_GROUP`: it looks up the chosen option in its first argument, else returns the second."""

    def value(table: dict[str, Any], *default: Any, _root_: DictConfig) -> Any:
        choices = _choices(_root_)
        chosen = choices.get(group)
        names = {"task": [chosen, choices.get(RECIPE)], "attention": [chosen, str(chosen).removesuffix(RELEASED)]}
        found = next((name for name in names.get(group, [chosen]) if name in table), None)
        if found is None and not default:
            remedy = "set it, or choose size=none or size=smoke" if choices.get("size") else "set it"
            raise UserError(f"no value for {group}={chosen}, only for {', '.join(map(str, table))}; {remedy}")
        result = default[0] if found is None else table[found]
        return OmegaConf.create(result) if isinstance(result, dict | list) else result  # a node, as `--resolve` expects

    return value


def _recipe_page(*, _root_: DictConfig) -> str:
    """Resolver `recipe_page`: return the option RECIPE/PROTOCOL, or RECIPE/paper if there is no file for the protocol.

    Defaults lists use this resolver; there, `_root_` has only the choices that Hydra has made so far.
    """
    recipe, protocol = _root_.get(RECIPE), _root_.get("protocol")
    pages = options(f"{RECIPE}/{recipe}")
    # if the recipe or the protocol is a user's, ask Hydra, which also searches lra_options
    if not pages or protocol not in options("protocol"):
        pages = GlobalHydra.instance().config_loader().get_group_options(f"{RECIPE}/{recipe}")
    return f"{recipe}/{protocol if protocol in pages else 'paper'}"


def set_up() -> None:
    """Register the plugins and resolvers of lra with Hydra."""
    for plugin in (OptionSource, SearchPath):
        Plugins.instance().register(plugin)  # at each call, because launchers may reset Hydra's plugins
    _register()  # after Hydra has imported its plugins, because `_register` replaces an option of the Optuna plugin


@cache
def _register() -> None:
    for group in ("task", "attention", "protocol"):
        OmegaConf.register_new_resolver(f"by_{group}", _by(group), replace=True)
    # Unlike oc.env, `env` takes the default also for an empty variable, as shells do with ${NAME:-DEFAULT}.
    OmegaConf.register_new_resolver("env", lambda name, default=None: os.environ.get(name) or default, replace=True)
    OmegaConf.register_new_resolver("choice", lambda group, *, _root_: _choices(_root_)[group], replace=True)
    OmegaConf.register_new_resolver("recipe_page", _recipe_page, replace=True)
    # Replace Optuna's schema in Hydra's store, because Hydra would check a file hydra/sweeper/optuna.yaml against it.
    ConfigStore.instance().store("optuna", read_yaml(conf_dir() / "optuna.yaml"), group="hydra/sweeper", provider="lra")


@cache  # Hydra asks for each group several times in a composition
def tables() -> dict[str, dict[str, Any]]:
    """Return the options that are entries of conf/tables/*, table1.yaml or systems.yaml, by config group and name."""
    groups: dict[str, dict[str, Any]] = {}
    for path in sorted((conf_dir() / "tables").glob("*.yaml")):
        for group, rows in read_yaml(path).items():
            groups.setdefault(group, {}).update(rows)
    for group, file in (("system", "table1"), ("system/other", "systems")):
        systems = [system for system in read_yaml(conf_dir() / f"{file}.yaml")["systems"] if "option" in system]
        groups[group] = {
            system["option"]: {"defaults": [{f"override /{key}": system[key]} for key in ("attention", "variant")]}
            for system in systems
        }
    return groups


def compose(config_name: str, *overrides: str) -> DictConfig:
    """Return the composed configuration of a command line, including the node `hydra`."""
    refuse_our_names()
    with _apart():
        return hydra.compose(config_name, overrides=list(overrides), return_hydra_config=True)


@contextmanager
def _apart() -> Iterator[None]:
    """Context manager in which Hydra composes from conf/, apart from a running Hydra application, if there is one."""
    set_up()
    application = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()  # Hydra refuses a second application in a process
    try:
        with hydra.initialize_config_dir(version_base=HYDRA_VERSION, config_dir=str(conf_dir())):
            yield
    finally:
        GlobalHydra.instance().hydra = application


def refuse_our_names() -> None:
    """Raise UserError if an option in `lra_options` has the name of an option in conf/, which would hide it."""
    for path in sorted(USER_OPTIONS.rglob("*.yaml")):
        if path.stem in options(path.parent.relative_to(USER_OPTIONS).as_posix()):
            raise UserError(f"{path}: lra has an option of this name; rename the file")


def options(group: str, folder: Path | None = None) -> list[str]:
    """Return the sorted names of the options of a config group: those of lra, or those in `folder` if it is given."""
    rows = tables().get(group, {}) if folder is None else {}
    return sorted([*rows, *(path.stem for path in ((folder or conf_dir()) / group).glob("*.yaml"))])


def hydra_options(group: str) -> list[str]:
    """Return the options of `hydra/sweeper` or `hydra/launcher`, including those of plugins; empty for other groups."""
    if group not in ("hydra/sweeper", "hydra/launcher"):
        return []
    with _apart():
        return GlobalHydra.instance().config_loader().get_group_options(group)


def groups(config_name: str) -> list[str]:
    """Return the config groups of a command; empty if its configuration file is not in conf/."""
    path = conf_dir() / f"{config_name}.yaml"
    defaults = read_yaml(path)["defaults"] if path.exists() else []
    keys = [key for default in defaults if isinstance(default, dict) for key in default]
    return sorted(key for key in keys if not key.startswith("override ") and "@" not in key)


def top_keys(config_name: str) -> set[str]:
    """Return the config groups and the top-level keys of a command's configuration."""
    path = conf_dir() / f"{config_name}.yaml"
    return {*groups(config_name), *(read_yaml(path) if path.exists() else {})} - {"defaults", "hydra"}


def help_page(config_name: str) -> str:
    """Return the text of a command's `--help`.

    Hydra's own help is not used: it composes a configuration, and lists the config groups of all commands.
    """
    content = read_yaml(conf_dir() / f"{config_name}.yaml")["hydra"]["help"]
    lines = []
    for group in groups(config_name):
        other = [f"other/{name}" for name in options("system/other")] if group == "system" else []
        lines.append(f"{group}: {', '.join([*options(group), *other, *options(group, USER_OPTIONS)])}\n")
    text = content["template"].replace("${hydra.help.header}", content["header"])
    return text.replace("$APP_CONFIG_GROUPS", "".join(lines))


def as_value(text: str) -> str:
    """Return a text quoted as a value for Hydra's command line."""
    # Hydra's grammar: a quote is escaped, and backslashes before it are doubled.
    return "'" + re.sub(r"(\\*)'", r"\1\1\'", text) + "'"


def parseable(words: list[str]) -> list[str]:
    """Return command-line words; quote values that Hydra cannot parse otherwise, such as paths with an equal sign."""
    return [_parseable(word) if "=" in word and not word.startswith("-") else word for word in words]


def _parseable(word: str) -> str:
    key, _, value = word.partition("=")
    for text in (word, f"{key}={as_value(value)}"):
        with suppress(OverrideParseException):
            OverridesParser.create().parse_overrides([text])
            return text
    return word
