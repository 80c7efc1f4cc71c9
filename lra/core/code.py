"""Compute the SHA-256 of a user's code (attention, task or initial weights), which a run's configuration includes."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")  # names of folders with installed packages
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_loaded: dict[Path, tuple[ModuleSpec | None, str, list[str]]] = {}


def targets(node: Any) -> Iterator[str]:
    """Yield the value of every `_target_` in nested options."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "_target_":
            yield value
        yield from targets(value)


def fingerprints(*names: str) -> dict[str, str]:
    """Return the SHA-256 of each module that defines one of the dotted `names`, and of all modules that these import.

    Comments, blank lines and docstrings do not change it. Python, installed packages and lra itself are left out, since
    a record has their versions. Imports are read from the source, so the result does not depend on what else the
    process has imported. The SHA-256 of a loaded module is computed once, because the file may be edited while the
    process runs the old code.

    Returns:
        SHA-256 by path relative to the folder on Python's path, such as `mine.py` or `package/module.py`.
    """
    waiting, seen, found = [*names], set[str](), {}
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] in ("lra", *sys.stdlib_module_names):
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0] or name)
        path = _source(name)
        if path is not None:
            depth = name.count(".") + (path.stem == "__init__")
            sha256, imports = _read(name, path)
            found[Path(*path.parts[-depth - 1 :]).as_posix()] = sha256
            waiting += imports
    return dict(sorted(found.items()))


def _source(name: str) -> Path | None:
    """Return the file of a module; None if there is no such file, or it belongs to an installed package."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    root = Path(spec.origin or next(iter(spec.submodule_search_locations or ["."]))).parent
    root = root.parent if spec.origin and spec.submodule_search_locations is not None else root
    if {*root.parts} & {*INSTALLED} or any(root.glob("*.dist-info")):  # pip install --target writes *.dist-info
        return None
    folders = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    paths = [path for folder in folders for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py"))]
    if not rest:
        paths = [Path(spec.origin)] if spec.origin and spec.has_location else []
    return next((path for path in paths if path.is_file()), None)


def _read(name: str, path: Path) -> tuple[str, list[str]]:
    """Return the SHA-256 of a module's code and the dotted names of all modules and attributes that it imports."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if path not in _loaded or _loaded[path][0] is not spec:  # reloading a module gives it a new spec
        code, imports = path.read_bytes(), []
        with suppress(SyntaxError, ValueError):  # the import reports a syntax error; a compiled module has no source
            tree = ast.parse(code)
            imports = [*_imports(tree, name.split(".") if path.stem == "__init__" else name.split(".")[:-1])]
            for node in ast.walk(tree):
                if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
            code = ast.unparse(tree).encode()
        _loaded[path] = spec, hashlib.sha256(code).hexdigest(), imports
    return _loaded[path][1:]


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Yield the dotted names that a module imports; `package`: parts of its package's name, for relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
