"""Commands and examples in README.md, CONTRIBUTING.md and docs/ run as they stand."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import Commands, composed, options

import lra
from lra.cli import check, new, report, train
from lra.core.paths import CHECKOUT

pytestmark = pytest.mark.skipif(not (CHECKOUT / "README.md").exists(), reason="not a checkout")

WRITTEN = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


PROGRAM = re.compile(r"^(?:torchrun .*|python )?(?:-m )?lra[- ](train|prepare|check|bench|report|new)\b(.*)$")
# Not Hydra's commands, options that the examples below write, launchers that may be missing, kept runs, placeholders.
ELSEWHERE = (
    r"lra-(report|new)|also=mine|attention=mine|--config-dir|hydra/launcher=(submitit|ray)|rerun=|[A-Z]{3,}|\.\.\."
)


def command_lines() -> Iterator[str]:
    """Yield each command in the written pages, with its comment."""
    for path in WRITTEN:
        shell = "".join(blocks(path, "bash")).replace("\\\n", " ").splitlines()
        sessions = [line[2:] for line in "".join(blocks(path, "text")).splitlines() if line.startswith("$ ")]
        inline = re.findall(r"`((?:lra-|python -m lra |bash |pip )[^`]+)`", path.read_text())
        for line in [*shell, *sessions, *inline]:
            yield from (command.strip() for command in line.split("&&"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield program and arguments of each command of lra in the written pages."""
    for command in command_lines():
        match = PROGRAM.match(command)
        if match:
            yield match[1], shlex.split(match[2], comments=True)


def test_every_command_composes() -> None:
    """A swept key is composed with its first value."""
    composes = {
        (program, *(_first_value(word) for word in words if re.match(r"[\w./]+=", word)))
        for program, words in commands()
        if not re.search(ELSEWHERE, " ".join([f"lra-{program}", *words]))
    }
    assert len(composes) >= 40
    for program, *overrides in sorted(composes):
        composed(*overrides, config=program)


def _first_value(override: str) -> str:
    """Return the override with the first of several values, or of all options."""
    key, _, value = override.partition("=")
    if value == "glob(*)":
        return f"{key}={options(key)[0]}"
    return override if value[:1] in ("[", "{") else f"{key}={value.split(',')[0]}"


@pytest.mark.parametrize(
    ("place", "module", "option", "extra"),
    [(0, "my_attention", "attention/average", ["task.max_length=20"]), (1, "my_tasks", "task/parity", [])],
    ids=["attention", "task"],
)
def test_the_examples_run(
    place: int, module: str, option: str, extra: list[str], cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples of CONTRIBUTING, by their commands, with few steps of a smaller model."""
    page = CHECKOUT / "CONTRIBUTING.md"
    written = {f"{module}.py": blocks(page, "python")[place], f"my_options/{option}.yaml": blocks(page, "yaml")[place]}
    for path, text in written.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    [words] = [words for _, words in commands() if {"--config-dir", option.replace("/", "=")} <= {*words}]
    sizes = ["model.dim=14", "model.heads=2", "model.depth=1", "model.mlp_dim=11", "threads=1", "out=trained"]
    steps = ["steps=4", "warmup=2", "batch_size=5", "micro_batch=3", "eval_every=2"]
    words = [word for word in words if not word.startswith("train.steps")]
    code, _, err = cli(train.main, *words, *sizes, *(f"train.{step}" for step in steps), *extra)
    assert code == 0, err
    assert len(list(Path("trained").rglob("record.json"))) == 1


def test_the_examples_of_the_python_api(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """They run in order in an empty folder; every public name has one. test_data.py runs those of `transformers`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))
    page = CHECKOUT / "docs" / "api.md"
    names: dict[str, object] = {"lra": lra, "torch": torch}
    examples = [example for example in blocks(page, "python") if "transformers" not in example]
    for example in (text.replace('lra.data("listops")', 'lra.data("listops", "size=smoke")') for text in examples):
        exec(compile(example, f"{page}: {example.splitlines()[0]}", "exec"), names)
    assert all(f"lra.{name}" in "".join(examples) for name in lra.__all__)
    out = capsys.readouterr().out
    assert "finished accuracy" in out and "# Results: mine" in out


TINY = ("task.train_size=50", "task.val_size=7", "task.test_size=11", "train.steps=4", "train.eval_every=2")
PROGRAMS = {"lra-new": new.main, "lra-check": check.main, "lra-train": train.main, "lra-report": report.main}
SHORTER = {
    "lra-train": [*TINY, "train.warmup=2", "train.batch_size=5", "train.micro_batch=5"],
    "lra-check": ["lengths=[3]"],
}


@pytest.mark.slow
def test_your_attention_in_ten_minutes(cli: Commands) -> None:
    """The commands of the section in docs/your-own.md, in an empty folder, with fewer steps and seeds."""
    section = (CHECKOUT / "docs" / "your-own.md").read_text().partition("## Your own data")[0]
    lines = "".join(re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)).splitlines()
    [source] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    for line in lines:
        program, *words = shlex.split(line.replace("seed=1,2,3", "seed=1,2"))
        code, _, err = cli(PROGRAMS[program], *words, *SHORTER.get(program, []))
        assert code == 0, (line, err)
        if program == "lra-new":
            Path("mine.py").write_text(source)
    table = Path("runs/mine/README.md").read_text()
    assert re.search(r"^\| Mine \| .* ± ", table, re.MULTILINE), table
    assert len(list(Path("runs/mine").rglob("record.json"))) == 6
