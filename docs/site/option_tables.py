"""Tables of options: values and comments from YAML files, types from the signatures of classes."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from lra.core.paths import conf_dir

SETTING = re.compile(r"^ *(?P<key>\w+):[^#]*(?:# *(?P<says>.*))?$")
CONTINUED = re.compile(r"^ {8,}# *(?P<says>.*)$")
BOUNDS = {Gt: ("above", "gt"), Ge: ("at least", "ge"), Lt: ("below", "lt"), Le: ("at most", "le")}


def table(group: str, name: str, node: dict[str, Any]) -> Iterator[str]:
    """Yield lines of Markdown; `node` is the section of the composed configuration, with its `_target_`."""
    settings = {key: value for key, value in node.items() if not key.startswith("_")}
    if not settings:
        yield "None."
        return
    says, types = _comments(group, name), _types(node["_target_"])
    yield "| option | default | type | meaning |"
    yield "|---|---|---|---|"
    for key, value in settings.items():
        meaning = "" if set(re.findall(r"\w+", says.get(key, ""))) <= set(re.findall(r"\w+", types[key])) else says[key]
        yield f"| `{group}.{key}` | `{_said(value)}` | {types[key]} | {_cell(meaning)} |"


def introduction(group: str, name: str) -> str:
    """Return the comment at the head of an option's file, without its commands."""
    head: list[str] = []
    for line in (conf_dir() / group / f"{name}.yaml").read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @package", "#  ")):
            head.append(line.removeprefix("#").strip())
    return " ".join(head)


def _comments(group: str, name: str) -> dict[str, str]:
    """Return the comment of each key."""
    comments: dict[str, str] = {}
    key = ""
    for line in (conf_dir() / group / f"{name}.yaml").read_text().splitlines():
        if further := CONTINUED.match(line):
            comments[key] = f"{comments[key]}; {further['says']}"
        elif setting := SETTING.match(line):
            key = setting["key"]
            comments[key] = setting["says"] or ""
    return comments


def _types(target: str) -> dict[str, str]:
    module, _, name = target.rpartition(".")
    parameters = signature(getattr(import_module(module), name)).parameters.values()
    return {given.name: _type(given.annotation) for given in parameters if given.kind is Parameter.KEYWORD_ONLY}


def _type(hint: Any) -> str:
    """Return a type in words, with its bounds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is NoneType:
        return "`null`"
    if origin is Annotated:
        metadata = [bound for each in arguments[1:] for bound in getattr(each, "metadata", [each])]
        bounds = [(bound, *BOUNDS[type(bound)]) for bound in metadata if type(bound) in BOUNDS]
        words = [f"{said} {getattr(bound, name)}" for bound, said, name in bounds]
        return " ".join([_type(arguments[0]), ", ".join(words)]).strip()
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is not None:
        return f"{origin.__name__} of {', '.join(map(_type, arguments))}"
    return hint.__name__


def _said(value: Any) -> str:
    """Return a value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[")
