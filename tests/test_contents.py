"""`lra` alone: what there is, on one page."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import Commands, options

import lra.__main__ as start
from lra.__main__ import first_sentence


def test_everything_has_one_line_that_fits(cli: Commands) -> None:
    code, out, err = cli(start.main, "--all")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    titles = {line.split()[0]: number for number, line in enumerate(out.splitlines()) if line[:1].strip()}
    assert list(titles) == ["Commands", "Tasks", "Attentions", "Experiments", "Where"]
    parts = (("task", "Tasks", "Attentions"), ("attention", "Attentions", "Experiments"))
    for group, title, after in (*parts, ("experiment", "Experiments", "Where")):
        lines = [line.split(maxsplit=1) for line in out.splitlines()[titles[title] + 1 : titles[after] - 1]]
        assert sorted(name for name, _ in lines) == options(group), "each once, with a description"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# @package _global_\n# Bits of parity, 2 classes. More.\na: 1\n", "Bits of parity, 2 classes"),
        ("# Wide (Ma et al. 2021): a\n# memory; more\n_target_: x\n# not this\n", "Wide (Ma et al. 2021): a memory"),
        ("# Study: does it? With that. And", "Study: does it?"),
        ("# Mamba (Dao 2024), two-sided where the task is.\na: 1", "Mamba (Dao 2024)"),
        ("a: 1\n", ""),
    ],
)
def test_a_line_is_the_first_sentence_of_the_file(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_an_option_of_ones_own_stands_there(cli: Commands) -> None:
    path = Path("lra_options/attention/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# Equal weights for all tokens.\n_target_: mine.Mine\n")
    assert "  mine            Equal weights for all tokens\n" in cli(start.main)[1]


def test_a_command_is_called_by_its_name_and_a_mistyped_one_is_named(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "start", lambda name: print(name, *sys.argv[1:]))
    assert cli(start.main, "train", "seed=2")[1] == "lra-train seed=2\n"
    assert cli(start.main, "trian") == (2, "", "lra: error: trian: no such command; did you mean 'train'?\n")
    assert cli(start.main, "--version")[1].startswith("lra ")
    assert cli(start.main, "--help")[1] == cli(start.main)[1]


def test_the_page_needs_nothing_that_is_slow_to_import(cli: Commands) -> None:
    probe = "import sys, lra.__main__ as start; start.main(); assert not {'hydra', 'torch', 'yaml'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
