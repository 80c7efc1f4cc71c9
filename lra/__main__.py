"""The console commands. What a signal would interrupt while a command is still being imported ends in one line, too."""

import io
import signal
import sys
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

from lra.cli.contents import contents
from lra.core.errors import CONFIG_ERROR, did_you_mean, printable
from lra.core.paths import __version__

COMMANDS = {
    "lra-train": ("lra.cli.train", "train one run, or a sweep of them, and write its report"),
    "lra-prepare": ("lra.cli.prepare", "fetch or make, verify and cache the data of a task"),
    "lra-report": ("lra.cli.report", "write, verify or watch the report of a results folder"),
    "lra-check": ("lra.cli.check", "try which laws of mixers an attention keeps"),
    "lra-new": ("lra.cli.new", "write an attention or a task of your own into this folder, ready to run"),
    "lra-bench": ("lra.cli.bench", "measure time, memory, operations and errors"),
}


def main() -> None:
    """Run one command, as in `lra train` or `python -m lra train`, or list what there is."""
    _let_readers_leave()
    words = {name.removeprefix("lra-"): name for name in COMMANDS}
    asked = sys.argv[1] if sys.argv[1:] else "--help"
    if asked in words:
        del sys.argv[1]
        start(words[asked])
    elif asked == "--version":
        print(f"lra {__version__}")
    elif asked in ("--help", "-h", "help", "--all"):
        print(contents({word: COMMANDS[name][1] for word, name in words.items()}, every=asked == "--all"))
    else:
        print(f"lra: error: {printable(asked)}: no such command; {did_you_mean(asked, words)}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR)


def start(name: str) -> None:
    """Import a command and run it."""
    if sys.platform == "win32":
        sys.exit(f"{name}: error: lra runs on Linux and macOS; on Windows it runs in WSL")
    from lra.core.signals import ASKING  # one of them is missing on Windows

    def stop(number: int, _frame: FrameType | None) -> None:
        print(f"\n{name}: stopped before it began ({signal.Signals(number).name})", file=sys.stderr)
        raise SystemExit(128 + number)

    _let_readers_leave()
    before = {number: signal.signal(number, stop) for number in ASKING}
    command = import_module(COMMANDS[name][0]).main
    for number, handler in before.items():
        signal.signal(number, handler)
    command()


class _Output(io.FileIO):
    """Standard output whose reader may leave, as `head` does: what nobody reads is dropped, and the work goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _let_readers_leave() -> None:
    stdout = sys.stdout
    if stdout is None or stdout is not sys.__stdout__:
        return
    output = _Output(stdout.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        output if stdout.write_through else io.BufferedWriter(output),  # the former with PYTHONUNBUFFERED
        stdout.encoding, stdout.errors,
        line_buffering=stdout.line_buffering, write_through=stdout.write_through,
    )  # fmt: skip


train = partial(start, "lra-train")
prepare = partial(start, "lra-prepare")
report = partial(start, "lra-report")
check = partial(start, "lra-check")
new = partial(start, "lra-new")
bench = partial(start, "lra-bench")


if __name__ == "__main__":
    main()
