"""Commands and examples in README.md, CONTRIBUTING.md and docs/ run as they stand."""

import difflib
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


def commands() -> Iterator[list[str]]:
    """The arguments of every `lra-train` or `-m lra train` in the pages."""
    for path in WRITTEN:
        text = path.read_text()
        for line in [*"".join(blocks(path, "bash")).splitlines(), *re.findall(r"`(lra-train [^`]+)`", text)]:
            match = re.search(r"(?:lra-train|-m lra train)\s+(.+)", line)
            if match and "..." not in line:
                yield shlex.split(match[1], comments=True)


def test_every_command_composes() -> None:
    """The first of every list of values. A launcher may not be installed here, and examples with code run below."""
    seen = set()
    for words in commands():
        overrides = tuple(_first_value(word) for word in words if re.match(r"[\w./]+=", word))
        if not any(text in " ".join(words) for text in ("--config-dir", "mine", "hydra/launcher")):
            seen.add(overrides)
    assert len(seen) >= 10
    for overrides in seen:
        composed(*overrides)


def _first_value(override: str) -> str:
    key, _, value = override.partition("=")
    if value == "glob(*)":
        return f"{key}={options(key)[0]}"
    return override if value[0] in "[{" else f"{key}={value.split(',')[0]}"


@pytest.mark.parametrize(
    ("place", "module", "option", "extra"),
    [
        (0, "my_attention", "attention/average", ["task.max_length=20"]),
        (1, "my_tasks", "task/parity", []),
    ],
    ids=["attention", "task"],
)
def test_the_examples_run(
    place: int, module: str, option: str, extra: list[str], cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples of CONTRIBUTING by the command beside them, with few steps of a smaller model."""
    page = CHECKOUT / "CONTRIBUTING.md"
    written = {f"{module}.py": blocks(page, "python")[place], f"my_options/{option}.yaml": blocks(page, "yaml")[place]}
    for path, text in written.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    [words] = [words for words in commands() if f"packages=[{module}]" in words]
    sizes = ["model.dim=14", "model.heads=2", "model.depth=1", "model.mlp_dim=11", "threads=1", "out=trained"]
    steps = ["steps=4", "warmup=2", "batch_size=5", "micro_batch=3", "eval_every=2"]
    words = [word for word in words if not word.startswith("train.steps")]
    code, _, err = cli(train.main, *words, *sizes, *(f"train.{step}" for step in steps), *extra)
    assert code == 0, err
    assert len(list(Path("trained").rglob("record.json"))) == 1


def test_the_examples_of_the_python_api(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One after another, in an empty folder; every public name has one. The figures of the report are left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))
    page = CHECKOUT / "docs" / "api.md"
    names: dict[str, object] = {"lra": lra, "torch": torch}
    examples = blocks(page, "python")
    for example in examples:
        exec(compile(example, f"{page}: {example.splitlines()[0]}", "exec"), names)
    assert all(f"lra.{name}" in "".join(examples) for name in lra.__all__)
    out = capsys.readouterr().out
    assert all(
        text in out for text in ("finished accuracy", "# Results: mine", "PASS  shape", "did you mean 'simple'?")
    )


TINY = ("task.train_size=50", "task.val_size=7", "task.test_size=11", "train.steps=4", "train.eval_every=2")
PROGRAMS = {"lra-new": new.main, "lra-check": check.main, "lra-train": train.main, "lra-report": report.main}
SHORTER = {
    "lra-train": [*TINY, "train.warmup=2", "train.batch_size=5", "train.micro_batch=5"],
    "lra-check": ["lengths=[3]"],
}


def test_your_attention_in_ten_minutes(cli: Commands) -> None:
    """Run the commands of docs/your-attention.md in an empty folder, with fewer steps and one seed."""
    page = CHECKOUT / "docs" / "your-attention.md"
    for line in "".join(blocks(page, "bash")).splitlines():
        program, *words = shlex.split(line.replace("seed=1,2,3", "seed=1"))
        code, _, err = cli(PROGRAMS[program], *words, *SHORTER.get(program, []))
        assert code == 0, (line, err)
        if program == "lra-new":
            written = Path("mine.py").read_text().splitlines()
            [source] = blocks(page, "python")
            assert sum(line.startswith("+ ") for line in difflib.ndiff(written, source.splitlines())) <= 30
            Path("mine.py").write_text(source)
    table = Path("results/mine/README.md").read_text()
    assert re.search(r"^\| Mine \|", table, re.MULTILINE), table
    assert len(list(Path("results/mine").rglob("record.json"))) == 3
