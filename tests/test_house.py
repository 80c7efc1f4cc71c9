"""The plan of the house, held against the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
from support import options

from lra.core.paths import PACKAGE, conf_dir

FILES = sorted(path for path in PACKAGE.rglob("*.py"))

# From the ground up. A package imports from floors below its own, and nothing else of `lra`.
FLOORS = (
    {"core"},
    {"config", "data", "ops", "records"},
    {"attention", "report", "tasks"},
    {"laws", "model"},
    {"init", "training"},
    {"runs"},
    {"bench", "tools"},
    {"cli"},
    {"__main__", "api"},
)
HYDRA = {"config", "runs", "tools", "bench", "cli", "api"}  # who may know Hydra
NO_TORCH = {
    "report",
    "records",
    "data",
    "tasks",
    "config",
    "cli",
}  # what starts quickly imports no torch when it is imported
SLOW = {  # libraries that take a tenth of a second or more to import
    "datasets", "huggingface_hub", "matplotlib", "pandas", "PIL", "pyarrow", "safetensors", "scipy", "sklearn",
    "filelock", "rich", "tensorboard", "tokenizers", "torch", "wandb", "jinja2", "markupsafe", "markdown_it",
}  # fmt: skip
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 600, 50
VAGUE = {"found", "one", "own"}  # as names of variables and parameters


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def floor(package: str) -> int:
    return next(number for number, packages in enumerate(FLOORS) if package in packages)


def test_imports_only_go_down() -> None:
    for path in FILES:
        package = room(path)
        if package == "__init__":
            continue
        imported = {name.split(".")[1] for name in imports(path) if name.startswith("lra.")} - {package}
        assert all(floor(other) < floor(package) for other in imported), (path, imported)
        assert not any(isinstance(node, ast.ImportFrom) and node.module == "lra" for node in ast.walk(tree(path))), path
        libraries = {name.split(".")[0] for name in imports(path)}
        assert package in HYDRA or not libraries & {"hydra", "omegaconf"}, path
        assert package not in NO_TORCH or "torch" not in at_import(path), path


ROOMS = ("read", "statistics", "render", "__init__", "check")
"""Of `lra.report`, from the ground up; its door puts together what they give."""


def test_rooms_of_the_report_import_only_down() -> None:
    for path in sorted((PACKAGE / "report").rglob("*.py")):
        room_of_it = path.relative_to(PACKAGE / "report").with_suffix("").parts[0]
        parts = {name.split(".")[2] for name in imports(path) if name.startswith("lra.report.")}
        imported = {part if part in ROOMS else "__init__" for part in parts}
        assert all(ROOMS.index(other) <= ROOMS.index(room_of_it) for other in imported), (path, imported)


def test_no_module_imports_itself_by_others() -> None:
    """The graph of imports has no circle, whether they stand at the head, in functions or for the type checker."""
    graph = {}
    for path in FILES:
        module = ".".join(("lra", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        graph[module] = {known for name in imports(path) if (known := module_of(name)) and known != module}
    assert circle(graph) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph; empty where it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def module_of(name: str) -> str | None:
    """The module of `lra` that a name is, or stands in."""
    for module in (name, name.rpartition(".")[0]):
        if module.startswith("lra.") and file_of(module):
            return module
    return None


def at_import(path: Path) -> set[str]:
    """The libraries that importing a module imports: not those that a function, or only a type checker, asks for."""
    libraries = set()
    nodes = list(tree(path).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            libraries |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            libraries.add(node.module.split(".")[0])
        elif not isinstance(node, ast.FunctionDef) and ast.unparse(getattr(node, "test", node)) != "TYPE_CHECKING":
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return libraries


def file_of(module: str) -> Path | None:
    """The file of a module of `lra`; None where the name is not a module's."""
    base = PACKAGE.parent.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


@cache
def slow(module: str) -> bool:
    """Whether importing a module of `lra` imports a slow library, by whatever way."""
    waiting, imported = [module], set()
    while waiting:
        name = waiting.pop()
        if name.split(".")[0] in SLOW:
            return True
        path = file_of(name) if name.startswith("lra.") else None
        if path is not None and name not in imported:
            imported.add(name)
            waiting += [other for node in tree(path).body for other in modules(node)]
    return False


