"""lra-report: write, keep or verify the reports of results folders."""

import argparse
import sys
from pathlib import Path

from lra.core.console import say
from lra.core.errors import UserError, printable
from lra.core.signals import interruptible
from lra.records.names import KEPT_PREDICTIONS, RUNS
from lra.records.record import RULES
from lra.records.runs import keep_runs, read_runs


@interruptible("lra-report")
def main() -> None:
    """Run the command. Exit code 1: a mismatch, with --verify; 2: an error."""
    arguments = _arguments()
    code = 0
    for folder in arguments.folders:
        try:
            if arguments.verify:
                code = max(code, _verify(folder, arguments))
            else:
                _write(folder, arguments)
        except BrokenPipeError:
            raise
        except (UserError, OSError) as error:
            say(f"lra-report: error: {error}")
            code = 2
    if code:
        sys.exit(code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lra-report", description="Write or verify the reports of results folders.")
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help=f"a folder with runs below it, or with a {RUNS}"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--verify", action="store_true", help="recompute each report and list mismatches")
    mode.add_argument(
        "--keep", action="store_true",
        help=f"also write {RUNS} and {KEPT_PREDICTIONS} into DIR, from which reports can be written without the runs",
    )  # fmt: skip
    parser.add_argument("--selection", choices=RULES, help="selection rule for all runs; default: that of each recipe")
    return parser.parse_args()


def _write(folder: Path, arguments: argparse.Namespace) -> None:
    from lra.reports import show, write_report

    if arguments.keep:
        if not folder.is_dir():
            raise UserError(f"{folder}: expected a results folder to keep the runs of")
        keep_runs(folder, read_runs(folder))
    page = write_report(folder, arguments.selection)
    show(page)
    say(f"lra-report: wrote {page}")


def _verify(folder: Path, arguments: argparse.Namespace) -> int:
    from lra.reports.verify import verify

    runs, mismatches = verify(folder, arguments.selection)
    for line in mismatches:
        say(line, to_stdout=True)
    say(printable(f"{folder}: {runs} runs, {len(mismatches)} mismatches"), to_stdout=True)
    return 1 if mismatches else 0
