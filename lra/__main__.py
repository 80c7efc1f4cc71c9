"""Run the console commands, and print the overview page of `lra`."""

import io
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from lra.core.errors import CONFIG_ERROR, FAILED, INTERRUPTED, did_you_mean, printable
from lra.core.paths import USER_OPTIONS, __version__, conf_dir

COMMANDS = {
    "lra-train": ("lra.cli.train", "train one run, or a sweep of runs, and write its report"),
    "lra-prepare": ("lra.cli.prepare", "fetch or generate, verify, cache and export the data of a task"),
    "lra-report": ("lra.cli.report", "write or verify the report of a results folder"),
    "lra-check": ("lra.cli.check", "run the correctness checks of an attention"),
    "lra-new": ("lra.cli.new", "write an attention or a task of your own into this folder, ready to run"),
    "lra-bench": ("lra.cli.bench", "measure time and memory of steps, layers and models"),
}
WIDEST, NAMES = 100, 14  # in columns: maximum width of a line, and width of names before descriptions
PURPOSES = ("Smoke", "Benchmark", "Paper", "Study")  # first words of experiments' descriptions, in listing order
FIRST = ("smoke", "small_listops", "demo", "hour", "table1_small", "table1", "lra", "pretraining_small")
"""Experiments of lra that are listed without `--all`; experiments of the user are always listed."""
START = {
    "lra train experiment=smoke": "check that everything runs: seconds",
    "lra train experiment=small_listops train.steps=800": "one small run",
    "lra train experiment=demo": "a sweep with its report, minutes",
    "lra train describe=true attention=softmax": "parameters, FLOPs and time of a run",
    "lra new attention mine": "write your own attention, ready to run",
    "lra train --help": "all groups, options and flags",
}


@contextmanager
def robust_output() -> Iterator[None]:
    """Context manager that escapes characters that stdout cannot encode, and exits quietly if the pipe is closed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe, as in `lra | head -3`
        raise SystemExit(FAILED) from None
    finally:
        try:
            print(end="", flush=True)
        except BrokenPipeError:
            # Redirect stdout to /dev/null, because the flush when Python exits would fail again and print a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        except OSError:  # the disk is full, for example; Python reports this error when it exits
            pass


@robust_output()
def main() -> None:
    """Run one command, as in `lra train` or `python -m lra train`, or print the overview page."""
    words = {name.removeprefix("lra-"): name for name in COMMANDS}
    word = sys.argv[1] if sys.argv[1:] else "--help"
    if word in words:
        del sys.argv[1]
        start(words[word])
    elif word == "--version":
        print(f"lra {__version__}")
    elif word in ("--help", "-h", "help", "--all"):
        print(contents({key: COMMANDS[name][1] for key, name in words.items()}, every=word == "--all"))
    else:
        print(f"lra: error: {printable(word)}: no such command; {did_you_mean(word, words)}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR)


@robust_output()
def start(name: str) -> None:
    """Import the module of a command and run it. Ctrl-C ends the command with a one-line message."""
    if sys.platform == "win32":
        sys.exit(f"{name}: error: lra runs on Linux and macOS; on Windows it runs in WSL")
    logging.raiseExceptions = False  # print no traceback if `--info` logs to a closed pipe
    try:
        import_module(COMMANDS[name][0]).main()  # here, because a command needs only its own modules
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; rerun the command to resume", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def contents(commands: dict[str, str], every: bool = False) -> str:
    """Return the text that `lra` prints, as wide as the terminal but at most 100 columns.

    Args:
        commands: descriptions by name.
        every: list all experiments instead of only those in `FIRST` and the user's.
    """

    def position(option: tuple[str, str]) -> tuple[int, str]:
        purpose = re.split("[:,]", option[1])[0]
        return (PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES), option[0])

    experiments = dict(sorted(_options("experiment").items(), key=position))
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
    """Return one line per name and description. Names are padded to `column` characters or, if None, to the longest."""
    column = column or max(map(len, rows))
    room = {name: max(width - 4 - max(column, len(name)), NAMES) for name in rows}
    return [f"  {name:{column}}  {textwrap.shorten(does, room[name], placeholder=' …')}" for name, does in rows.items()]


def _options(group: str) -> dict[str, str]:
    """Return the first sentence of each option file of a config group by option name, with the user's options last."""
    paths = [path for folder in (conf_dir(), USER_OPTIONS) for path in sorted((folder / group).glob("*.yaml"))]
    return {path.stem: first_sentence(path.read_text(encoding="utf-8")) for path in paths}


def first_sentence(text: str) -> str:
    """Return the first sentence of the comment at the head of a YAML file, without the line `# @package`.

    A question mark, a semicolon, a cited year such as `2021),` or a colon before a command also ends the sentence.
    """
    lines = [line for line in text.splitlines() if not line.startswith("# @")]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = " ".join(line.lstrip("# ") for line in lines[:end])
    # A full stop of the abbreviations "al." and "eq." does not end a sentence.
    sentences = re.split(r"(?<!\bal)(?<!\beq)\.\s+(?=[A-Z]|experiment=)|(?<=\?)\s|(?<=\d\)),\s|;\s|:\s+lra-", comment)
    return sentences[0].rstrip(". ")


train = partial(start, "lra-train")
prepare = partial(start, "lra-prepare")
report = partial(start, "lra-report")
check = partial(start, "lra-check")
new = partial(start, "lra-new")
bench = partial(start, "lra-bench")


if __name__ == "__main__":
    main()
