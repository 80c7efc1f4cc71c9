"""Check values with pydantic against the fields of a dataclass or the parameters of a constructor.

An error message is one line: key, value found, what was expected, and the most similar name for an unknown key.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, isclass, signature
from typing import Any, NotRequired, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from lra.core.errors import UserError, did_you_mean

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # types of pydantic errors for unknown keys
Kind = TypeVar("Kind")
Path = tuple[str, ...]


def parsed(kind: type[Kind], values: Mapping[str, Any], where: str = "") -> Kind:
    """Return an instance of the pydantic dataclass `kind`, with nested dataclasses, from plain values.

    A UserError for an invalid value names its key, prefixed by `where`.
    """
    adapter = TypeAdapter(kind)
    # Strict pydantic converts a dictionary to a nested dataclass only when it validates JSON.
    return _validated(lambda given: adapter.validate_json(json.dumps(given)), values, where)


def check(target: Callable, values: Mapping[str, Any], where: str, supplied: int = 0) -> None:
    """Raise UserError if `values` do not match the parameters of `target` that follow the first `supplied` ones."""
    parameters = dict(list(signature(target).parameters.items())[supplied:])
    hints = get_type_hints(target.__init__ if isclass(target) else target, include_extras=True)
    fields = {
        name: hints.get(name, Any) if parameter.default is Parameter.empty else NotRequired[hints.get(name, Any)]
        for name, parameter in parameters.items()
    }
    _check(fields, values, where)


def check_value(hint: Any, value: Any, key: str) -> None:
    """Raise a UserError that names `key` if `value` is not of the type `hint`."""
    parent, dot, name = key.rpartition(".")
    _check({name: hint}, {name: value}, parent + dot)


def _check(fields: dict[str, Any], values: Mapping[str, Any], where: str) -> None:
    # Use a TypedDict, because it reports unknown and missing keys, as the dataclasses of sections do.
    options = with_config(STRICT)(TypedDict("options", fields))  # type: ignore[misc, operator]
    _validated(TypeAdapter(options).validate_python, values, where, fields)


def _validated(
    validate: Callable[[Mapping[str, Any]], Kind], values: Mapping[str, Any], where: str, names: Iterable[str] = ()
) -> Kind:
    try:
        return validate(values)
    except ValidationError as error:
        raise UserError(_mistake(error, validate, values, where, names)) from None


def _mistake(
    error: ValidationError, validate: Callable, values: Mapping[str, Any], where: str, names: Iterable[str]
) -> str:
    """Return the message for the first unknown key, else the first missing key, else the first wrong value."""
    found: dict[Path, list[Any]] = defaultdict(list)
    for each in error.errors(include_url=False):
        found[_path(each, values)].append(each)
    unknown = {path for path, (first, *_) in found.items() if first["type"] in UNKNOWN}
    missing = {path for path, (first, *_) in found.items() if first["type"].startswith("missing")}
    # A misspelt key gives two errors, an unknown and a missing key. The user typed the unknown one, so report that.
    path = min(found, key=lambda path: 0 if path in unknown else 1 if path in missing else 2)
    key = where + ".".join(path)
    if path in unknown:  # known keys: given, missing and, since parameters may have defaults, `names`
        beside = {(*path[:-1], str(name)) for name in _at(values, path[:-1])} | missing
        siblings = [other[-1] for other in beside - unknown if other[:-1] == path[:-1]]
        return f"{key}: unknown key; {did_you_mean(path[-1], [*siblings, *(() if path[:-1] else names)])}"
    if path in missing:
        return f"{key}: missing; set {key}=..."
    value, errors = _at(values, path), found[path]
    # A validator of a section begins its message with the key inside the section.
    if isinstance(value, Mapping) and errors[0]["type"] == "value_error":
        return f"{key}{'.' if path else ''}{_expected(errors[0])}"
    expected = " or ".join(dict.fromkeys(map(_expected, errors)))  # a union has an error for each member
    if _takes_null(validate, values, path):
        expected += ", or null"
    # OmegaConf's resolver oc.env gives texts, so a number from the environment is the likely cause.
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value, re.IGNORECASE):
        expected += f", found the text {value!r}; for an environment variable write ${{oc.decode:${{oc.env:NAME}}}}"
    if any(each["type"] == "string_type" for each in errors):
        expected += f"; to pass a number as text, quote it twice: {key}=\"'{value}'\""
    return f"{key}={value}: {expected}"


def _path(error: Any, values: Any) -> Path:
    """Return the keys that lead to an error, without list indices and union members."""
    path: Path = ()
    for name in error["loc"]:
        if not isinstance(values, Mapping) or (name not in values and not error["type"].startswith("missing")):
            break
        path, values = (*path, str(name)), values.get(name)
    return path


def _at(values: Any, path: Path) -> Any:
    for name in path:
        values = values[name]
    return values


def _takes_null(validate: Callable, values: Mapping[str, Any], path: Path) -> bool:
    """Return True if None is a valid value at `path`."""

    def replaced(part: Any, path: Path) -> Any:
        return {**part, path[0]: replaced(part[path[0]], path[1:])} if path else None

    try:
        validate(replaced(values, path))
    except ValidationError as error:
        return path not in [_path(each, replaced(values, path)) for each in error.errors()]
    return True


def _expected(error: Any) -> str:
    """Return the message of a pydantic error in simpler words, with a suggestion for values that are nearly right."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("valid array", "valid list")
    message = message.replace("should be an object", "should be a section, {key: value}")  # "object" is JSON's word
    kind, value = error["type"], error["input"]
    if kind == "greater_than" and isinstance(error["ctx"]["gt"], int):
        return f"should be at least {error['ctx']['gt'] + 1}"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"{message}, as {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return f"{message}, without quotes"
    return message
