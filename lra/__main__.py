"""The console commands. What a signal would interrupt while a command is still being imported ends in one line, too."""

import signal
import sys
from importlib import import_module
from types import FrameType

from lra.signals import ASKING, INTERRUPTED, PAUSED

COMMANDS = {
    "lra-train": ("lra.train", "train one run, or a sweep of them, and write its report"),
    "lra-prepare": ("lra.prepare", "fetch or make, verify and cache the data of a task"),
    "lra-report": ("lra.report.__main__", "write, verify or watch the report of a results folder"),
    "lra-explain": ("lra.explain", "show what each token contributes to the CLS"),
    "lra-bench": ("lra.bench.__main__", "measure time, memory, operations and errors"),
}


def main() -> None:
    """Say which commands there are."""
    width = max(map(len, COMMANDS))
    for name, (module, does) in COMMANDS.items():
        print(f"{name:{width}}  {does} (or: python -m {module.removesuffix('.__main__')})")
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


def explain() -> None:
    start("lra-explain")


def bench() -> None:
    start("lra-bench")


if __name__ == "__main__":
    main()
