"""The page that `lra` prints: commands, tasks, attentions, experiments, and where to start."""

import re
import shutil
import textwrap

from lra.config.user_options import user_options_folder
from lra.core.paths import conf_dir

WIDEST, NAMES = 100, 14  # columns: of a line, and of a name before its description

PURPOSES = ("Smoke", "Benchmark", "Paper", "Study")
FIRST = ("smoke", "small_listops", "demo", "hour", "table1_small", "table1", "lra", "pretraining_small")
"""The experiments that are listed without `--all`."""
START = {
    "lra train experiment=smoke": "check that everything runs: seconds",
    "lra train experiment=small_listops train.steps=800": "one small run, twenty seconds",
    "lra train experiment=demo": "a sweep with its report, 5 minutes",
    "lra train describe=true attention=softmax": "parameters, FLOPs and bytes of a run",
    "lra new attention mine": "write your own attention, ready to run",
    "lra train --help": "all groups, options and flags",
}


def contents(commands: dict[str, str], every: bool = False) -> str:
    """Return the page, as wide as the terminal but at most 100 columns.

    Args:
        commands: descriptions by name.
        every: list all experiments instead of the first eight.
    """
    experiments = _experiments()
    if not every:
        own = [name for name in experiments if not (conf_dir() / "experiment" / f"{name}.yaml").exists()]
        experiments = {name: experiments[name] for name in [*FIRST, *own]}
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    title = "Experiments (experiment=...)" + ("" if every else "; lra --all lists the rest")
    parts = {
        "Commands (lra train is lra-train and python -m lra train; each has --help)": _lines(commands, width),
        "Tasks (task=...)": _lines(_options("task"), width, NAMES),
        "Attentions (attention=...)": _lines(_options("attention"), width, NAMES),
        title: _lines(experiments, width, NAMES),
        "Where to start": _lines(START, width),
    }
    return "\n\n".join("\n".join([title, *lines]) for title, lines in parts.items())


def _lines(rows: dict[str, str], width: int, column: int | None = None) -> list[str]:
    """One line per row, with the description at `column`, by default after the longest name."""
    column = column or max(map(len, rows))
    room = {name: max(width - 4 - max(column, len(name)), NAMES) for name in rows}
    return [f"  {name:{column}}  {textwrap.shorten(does, room[name], placeholder=' …')}" for name, does in rows.items()]


def _options(group: str) -> dict[str, str]:
    """The first sentence of every option file, a user's own last."""
    folders = [folder for folder in (conf_dir(), user_options_folder()) if folder is not None]
    paths = [path for folder in folders for path in sorted((folder / group).glob("*.yaml"))]
    return {path.stem: first_sentence(path.read_text()) for path in paths}


def _experiments() -> dict[str, str]:
    """The experiments with purpose and question, by purpose; a user's own last."""

    def place(option: tuple[str, str]) -> tuple[int, str]:
        purpose = re.split("[:,]", option[1])[0]
        return (PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES), option[0])

    return dict(sorted(_options("experiment").items(), key=place))


def first_sentence(text: str) -> str:
    """The first sentence of the comment at the head of a YAML file, without what stands behind the year of its
    source."""
    lines = [line for line in text.splitlines() if not line.startswith("# @")]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = " ".join(line.lstrip("# ") for line in lines[:end])
    sentences = re.split(r"(?<!\bal)(?<!\beq)\.\s+(?=[A-Z]|experiment=)|(?<=\?)\s|(?<=\d\)),\s|;\s|:\s+lra-", comment)
    return sentences[0].rstrip(". ")
