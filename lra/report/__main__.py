"""lra-report DIR"""

import argparse
import sys
from pathlib import Path

from lra.console import say
from lra.errors import UserError, printable
from lra.report import write_report
from lra.report.overview import write_overview
from lra.report.schema import RULES
from lra.report.verify import verify
from lra.report.watch import watch


def main() -> None:
    parser = argparse.ArgumentParser(prog="lra-report", description="Write or verify the report of a results folder.")
    parser.add_argument("folder", type=Path, help="a folder with records below it, as lra-train's out=...")
    parser.add_argument(
        "--selection", choices=RULES, help="show this test result; default: what each run's recipe says"
    )
    parser.add_argument(
        "--published", type=Path, action="append", default=[], metavar="FILE",
        help="more published numbers, in the form of lra/report/published.yaml; also read from DIR/published.yaml",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="write nothing; recompute the report, say what in the folder does not match it, exit 1 if anything does",
    )  # fmt: skip
    parser.add_argument(
        "--overview", action="store_true",
        help="DIR holds results folders: write its README.md, a page over them all, after the words of DIR/findings.md",
    )  # fmt: skip
    parser.add_argument(
        "--watch", action="store_true",
        help="show a running sweep in the terminal: what is done, where runs are at work, why others are not, the time "
        "left; write nothing",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="the same, once")
    arguments = parser.parse_args()
    chosen = (arguments.folder, arguments.selection, arguments.published)
    faults: list[str] = []
    try:
        if arguments.watch or arguments.once:
            watch(arguments.folder, arguments.once, faults.append)
        elif arguments.verify:
            sys.exit(_verify(*chosen))
        elif arguments.overview:
            _show(write_overview(arguments.folder, faults.append), "over the folders in it")
        else:
            _show(write_report(*chosen, faults.append), "and the tables, figures and index.html beside it")
    except (UserError, OSError) as error:
        faults.append(str(error))
    for fault in dict.fromkeys(faults):
        say(f"lra-report: error: {printable(fault)}")
    if faults:
        sys.exit(2)


def _show(page: Path, what: str) -> None:
    print(page.read_text())
    say(f"lra-report: wrote {page}, {what}")


def _verify(folder: Path, selection: str | None, published: list[Path]) -> int:
    runs, mismatches = verify(folder, selection, published)
    for line in mismatches:
        say(printable(line), to_stdout=True)
    say(printable(f"{folder}: {runs} records, {len(mismatches)} mismatches"), to_stdout=True)
    return 1 if mismatches else 0


if __name__ == "__main__":
    main()