def modules(statement: ast.stmt) -> set[str]:
    """The modules that a statement imports, and the names that it takes from them; none where it imports nothing."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if isinstance(statement, ast.ImportFrom):
        return {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return set()


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in FILES:
        yield from ((path, node) for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def test_functions_import_only_what_is_slow() -> None:
    """All else stands at the head of the file; this is what keeps --help quick."""
    for path, function in functions():
        for statement in (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)):
            known = any({name, name.split(".")[0]} & SLOW or slow(name) for name in modules(statement))
            assert known, (path, ast.unparse(statement))


def test_files_and_functions_are_short() -> None:
    assert [path for path in FILES if len(path.read_text().splitlines()) > LINES_OF_A_FILE] == []
    lengths = [(path, node.name, node.end_lineno - node.lineno) for path, node in functions()]
    assert [function for function in lengths if function[2] >= LINES_OF_A_FUNCTION] == []


def test_locals_say_what_they_hold() -> None:
    beside = [path for name in ("tests", "scripts", "docs") for path in (PACKAGE.parent / name).rglob("*.py")]
    for path in [*FILES, *beside]:
        functions_of_file = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
        for node in (node for function in functions_of_file for node in ast.walk(function)):
            assert not (isinstance(node, ast.Name) and node.id in VAGUE), (path, node.lineno)
            assert not (isinstance(node, ast.arg) and node.arg in VAGUE), (path, node.lineno)


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_yaml_owns_the_defaults() -> None:
    """Parameters that YAML sets have no second default in Python, and nothing swallows unknown names."""
    for path, node in functions():
        if node.name == "__init__":
            assert node.args.kwarg is None, f"{path.name}: **{node.args.kwarg.arg}"
            assert not any(node.args.kw_defaults), f"{path.name}: a keyword of a constructor has a default"


@pytest.mark.parametrize("name", options("task"))
def test_yaml_owns_the_defaults_of_tasks_whose_options_are_fields(name: str) -> None:
    target = re.search(r"_target_: (lra\.tasks\.\S+)\.(\w+)", (conf_dir() / "task" / f"{name}.yaml").read_text())
    if target:
        parameters = signature(getattr(import_module(target[1]), target[2])).parameters.values()
        assert all(
            parameter.default is Parameter.empty and parameter.kind is Parameter.KEYWORD_ONLY
            for parameter in parameters
        )


def rooms(package: str) -> set[str]:
    """The files and folders of a package, but the door."""
    names = {
        path.stem for path in (PACKAGE / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return names - {"__init__"}


def modules_of(group: str, package: str) -> dict[str, str]:
    """By option of ours, the module of `package` that it names; those that derive from another name none."""
    texts = {name: (conf_dir() / group / f"{name}.yaml").read_text() for name in options(group)}
    named = {
        name: re.search(rf"^ *_target_: lra\.{package}\.(\w+)", text, re.MULTILINE) for name, text in texts.items()
    }
    return {name: match[1] for name, match in named.items() if match}


def test_every_attention_has_a_file_of_its_own_and_nothing_else_is_there() -> None:
    targets = modules_of("attention", "attention")
    assert {option for option in options("attention") if not option.endswith("_lra_released")} == targets.keys()
    assert all(option == module for option, module in targets.items())
    assert targets.keys() == rooms("attention")


def test_every_task_has_a_file_or_a_folder_of_its_own_and_nothing_else_is_there() -> None:
    assert set(modules_of("task", "tasks").values()) == rooms("tasks")


def test_nothing_names_this_machine() -> None:
    """No absolute path in what is published."""
    top = PACKAGE.parent
    home = f"{Path.home()}/"
    for path in [*FILES, *conf_dir().rglob("*.yaml"), *(top / "results").rglob("*.md"), *top.glob("*.md")]:
        text = path.read_text()
        assert f"{top}/" not in text, path
        assert home == "//" or home not in text, path


@pytest.mark.parametrize("path", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_says_first_what_it_asks(path: Path) -> None:
    """Its purpose, its size where that is not the whole, and the question."""
    head, question, *_ = path.read_text().splitlines()
    assert head == "# @package _global_"
    purpose = r"# (Paper|Benchmark|Study|Smoke)(, (small|narrow|begun|in minutes))?: "
    assert re.fullmatch(purpose + r"[^?]+[?.]", question)
