"""SHA-256 of the source files of a user's attention, task or first weights, which are part of a run's configuration."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages
_loaded: dict[Path, tuple[ModuleSpec | None, str]] = {}


def targets(node: Any) -> Iterator[str]:
    """Yield every `_target_` in nested options."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "_target_":
            yield value
        yield from targets(value)


def fingerprints(*names: str) -> dict[str, str]:
    """Return the SHA-256 of the source files of dotted names and of all modules that they import.

    Python, installed packages and lra itself are left out: a record has their versions. Imports are read from the
    source, so the result does not depend on what else the process has imported. A module that is loaded keeps the
    SHA-256 of its first call: the file may be edited while the process runs the old code.

    Returns:
        SHA-256 by path below the folder that Python imports from, as `mine.py` or `package/module.py`.
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
            found[Path(*path.parts[-depth - 1 :]).as_posix()] = _sha256(name, path)
            waiting += _imports(name, path) if path.suffix == ".py" else ()
    return dict(sorted(found.items()))


def _source(name: str) -> Path | None:
    """Return the file of a module that is not installed; None if there is none."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    root = Path(spec.origin or next(iter(spec.submodule_search_locations or ["."]))).parent
    root = root.parent if spec.origin and spec.submodule_search_locations is not None else root
    if {*root.parts} & {*INSTALLED} or any(root.glob("*.dist-info")):  # the latter: of pip install --target
        return None
    folders = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    paths = [path for folder in folders for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py"))]
    if not rest:
        paths = [Path(spec.origin)] if spec.origin and spec.has_location else []
    return next((path for path in paths if path.is_file()), None)


def _sha256(name: str, path: Path) -> str:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if path not in _loaded or _loaded[path][0] is not spec:  # reloading a module gives it a new spec
        _loaded[path] = spec, hashlib.sha256(path.read_bytes()).hexdigest()
    return _loaded[path][1]


def _imports(name: str, path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, whether they are modules or not."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # importing it reports the error
        return
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
