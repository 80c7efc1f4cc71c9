"""The plan of the house, held against the code."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support import composed, options

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
    "tensorboard", "tokenizers", "torch", "wandb", "jinja2", "markupsafe", "markdown_it", "rich.markdown",
}  # fmt: skip
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 600, 50


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def floor(package: str) -> int:
    return next(number for number, packages in enumerate(FLOORS) if package in packages)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_only_go_down(path: Path) -> None:
    package = room(path)
    if package == "__init__":
        return
    imported = {name.split(".")[1] for name in imports(path) if name.startswith("lra.")} - {"__version__", package}
    assert all(floor(other) < floor(package) for other in imported), imported
    libraries = {name.split(".")[0] for name in imports(path)}
    if package not in HYDRA:
        assert not libraries & {"hydra", "omegaconf"}
    if package in NO_TORCH:
        assert "torch" not in at_import(path)


ROOMS = ("read", "statistics", "render", "report", "check")
"""Of `lra.report`, from the ground up."""


@pytest.mark.parametrize("path", sorted((PACKAGE / "report").rglob("*.py")), ids=lambda path: path.stem)
def test_rooms_of_the_report_import_only_down(path: Path) -> None:
    room_of_it = path.relative_to(PACKAGE / "report").with_suffix("").parts[0]
    if room_of_it == "__init__":
        return
    imported = {name.split(".")[2] for name in imports(path) if name.startswith("lra.report.")}
    assert all(ROOMS.index(other) <= ROOMS.index(room_of_it) for other in imported), imported


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
    found = set()
    nodes = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
        elif not isinstance(node, ast.FunctionDef) and ast.unparse(getattr(node, "test", node)) != "TYPE_CHECKING":
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


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
            waiting += [other for node in ast.parse(path.read_text()).body for other in modules(node)]
    return False


def modules(statement: ast.stmt) -> set[str]:
    """The modules that a statement imports, and the names that it takes from them; none where it imports nothing."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if isinstance(statement, ast.ImportFrom):
        return {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_functions_import_only_what_is_slow(path: Path) -> None:
    """All else stands at the head of the file; this is what keeps --help quick."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    inside = [node for function in functions for node in ast.walk(function)]
    for statement in (node for node in inside if isinstance(node, ast.Import | ast.ImportFrom)):
        known = any({name, name.split(".")[0]} & SLOW or slow(name) for name in modules(statement))
        assert known, ast.unparse(statement)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_OF_A_FILE
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LINES_OF_A_FUNCTION
    ]
    assert not long


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_yaml_owns_the_defaults(path: Path) -> None:
    """Parameters that YAML sets have no second default in Python, and nothing swallows unknown names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            assert node.args.kwarg is None, f"{path.name}: **{node.args.kwarg.arg}"
            assert not any(node.args.kw_defaults), f"{path.name}: a keyword of a constructor has a default"


def rooms(package: str) -> set[str]:
    """The files and folders of a package, but the door."""
    names = {
        path.stem for path in (PACKAGE / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return names - {"__init__"}


def test_every_attention_has_a_file_of_its_own_and_nothing_else_is_there() -> None:
    files = set()
    for name in options("attention"):
        file = composed(f"attention={name}")["attention"]["_target_"].split(".")[2]
        assert name.removesuffix("_lra_released") == file
        files.add(file)
    assert files == rooms("attention")


def test_every_task_has_a_file_or_a_folder_of_its_own_and_nothing_else_is_there() -> None:
    targets = {composed(f"task={name}")["task"]["_target_"] for name in options("task")}
    assert {target.split(".")[2] for target in targets} == rooms("tasks")


def test_nothing_names_this_machine() -> None:
    """No absolute path in what is published."""
    top = PACKAGE.parent
    home = str(Path.home()) + "/"
    for path in [*FILES, *conf_dir().rglob("*.yaml"), *(top / "results").rglob("*.md"), *top.glob("*.md")]:
        text = path.read_text()
        assert f"{top}/" not in text, path
        assert home not in text, path


@pytest.mark.parametrize("path", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_says_first_what_it_asks(path: Path) -> None:
    """Its purpose, its size where that is not the whole, and the question."""
    head, question, *_ = path.read_text().splitlines()
    assert head == "# @package _global_"
    purpose = r"# (Paper|Benchmark|Study|Smoke)(, (small|narrow|begun|in minutes))?: "
    assert re.fullmatch(purpose + r"[^?]+[?.]", question)
