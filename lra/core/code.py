"""Compute the SHA-256 of a user's code (attention, task or initial weights), to store it in a run's configuration."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef  # nodes that can have a docstring
# For each file: spec of its module (None if not loaded when the file was read), SHA-256 and imports of its code.
_loaded: dict[Path, tuple[ModuleSpec | None, str, list[str]]] = {}


def targets(node: Any) -> Iterator[str]:
    """Yield the value of every `_target_` in nested options."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "_target_":
            yield value
        yield from targets(value)


def fingerprints(*names: str) -> dict[str, str]:
    """Return the SHA-256 of each module that defines one of the dotted `names`, and of all modules that it needs.

    These are its packages and the modules that it imports, directly or through other modules.

    Comments, docstrings and blank lines do not change the result. Python, installed packages and lra itself are left
    out, because a record has their versions. Imports are read from the source, so the result does not depend on other
    modules that the process has imported. The SHA-256 of a loaded module is computed once, because the file may be
    edited while the process runs the old code.

    Returns:
        SHA-256 by path relative to the folder on Python's path, such as `mine.py` or `package/module.py`.
    """
    waiting, seen, found = [*names], set[str](), {}  # `seen`, because modules may import each other
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])  # also its package, or its module if `name` is an attribute of a module
        spec = _spec(name)
        # False for namespace packages and built-in modules, which have no file.
        if spec is not None and spec.origin is not None and spec.has_location:
            path = Path(spec.origin)
            depth = name.count(".") + (path.stem == "__init__")
            sha256, imports = _read(path, spec)
            found[Path(*path.parts[-depth - 1 :]).as_posix()] = sha256
            waiting += imports
    return dict(sorted(found.items()))


def _spec(name: str) -> ModuleSpec | None:
    """Return the spec of a user's module; None for modules of Python, lra and installed packages, or if not found."""
    top = name.partition(".")[0]
    if top in ("lra", *sys.stdlib_module_names):
        return None
    with suppress(ImportError, ValueError):
        spec = find_spec(top)  # `top` first: find_spec(name) would import the parents of an installed module
        if spec is not None:
            root = Path(next(iter(spec.submodule_search_locations or ()), None) or spec.origin or ".").parent
            return None if any(root.glob("*.dist-info")) else find_spec(name)  # pip adds one when it installs a package
    return None


def _read(path: Path, spec: ModuleSpec) -> tuple[str, list[str]]:
    """Return the SHA-256 of a module's code and the dotted names of all modules and attributes that it imports."""
    loaded = spec if spec.name in sys.modules else None
    # The file is read again after a reload, which gives the module a new spec.
    if path not in _loaded or _loaded[path][0] is not loaded:
        code, imports = path.read_bytes(), []
        # On an error, hash the raw bytes: a compiled module has no source to parse, and an error in a source file is
        # reported when the module is imported.
        with suppress(SyntaxError, ValueError, ImportError):
            tree = ast.parse(code)
            for node in ast.walk(tree):
                if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                    del node.body[0]
                elif isinstance(node, ast.Import):
                    imports += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    base = resolve_name("." * node.level + (node.module or ""), spec.parent)
                    imports += [f"{base}.{alias.name}" for alias in node.names]
            code = ast.unparse(tree).encode()
        _loaded[path] = loaded, hashlib.sha256(code).hexdigest(), imports
    return _loaded[path][1:]
