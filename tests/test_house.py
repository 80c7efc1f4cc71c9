"""The plan of the house, held against the code."""

import ast
from pathlib import Path

import pytest
from support import composed, options

from lra.paths import PACKAGE, conf_dir

FILES = sorted(path for path in PACKAGE.rglob("*.py"))
LEAVES = {"errors", "paths", "streams", "files", "faults", "dropout", "console", "groups", "locks", "children"}

# Who may import whom, besides the leaves and the files of the same package.
ALLOWED = {
    "attention": set(),
    "tasks": set(),
    "feed_forward": {"attention"},
    "model": {"attention", "feed_forward", "tasks"},
    "laws": {"attention", "model"},
    "recipe": set(),
    "batches": {"model", "recipe", "ranks", "tasks"},
    "fit": {"batches", "model", "recipe", "ranks", "tasks"},
    "probe": {"attention", "batches", "model", "recipe", "tasks"},
    "ranks": {"signals"},
    "outcome": {"record", "settings"},
    "record": set(),
    "report": {"checkpoint", "record", "outcome"},
    "configure": set(),
    "__main__": {"signals"},
    "command": {"configure"},
    "settings": {"attention", "configure", "tasks", "recipe", "model", "loggers", "init"},
    "loggers": set(),
    "sweep": {
        "checkpoint",
        "command",
        "configure",
        "settings",
        "outcome",
        "ranks",
        "record",
        "report",
        "estimate",
        "signals",
    },
    "estimate": {"batches", "fit", "model", "record", "run", "settings", "signals", "tasks"},
    "prepare": {"command", "configure", "tasks"},
    "train": {
        "__main__",
        "command",
        "configure",
        "settings",
        "checkpoint",
        "loggers",
        "outcome",
        "ranks",
        "record",
        "signals",
        "sweep",
        "tasks",
        "run",
    },
    "diagnostics": {"tasks"},
    "run": {
        "diagnostics",
        "settings",
        "checkpoint",
        "loggers",
        "ranks",
        "record",
        "signals",
        "tasks",
        "batches",
        "fit",
        "recipe",
        "model",
        "generate",
        "laws",
        "outcome",
        "probe",
    },
    "checkpoint": set(),
    "init": {"checkpoint", "record", "tasks", "model"},
    "signals": set(),
    "bench": {
        "attention",
        "command",
        "batches",
        "configure",
        "fit",
        "model",
        "recipe",
        "record",
        "report",
        "run",
        "settings",
        "tasks",
        "train",
    },
    "generate": {"settings", "tasks", "model"},
    "explain": {"command", "configure", "settings", "record", "checkpoint", "init", "tasks", "model", "attention"},
}
HYDRA = {"bench", "command", "train", "explain", "prepare", "sweep", "settings", "configure"}
NO_TORCH = {
    "recipe",
    "diagnostics",
    "outcome",
    "signals",
    "faults",
    "tasks",
    "report",
    "command",
    "configure",
    "prepare",
    "sweep",
    "errors",
    "paths",
    "streams",
    "files",
    "console",
    "locks",
    "children",
}


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_follow_the_plan(path: Path) -> None:
    own = room(path)
    if own == "__init__":
        return
    rooms = {name.split(".")[1] for name in imports(path) if name.startswith("lra.")} - {"__version__"}
    assert own in LEAVES or own in ALLOWED, f"{own} has no place in the plan"
    assert rooms <= ALLOWED.get(own, set()) | LEAVES | {own}
    libraries = {name.split(".")[0] for name in imports(path)}
    if own not in HYDRA:
        assert not libraries & {"hydra", "omegaconf"}
    if own in NO_TORCH:
        assert "torch" not in libraries


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_yaml_owns_the_defaults(path: Path) -> None:
    """Parameters that YAML sets have no second default in Python, and nothing swallows unknown names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            assert node.args.kwarg is None, f"{path.name}: **{node.args.kwarg.arg}"
            assert not any(node.args.kw_defaults), f"{path.name}: a keyword of a constructor has a default"


def test_every_attention_has_a_file_of_its_own() -> None:
    files = {path.stem for path in (PACKAGE / "attention").glob("*.py")}
    for name in options("attention"):
        target = composed(f"attention={name}")["attention"]["_target_"]
        file = target.split(".")[2]
        assert file in files
        assert name.removesuffix("_lra_released") == file


def test_nothing_names_this_machine() -> None:
    """No absolute path in what is published."""
    top = PACKAGE.parent
    home = str(Path.home()) + "/"
    for path in [*FILES, *conf_dir().rglob("*.yaml"), *(top / "results").rglob("*.md"), *top.glob("*.md")]:
        text = path.read_text()
        assert f"{top}/" not in text, path
        assert home not in text, path


def test_the_table_of_the_readme_is_the_kept_report() -> None:
    """No number in the README that no record made."""
    top = PACKAGE.parent
    rows = ("| *baseline", "| Simple", "| Transformer")
    shown = [line for line in (top / "README.md").read_text().splitlines() if line.startswith(rows)]
    report = (top / "results" / "table1_small" / "README.md").read_text().splitlines()
    assert len(shown) > 4
    assert set(shown) <= set(report)
