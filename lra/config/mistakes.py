"""Turn errors of Hydra and OmegaConf into one-line messages about a mistake in a command line or an option file."""

import re
from collections.abc import Iterable

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.config.compose import compose, groups, hydra_options, options
from lra.config.configure import dotted, first_line, shown
from lra.core.errors import UserError, did_you_mean
from lra.core.paths import USER_OPTIONS

NO_OPTION = "Config group override must be a string"  # message of Hydra's ValueError for task=null
OWN_GROUPS = ("attention", "task", "experiment")  # config groups to which lra_options may add options
NO_LIST = "Invalid defaults list in"  # start of Hydra's message for an invalid defaults list


def is_mistake(error: BaseException) -> bool:
    """Return True if an error of Hydra, OmegaConf or lra is a mistake in the command line or in an option file."""
    known = (UserError, HydraException, OmegaConfBaseException, yaml.YAMLError)
    return isinstance(error, known) or str(error).startswith((NO_OPTION, NO_LIST))


def explain(error: Exception, config_name: str, overrides: Iterable[str]) -> str:
    """Return a one-line message for an error of a composition for which `is_mistake` is True."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        assert mark is not None  # PyYAML sets a mark in every MarkedYAMLError
        return f"{shown(mark.name)}, line {mark.line + 1}: {error.problem or error.context}"
    message = first_line(error)
    if isinstance(error, MissingConfigException) and error.options is not None:  # such as attention=simpel
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group == "hydra/sweeper/sampler" and not error.options:
            return "hydra/sweeper=optuna: not installed; pip install hydra-optuna-sweeper"
        inner = group.partition("/")[2]
        if not error.options and inner:
            return f"{group}={name}: no such option; in a defaults list write `- /{inner}: {name}`, with a slash"
        own = group in OWN_GROUPS and not USER_OPTIONS.is_dir()
        where = f" (your own options are read from the folder {USER_OPTIONS}, which does not exist here)" if own else ""
        return f"{group}={name}: no such option; {did_you_mean(name, error.options)}{where}"
    if isinstance(error, ConfigCompositionException):
        # Such as train.lrr=1. Only the message contains the key; the error has no attribute for it.
        key = re.search(r"Could not override '([^'@]+)", str(error)) or re.search(r"Key '(.+?)' is not", str(error))
        if key:
            group = "/".join(key[1].split(".")[:2])
            choices = [f"{group}={name}" for name in hydra_options(group)]
            having = [choice for choice in choices if _has(config_name, choice, key[1])]
            if having:  # such as hydra.launcher.n_jobs=2 without hydra/launcher=joblib
                return f"{key[1]}: a key of {' and '.join(having)}; choose this option, or omit the key"
            return f"{key[1]}: unknown key; {did_you_mean(key[1], _known_keys(config_name, overrides))}"
    if isinstance(error, OverrideParseException):  # such as train.lr
        return f"{error.override}: expected key=value"
    if chosen := re.match(r"Multiple values for ([\w/]+)\.", message):
        return f"+{chosen[1]}=...: the configuration already has this group; write {chosen[1]}=... without the plus"
    if message.startswith("Ambiguous value"):  # such as seed=1,2
        return f"{message}: several values are a sweep (--multirun), a list is written key=[a,b], a text \"key='a,b'\""
    if removed := re.match(r"Error resolving interpolation '.*?\$\{(\w+)\}", message):  # such as ~size
        group = removed[1]
        return f"{group}: other options depend on it, so it cannot be removed; choose {' | '.join(options(group))}"
    if message.startswith(NO_OPTION):  # such as task=7
        named = {*groups(config_name), "recipe", "hydra/launcher", "hydra/sweeper"}
        words = [word for word in overrides if "=" in word and word.partition("=")[0] in named]
        parsed = OverridesParser.create().parse_overrides(words)
        wrong = [each.input_line for each in parsed if isinstance(each.value(), int | float | None)]
        return f"{', '.join(wrong) or message}: expected the name of an option"
    return message


def _has(config_name: str, choice: str, key: str) -> bool:
    """Return True if a configuration composed with the override `choice` has a key."""
    try:
        cfg = compose(config_name, choice)
    except (HydraException, OmegaConfBaseException):  # the option belongs to a plugin that is not installed
        return False
    return key in [name for name, _ in dotted(OmegaConf.to_container(cfg, resolve=False))]


def _known_keys(config_name: str, overrides: Iterable[str]) -> list[str]:
    """Return the config groups and keys of a configuration, or of the default one if `overrides` cannot be composed."""
    chosen = groups(config_name)
    choices = [word for word in overrides if word.partition("=")[0] in chosen or word.startswith("hydra/")]
    # Only the choices are composed again: they decide which keys exist, and another override may hold the mistake.
    try:
        cfg = compose(config_name, *choices)
    except (UserError, HydraException, OmegaConfBaseException):
        cfg = compose(config_name)
    keys = [key for key, _ in dotted(OmegaConf.to_container(cfg, resolve=False))]
    return [*chosen, *keys]
