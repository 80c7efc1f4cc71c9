"""From a composed configuration to checked Python values; the only place where `_target_` is resolved.

The signature is the schema: YAML owns the values, Python owns the names and the types. A key that no parameter
takes, a missing one, or a value of the wrong type is an error that names the key.
"""

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import Parameter, isclass, signature
from typing import Any, get_type_hints

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError

from lra.errors import UserError, did_you_mean
from lra.paths import conf_dir

FAILED, CONFIG_ERROR, INTERRUPTED = 1, 2, 130
# Our conf/hydra/launcher/joblib.yaml is meant to complete the plugin's configuration of that name.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")


def command(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Make a console command of a function of the composed configuration; mistakes end in one line and exit code 2."""

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], None]:
        def main() -> None:
            program = f"lra-{config_name}"

            @wraps(function)
            def task(cfg: DictConfig) -> Any:
                try:
                    return function(cfg)
                except UserError as error:  # caught here, since Hydra would print a preface of its own
                    print(f"{program}: error: {error}", file=sys.stderr)
                    raise SystemExit(CONFIG_ERROR) from None

            debug = os.environ.get("HYDRA_FULL_ERROR")
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise, so that we can explain
            start = hydra.main(config_path=str(conf_dir()), config_name=config_name, version_base="1.3")
            try:
                start(task)()
            except KeyboardInterrupt:
                print(
                    f"\n{program}: interrupted; the same command again skips what is finished",
                    file=sys.stderr,
                )
                sys.exit(INTERRUPTED)
            except (UserError, HydraException, OmegaConfBaseException) as error:
                if debug:
                    traceback.print_exc()
                print(f"{program}: error: {explain(error, config_name)}", file=sys.stderr)
                sys.exit(CONFIG_ERROR)
            finally:
                os.environ.pop("HYDRA_FULL_ERROR")
                if debug:
                    os.environ["HYDRA_FULL_ERROR"] = debug

        return main

    return decorate


def compose(config_name: str, *overrides: str) -> DictConfig:
    """The configuration that a command line of these overrides gives."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(config_name, overrides=list(overrides))


def options(group: str) -> list[str]:
    """The options of a configuration group, in alphabetical order."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, interpolations resolved; a missing value is an error that names its key."""
    own = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    try:
        return OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: no value; set {error.full_key}=...") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {_first_line(error)}") from None


def check(target: Callable, values: dict[str, Any], where: str, supplied: int = 0) -> None:
    """Compare `values` with the parameters of `target` after the first `supplied`; `where` prefixes the keys."""
    parameters = list(signature(target).parameters.values())[supplied:]
    known = {parameter.name: parameter for parameter in parameters}
    for key in values:
        if key not in known:
            raise UserError(f"{where}{key}: unknown key; {did_you_mean(key, known)}")
    missing = [name for name, parameter in known.items() if parameter.default is Parameter.empty]
    for name in missing:
        if name not in values:
            raise UserError(f"{where}{name}: missing; set {where}{name}=...")
    hints = get_type_hints(target.__init__ if isclass(target) else target, include_extras=True)
    for key, value in values.items():
        _check_value(hints.get(key, Any), value, f"{where}{key}")


def _check_value(hint: Any, value: Any, key: str) -> None:
    try:
        TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        expected = message[0].lower() + message[1:]
        raise UserError(f"{key}={value}: {expected.replace('input should', 'should')}") from None


def build(node: dict[str, Any], where: str, packages: list[str], supplied: int = 0) -> Callable:
    """The partial that a node with `_target_` describes: the target with the node's options filled in.

    `supplied` is how many leading arguments the caller will give. Only targets in `lra` and in the packages that
    the user names are resolved.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        raise UserError(f"{where}: expected options with a _target_, got {node!r}")
    trusted = ["lra", *packages]
    if node["_target_"].split(".")[0] not in trusted:
        raise UserError(
            f"{where}._target_={node['_target_']}: not in a trusted package ({', '.join(trusted)}); "
            "name its package with packages=[...]"
        )
    try:
        target = hydra.utils.get_object(node["_target_"])
    except Exception as error:
        raise UserError(f"{where}._target_={node['_target_']}: {_first_line(error)}") from None
    home = getattr(target, "__module__", None) or ""
    if home.split(".")[0] not in trusted:  # reached through the imports of a trusted module
        raise UserError(f"{where}._target_={node['_target_']}: belongs to {home!r}, which is not trusted")
    options = {key: value for key, value in node.items() if key not in ("_target_", "_partial_")}
    check(target, options, f"{where}.", supplied)
    return hydra.utils.instantiate({**node, "_partial_": True, "_recursive_": False, "_convert_": "all"})


def explain(error: Exception, config_name: str) -> str:
    """One line for a mistake that Hydra or OmegaConf found."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: no such option; {did_you_mean(name, error.options)}"
    if isinstance(error, ConfigCompositionException):
        key = re.search(r"Could not override '([^'@]+)", str(error)) or re.search(r"Key '(.+?)' is not", str(error))
        if key:
            return f"{key[1]}: unknown key; {did_you_mean(key[1], _known_keys(config_name))}"
    message = _first_line(error)
    if message.startswith("Ambiguous value"):
        return f"{message}: several values are a sweep (--multirun), a list is written key=[a,b]"
    return message


def _known_keys(config_name: str) -> list[str]:
    """Groups and dotted keys of the default configuration."""
    cfg = compose(config_name)
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir()]
    return [*groups, *_dotted(OmegaConf.to_container(cfg, resolve=False), "")]


def _dotted(node: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _first_line(error: BaseException) -> str:
    """The first line of the message, or of what caused it where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines and error.__cause__ is not None:
        return _first_line(error.__cause__)
    return lines[0] if lines else type(error).__name__
