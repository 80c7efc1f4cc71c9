"""From files of options to one configuration: Hydra's composition, with sections by task and by attention, and with the
rows of Table 1, and further systems, as options of `system`."""

import copy
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lra.config.user_options import user_options_folder
from lra.core.errors import UserError, did_you_mean
from lra.core.paths import conf_dir, systems_file, table1_file

GROUPS = {"by_task": ("task", "task/recipe"), "by_attention": ("attention",), "by_protocol": ("protocol",)}
"""By the key that holds sections, whose options name them."""
SYSTEMS = {"system": table1_file, "system/other": systems_file}
"""By the group of their options, the file of the rows of Table 1, and of the systems that stand in none of them."""
OTHERS = "others"  # the section for options that have none of their own
# Our conf/hydra/launcher/joblib.yaml is meant to complete the plugin's configuration of that name.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")


def start(config_name: str, folder: Path | None = None, conf: str | None = None) -> Hydra:
    """Hydra for our groups and those of `folder`, a user's own, or else of the working folder; `conf` is taken in the
    place of ours."""
    GlobalHydra.instance().clear()
    hydra.version.setbase("1.3")
    _store_systems()
    path = create_config_search_path(conf or str(conf_dir()))
    user_folder = user_options_folder()
    if folder is None and user_folder is not None:
        _refuse_our_names(user_folder)
        folder = user_folder
    if folder is not None:
        path.prepend("command-line", f"file://{folder.absolute()}", anchor=SearchPathQuery(provider="schema"))
    engine = _Engine(config_name, Loader(path))
    GlobalHydra.instance().initialize(engine)
    return engine


@cache
def _store_systems() -> None:
    """Give Hydra the options of `system`, once: it keeps them."""
    for place in SYSTEMS:
        for option, row in systems(place).items():
            defaults = [{f"override /{group}": row[group]} for group in ("attention", "variant")]
            ConfigStore.instance().store(
                option, {"defaults": defaults}, group=place, package="_global_", provider="lra"
            )


def _refuse_our_names(user_folder: Path) -> None:
    """Raises UserError for an option of the working folder that has the name of one of ours: nobody chose it."""
    for path in sorted(user_folder.rglob("*.yaml")):
        if (conf_dir() / path.relative_to(user_folder)).exists():
            raise UserError(f"{path}: lra has an option of this name; give it another one")


def compose(config_name: str, *overrides: str, with_hydra: bool = False) -> DictConfig:
    """The configuration that a command line of these overrides gives; `with_hydra`: Hydra's own part included."""
    start(config_name)
    return hydra.compose(config_name, overrides=list(overrides), return_hydra_config=with_hydra)


def options(group: str) -> list[str]:
    """Our options of a configuration group, in alphabetical order."""
    rows = systems(group) if group in SYSTEMS else ()
    return sorted([*rows, *(path.stem for path in (conf_dir() / group).glob("*.yaml"))])


def groups(config_name: str) -> list[str]:
    """The names of the configuration groups from which a command chooses; none where its file is not one of ours."""
    path = conf_dir() / f"{config_name}.yaml"
    defaults = yaml.safe_load(path.read_text())["defaults"] if path.exists() else []
    keys = [key for default in defaults if isinstance(default, dict) for key in default]
    return sorted(key for key in keys if not key.startswith("override "))


class _Engine(Hydra):
    """Hydra's, whose --help lists the groups from which the command chooses and no others."""

    def __init__(self, config_name: str, loader: ConfigLoader) -> None:
        super().__init__(task_name=config_name, config_loader=loader)
        self.groups = groups(config_name)

    def list_all_config_groups(self, parent: str = "") -> Sequence[str]:
        every = super().list_all_config_groups(parent)
        return [group for group in every if not self.groups or group.partition("/")[0] in ("hydra", *self.groups)]


@cache
def systems(group: str) -> dict[str, dict[str, str]]:
    """The systems that can be run of a group of `SYSTEMS`, by their options."""
    rows = yaml.safe_load(SYSTEMS[group]().read_text())["systems"]
    return {row["option"]: row for row in rows if "option" in row}


