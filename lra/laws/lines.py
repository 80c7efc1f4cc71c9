"""Which line of a user's file did it."""

import ast
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

METHODS = ("attend", "forward")


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}, line {self.number}"


class Watch(TorchFunctionMode):
    """Remembers the first line of `file` whose call of torch makes `seen` true, which gets its arguments and its
    result; a context manager."""

    def __init__(self, file: str, seen: Callable[[Any, list[Any], Any], bool]) -> None:
        super().__init__()
        self.file, self.seen = file, seen
        self.line: Line | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.line is None:
            with_values = [*args, *(kwargs or {}).values()]
            if self.seen(func, with_values, result):
                self.line = _caller(self.file)
        return result


def _caller(file: str) -> Line | None:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return None if frame is None else Line(file, frame.f_lineno)


def file_of(kind: type) -> str:
    """Where a class is defined; nothing where it was made without a file."""
    for value in vars(kind).values():
        if inspect.isfunction(value):
            return value.__code__.co_filename
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):
        return ""


def of_error(error: BaseException, file: str) -> Line | None:
    """The last line of the file in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if frame.filename == file and frame.lineno]
    return Line(file, numbers[-1]) if numbers else None


def of_result(kind: type) -> Line | None:
    """Where the class returns what it computes."""
    for tree in _own(kind, METHODS):
        returns = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)]
        return Line(file_of(kind), max(returns)) if returns else None
    return None


def of_method(kind: type, methods: tuple[str, ...] = METHODS) -> Line | None:
    """Where the first of these methods begins that the class itself has."""
    return next((Line(file_of(kind), tree.lineno) for tree in _own(kind, methods)), None)


def of_attribute(kind: type, name: str) -> Line | None:
    """Where the class assigns to self.NAME last."""
    for tree in _own(kind, tuple(vars(kind))):
        assigned = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        ]
        if assigned:
            return Line(file_of(kind), assigned[-1])
    return None


def reads(kind: type, argument: str) -> bool:
    """Whether the methods of the class use the name anywhere."""
    trees = _own(kind, METHODS)
    return any(isinstance(node, ast.Name) and node.id == argument for tree in trees for node in ast.walk(tree))


def _own(kind: type, methods: tuple[str, ...]) -> list[ast.AST]:
    """The parsed sources of the methods that the class itself defines, with the line numbers of its file."""
    trees = []
    for name in methods:
        method = vars(kind).get(name)
        method = method.fget if isinstance(method, property) else method
        if not inspect.isfunction(method):
            continue
        try:
            lines, first = inspect.getsourcelines(method)
            tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        except (OSError, SyntaxError):
            continue
        trees.append(ast.increment_lineno(tree, first - 1))
    return trees
