"""lra-report: write, keep or verify the reports of results folders."""

import argparse
import sys
from pathlib import Path

from lra.core.console import say
from lra.core.errors import CONFIG_ERROR, FAILED, UserError, printable
from lra.records.names import KEPT_PREDICTIONS, RUNS
from lra.records.record import RULES
from lra.records.runs import keep_runs, read_runs


def main() -> None:
    """Run the command. Exit code 1: a mismatch, with --verify; 2: an error."""
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
    arguments = parser.parse_args()
    code = 0
    for folder in arguments.folders:
        try:
            if arguments.verify:
                code = max(code, _verify(folder, arguments.selection))
            else:
                _write(folder, arguments.selection, arguments.keep)
        except BrokenPipeError:  # nobody reads the output
            raise
        except (UserError, OSError) as error:  # the other folders are still read
            say(f"lra-report: error: {error}")
            code = CONFIG_ERROR
    if code:
        sys.exit(code)


def _write(folder: Path, selection: str | None, keep: bool) -> None:
    """Write and print the report of a folder; before it runs.jsonl and predictions.npz if `keep`."""
    from lra.reports import show, write_report

    if keep:
        if not folder.is_dir():
            raise UserError(f"{folder}: expected a results folder to keep the runs of")
        keep_runs(folder, read_runs(folder))
    page = write_report(folder, selection)
    show(page)
    say(f"lra-report: wrote {page}")


def _verify(folder: Path, selection: str | None) -> int:
    """Print the mismatches of a report; return the exit code."""
    from lra.reports.verify import verify

    runs, mismatches = verify(folder, selection)
    for line in mismatches:
        say(line, to_stdout=True)
    say(printable(f"{folder}: {runs} runs, {len(mismatches)} mismatches"), to_stdout=True)
    return FAILED if mismatches else 0