class _Repository(ConfigRepository):
    """Hydra's, which Hydra copies before every composition and for every list of options. Only its list of sources is
    ever replaced, so the copy shares their content; copying that took half of the time of --help.

    A sweep composes each of its cells, so a file is parsed once, and again where it has changed."""

    _parsed: ClassVar[dict[tuple, ConfigResult | None]] = {}

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.asked: dict[str, tuple] = {}  # the files that were asked for, as they were then

    def __deepcopy__(self, memo: dict) -> "_Repository":
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """The same object each time, which nobody may change."""
        key = self.asked[config_path] = self.state(config_path)
        if not key:
            return super().load_config(config_path)
        if key not in self._parsed:
            self._parsed[key] = super().load_config(config_path)
        return self._parsed[key]

    def state(self, config_path: str) -> tuple:
        """What tells a file from what it was before; nothing where it is no file."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() not in ("file", "pkg"):
            return ()
        key: tuple = (source.path, config_path)
        if source.scheme() == "file":
            file = os.stat(os.path.join(source.path, f"{config_path.removesuffix('.yaml')}.yaml"))
            key += (file.st_ino, file.st_mtime_ns, file.st_size)
        return key


class Loader(ConfigLoaderImpl):
    """Hydra's, which reads of every file also the sections for what is chosen. What the same files give is composed
    once: the cells of a sweep differ in a few values."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)
        self._composed: dict[tuple, tuple[dict[str, tuple], DictConfig]] = {}

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Hydra's own composition where an override chooses a file or says something of Hydra, and then the others."""
        parsed = OverridesParser.create().parse_overrides(overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        elsewhere = any(override.key_or_group == "hydra.searchpath" for override in parsed)  # there may be other files
        values = [override for override in parsed if not elsewhere and self._is_value(override)]
        choices = [override.input_line for override in parsed if override not in values]
        key = (config_name, run_mode, os.getcwd(), *choices)
        files, composed = self._composed.get(key, ({}, None))
        if not files or any(self.repository.state(path) != state for path, state in files.items()):
            self.repository.asked = {}
            composed = super()._load_configuration_impl(config_name, choices, run_mode, from_shell, False)
            self._composed[key] = self.repository.asked, composed
        config = copy.deepcopy(composed)
        self._apply_overrides_to_config([override for override in values if not override.is_sweep_override()], config)
        told = [override for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in told]
        style = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(
            told, list(style.exclude_keys), style.item_sep, style.kv_sep
        )
        return config

    def _is_value(self, override: Override) -> bool:
        """Whether it says nothing of which files are read, nor of Hydra."""
        group = self.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
        return not (group or override.is_hydra_override())

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        return super()._compose_config_from_defaults_list(defaults, _Sections(repo, defaults))


class _Sections:
    """A repository of Hydra's whose files have no sections left: those for what is chosen are merged into the rest."""

    def __init__(self, repository: Any, defaults: list[ResultDefault]) -> None:
        self._repository = repository
        paths = [default.config_path for default in reversed(defaults)]  # an option stands behind what it derives from
        self._chosen = {
            key: [path.rpartition("/")[2] for path in paths if path.startswith(f"{group}/")]
            for key, (group, *_) in GROUPS.items()
        }

    def get_schema_source(self) -> ConfigSource:
        return self._repository.get_schema_source()

    def load_config(self, config_path: str) -> ConfigResult | None:
        result = copy.copy(self._repository.load_config(config_path))
        if result is not None:
            result.config = copy.deepcopy(result.config)  # since composing changes it
            if any(key in result.config for key in GROUPS):
                result.config = self._merged(result.config, f"{config_path}.yaml: ")
        return result

    def _merged(self, content: DictConfig, where: str) -> DictConfig:
        """`where` begins the message of a mistake: the file, and the keys around `content`."""
        for key in GROUPS:
            sections = content.pop(key, None)
            if sections is not None:
                name = self._section(key, sections, f"{where}{key}")
                content = OmegaConf.merge(content, self._merged(sections[name], f"{where}{key}.{name}."))
        return content

    def _section(self, key: str, sections: Any, where: str) -> str:
        """The name of the section that holds. Raises UserError where there is none, or one that nothing can choose."""
        group = GROUPS[key][0]
        known = {OTHERS}.union(*(self._repository.get_group_options(option) for option in GROUPS[key]))
        if not OmegaConf.is_dict(sections) or not all(OmegaConf.is_dict(section) for section in sections.values()):
            raise UserError(f"{where}: expected a mapping of settings for each {group}")
        for name in sections:
            if name not in known:
                raise UserError(f"{where}.{name}: there is no such {group}; {did_you_mean(str(name), sorted(known))}")
        chosen = self._chosen[key]
        name = next((name for name in [*chosen, OTHERS] if name in sections), None)
        if name is None:
            raise UserError(
                f"{where}: no settings for {group}={chosen[0] if chosen else None}; there are some for "
                f"{', '.join(sections)}"
            )
        return name
