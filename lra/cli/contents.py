"""What there is, on one page: the commands, the tasks, the attentions, the experiments, and where to start."""

import re
import shutil
import textwrap

from lra.config.user_options import user_options_folder
from lra.core.paths import conf_dir

WIDEST, NAMES = 100, 14  # columns: of a line, and of a name before its description

START = {
    "lra train experiment=smoke": "does everything run? seconds",
    "lra train experiment=small_listops train.steps=800": "one small run, twenty seconds",
    "lra train experiment=demo": "a sweep with its report, 10 minutes",
    "lra train describe=true attention=softmax": "facts, time and memory; trains nothing",
    "lra new attention mine": "an attention of your own, ready to run",
    "lra train --help": "variants, protocols and all else",
}


def contents(commands: dict[str, str]) -> str:
    """The page, as wide as the terminal but no wider than 100 columns. `commands`: what each of them does."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    parts = {
        "Commands (lra train is lra-train and python -m lra train; each has --help)": _lines(commands, width),
        "Tasks (task=...)": _lines(_options("task"), width, NAMES),
        "Attentions (attention=...)": _lines(_options("attention"), width, NAMES),
        "Experiments (experiment=...), by what they are for": _lines(_by_purpose(), width, NAMES),
        "Where to start": _lines(START, width),
    }
    return "\n\n".join("\n".join([title, *lines]) for title, lines in parts.items())


def _lines(rows: dict[str, str], width: int, column: int | None = None) -> list[str]:
    """Each row in one line, its description from `column` on: behind the longest name, if nothing is said. A longer
    name stands whole and moves its description."""
    column = column or max(map(len, rows))
    room = {name: max(width - 4 - max(column, len(name)), NAMES) for name in rows}
    return [f"  {name:{column}}  {textwrap.shorten(does, room[name], placeholder=' …')}" for name, does in rows.items()]


def _options(group: str) -> dict[str, str]:
    """What each option's file says first; a user's own come last."""
    folders = [folder for folder in (conf_dir(), user_options_folder()) if folder is not None]
    paths = [path for folder in folders for path in sorted((folder / group).glob("*.yaml"))]
    return {path.stem: first_sentence(path.read_text()) for path in paths}


def _by_purpose() -> dict[str, str]:
    """The experiments, each with its purpose and its question, those of a purpose together."""
    return dict(sorted(_options("experiment").items(), key=lambda option: (option[1].partition(":")[0], option[0])))


def first_sentence(text: str) -> str:
    """The first sentence of the comment at the head of a YAML file, without what stands behind the year of its
    source."""
    lines = [line for line in text.splitlines() if not line.startswith("# @")]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = " ".join(line.lstrip("# ") for line in lines[:end])
    sentences = re.split(r"(?<!\bal)(?<!\beq)\.\s+(?=[A-Z]|experiment=)|(?<=\?)\s|(?<=\d\)),\s|;\s|:\s+lra-", comment)
    return sentences[0].rstrip(". ")
