"""lra-report: write or verify the reports of results folders, and keep their runs in runs.jsonl."""

import argparse
import sys
from pathlib import Path

from lra.core.console import say
from lra.core.errors import CONFIG_ERROR, FAILED, UserError, printable
from lra.records.names import KEPT_PREDICTIONS, RUNS
from lra.records.record import RULES
from lra.records.runs import keep_runs, read_runs


def main() -> None:
    """Run the command. The exit code is 1 if --verify finds a mismatch, and 2 after an error."""
    parser = argparse.ArgumentParser(prog="lra-report", description="Write or verify the reports of results folders.")
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help=f"a folder with runs below it, or with a {RUNS}"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--verify", action="store_true", help="recompute each report and list mismatches")
    mode.add_argument(
        "--keep", action="store_true",
        help=f"also write {RUNS} and {KEPT_PREDICTIONS} into DIR; reports can be written from them without the runs",
    )  # fmt: skip
    parser.add_argument("--selection", choices=RULES, help="selection rule for all runs; default: that of each recipe")
    arguments = parser.parse_args()
    from lra.reports import show, write_report  # here, so that --help does not import pandas
    from lra.reports.verify import verify

    code = 0
    for folder in arguments.folders:
        try:
            if arguments.verify:
                runs, mismatches = verify(folder, arguments.selection)
                for line in mismatches:
                    say(line, to_stdout=True)
                say(printable(f"{folder}: {runs} runs, {len(mismatches)} mismatches"), to_stdout=True)
                code = max(code, FAILED if mismatches else 0)
                continue
            if arguments.keep:
                if not folder.is_dir():
                    raise UserError(f"{folder}: not a folder; --keep needs a results folder")
                keep_runs(folder, read_runs(folder))
            page = write_report(folder, arguments.selection)
            show(page)
            say(f"lra-report: wrote {page}")
        except BrokenPipeError:  # the reader has closed the pipe
            raise
        except (UserError, OSError) as error:  # continue with the other folders
            say(f"lra-report: error: {error}")
            code = CONFIG_ERROR
    if code:
        sys.exit(code)
