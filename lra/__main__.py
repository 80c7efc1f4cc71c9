"""The console commands. What a signal would interrupt while a command is still being imported ends in one line, too."""

import signal
import sys
from importlib import import_module
from types import FrameType

from lra.core.signals import ASKING, INTERRUPTED, PAUSED

COMMANDS = {
    "lra-train": ("lra.cli.train", "train one run, or a sweep of them, and write its report"),
    "lra-prepare": ("lra.cli.prepare", "fetch or make, verify and cache the data of a task"),
    "lra-report": ("lra.cli.report", "write, verify or watch the report of a results folder"),
    "lra-check": ("lra.cli.check", "try which laws of mixers an attention keeps"),
    "lra-new": ("lra.cli.new", "write an attention or a task of your own into this folder, ready to run"),
    "lra-explain": ("lra.cli.explain", "show what each token contributes to the CLS"),
    "lra-bench": ("lra.cli.bench", "measure time, memory, operations and errors"),
}


def main() -> None:
    """Do one command, as in `python -m lra train`, or say which there are."""
    if sys.argv[1:] and f"lra-{sys.argv[1]}" in COMMANDS:
        start(f"lra-{sys.argv.pop(1)}")
        return
    width = max(map(len, COMMANDS))
    for name, (_, does) in COMMANDS.items():
        print(f"{name:{width}}  {does} (or: python -m {name.replace('-', ' ')})")
    print("Each has --help.")


def start(name: str) -> None:
    """Import a command and run it."""
    if sys.platform == "win32":
        sys.exit(f"{name}: error: lra runs on Linux and macOS; on Windows it runs in WSL")

    def stop(number: int, _frame: FrameType | None) -> None:
        print(f"\n{name}: stopped before it began ({signal.Signals(number).name})", file=sys.stderr)
        raise SystemExit(INTERRUPTED if number == signal.SIGINT else PAUSED)

    before = {number: signal.signal(number, stop) for number in ASKING}
    command = import_module(COMMANDS[name][0]).main
    for number, handler in before.items():
        signal.signal(number, handler)
    command()


def train() -> None:
    start("lra-train")


def prepare() -> None:
    start("lra-prepare")


def report() -> None:
    start("lra-report")


def check() -> None:
    start("lra-check")


def new() -> None:
    start("lra-new")


def explain() -> None:
    start("lra-explain")


def bench() -> None:
    start("lra-bench")


if __name__ == "__main__":
    main()
