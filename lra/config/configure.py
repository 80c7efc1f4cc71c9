"""Convert a composed configuration to checked Python values. No other module resolves `_target_`.

The signature of a class is its schema: YAML sets the values, Python the names and types of keys. An unknown key, a
missing key and a value of the wrong type are errors that name the key.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import isclass, signature
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lra.config.values import check, parsed
from lra.core import code
from lra.core.errors import UserError

Part = TypeVar("Part")
FULL_ERROR = "HYDRA_FULL_ERROR=1 shows the traceback"


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain values, without the node `hydra`. Raises UserError for an unresolved value."""
    try:
        values: dict[str, Any] = {}
        for key in (key for key in cfg if key != "hydra"):
            node = cfg[key]
            is_node = OmegaConf.is_config(node)
            values[str(key)] = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if is_node else node
        return values
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: no value; set {error.full_key}=...") from None
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):  # a resolver may have raised a UserError
            cause = cause.__cause__ or cause.__context__
        raise UserError(f"{error.full_key}: {cause or first_line(error)}") from None


def part(kind: type[Part], cfg: DictConfig) -> Part:
    """Return an instance of the dataclass `kind`, with its fields read from a composed configuration and checked."""
    return parsed(kind, {key: value for key, value in plain(cfg).items() if key in signature(kind).parameters})


def refuse_untrusted(config: dict[str, Any], packages: Iterable[str]) -> None:
    """Raise UserError if the configuration of another user's run names code outside lra and the trusted `packages`."""
    for target in code.targets(config):
        if target.split(".")[0] not in ("lra", *packages):
            raise UserError(
                f"_target_={target}: not in a trusted package ({', '.join(['lra', *packages])}); name its package with "
                "packages=[...]"
            )


def build(node: dict[str, Any], where: str, supplied: int = 0, kind: type | None = None) -> Callable:
    """Return a `functools.partial` of the class that a node names in `_target_`, with the node's options as keywords.

    Args:
        node: options by name, and `_target_`, the dotted name of a class.
        where: key of the node, for messages.
        supplied: number of leading constructor arguments that the caller will pass.
        kind: class from which the target must derive.

    Raises:
        UserError: if the class cannot be found, or the options do not match its constructor.
    """
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise UserError(f"{where}: expected options with a _target_, got {node!r}")
    if node.get("_partial_", True) is not True:  # false asks Hydra for an object, but callers get a partial
        raise UserError(f"{where}._partial_={node['_partial_']}: expected true")
    name = f"{where}._target_={node['_target_']}"
    add_working_folder_to_path()
    module_name, _, attribute = node["_target_"].rpartition(".")
    with blamed(name, node):
        try:
            module = import_module(module_name or attribute)
        except ModuleNotFoundError as error:
            if not f"{node['_target_']}.".startswith(f"{error.name}."):
                raise  # the module exists, but a module that it imports does not
            raise UserError(
                f"{name}: there is no module {error.name!r}; is it in this folder, or in PYTHONPATH?"
            ) from None
        if not hasattr(module, attribute):
            raise UserError(f"{name}: {module_name} has no {attribute!r}")
        target = getattr(module, attribute)
    if not isclass(target) or (kind is not None and not issubclass(target, kind)):
        raise UserError(f"{name}: expected a class{f' derived from {kind.__module__}.{kind.__name__}' if kind else ''}")
    chosen = {key: value for key, value in node.items() if key not in ("_target_", "_partial_")}
    # Check the options here, before any data are read: the TypeError of a later call would name no key.
    check(target, chosen, f"{where}.", supplied)
    return partial(target, **chosen)


def add_working_folder_to_path() -> None:
    """Append the working directory to `sys.path`; as the last entry it hides no other module."""
    # Console scripts have their own folder on the path, `python -m lra` has the working directory.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


@contextmanager
def blamed(where: str, node: dict[str, Any]) -> Iterator[None]:
    """Context manager that turns an error in the code that `node` names into a UserError with key, file and line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        package = node["_target_"].split(".")[0]
        theirs = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if package != "lra" and frame.f_globals.get("__name__", "").split(".")[0] == package
        ]
        if isinstance(error, SyntaxError) and error.filename:  # no frame of the traceback shows its line
            theirs.append((error.filename, error.lineno or 0))
        if not theirs:  # a fault of lra or of a library keeps its traceback
            raise
        file, line = theirs[-1]  # the innermost frame of the user's code, which may have called a library
        raise UserError(
            f"{where}: {shown(file)}, line {line}: {type(error).__name__}: {first_line(error)} ({FULL_ERROR})"
        ) from error


def dotted(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of nested dictionaries, inner nodes included, with its value."""
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, and also the next one if the first ends with a colon.

    An error without a message is replaced by its cause or, without a cause, by the name of its class.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return first_line(error.__cause__) if error.__cause__ is not None else type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def shown(path: str | Path) -> Path:
    """Return a path relative to the working directory if it is inside that directory, else unchanged."""
    return Path(os.path.relpath(path)) if Path(path).is_relative_to(Path.cwd()) else Path(path)
