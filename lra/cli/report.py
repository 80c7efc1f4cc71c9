"""The command `lra-report`: write, verify, pack or watch a report."""

import argparse
import sys
from pathlib import Path

from lra.cli.watch import watch
from lra.core.console import say
from lra.core.errors import UserError, printable
from lra.core.signals import interruptible
from lra.records.names import RECEIPTS
from lra.report import show, write_cards, write_pages, write_report
from lra.report.check.overview import (
    TABLE,
    fill_pages,
    is_over_folders,
    not_listed,
    submit,
    verified,
    verify_pages,
    write_board,
    write_overview,
)
from lra.report.check.verify import verify
from lra.report.read.pack import pack, unpack
from lra.report.read.schema import RULES

ALONE = {
    "verify": "write nothing; recompute the report, say what in DIR does not match it, exit 1 if anything does",
    "overview": "DIR holds results folders: fill numbers as --fill does, and write its README.md and "
    "index.html, pages over them all",
    "fill": "DIR holds results folders: write the numbers of DIR/findings.md and of each --text, from the records",
    "pack": "verify DIR, put all that its runs left into DIR/receipts.zip in place of their folders, and write "
    "the report again",
    "unpack": "the opposite: every file lies where it lay, to the byte",
    "submit": "put all that the runs below DIR left into one file, for a board; DIR stays as it is",
    "board": "DIR holds such files: verify each, write index.html and board.csv of those that hold, and say "
    "which do not and why",
    "cards": "write cards.md: what each system can, by its accuracy, and what it supports and costs, by the "
    "attentions.json beside DIR",
    "watch": "show a running sweep in the terminal: what is done, where runs are at work, why others are not, "
    "the time left; write nothing",
    "once": "the same, once",
}
"""What else to do than write the report."""

MODIFIERS = {
    "text": ("verify", "fill", "overview"),
    "selection": (None, "verify", "pack", "unpack", "cards"),
    "published": (None, "verify", "pack", "unpack", "cards"),
    "pages_only": (None, "pack", "unpack"),
}
"""What each option changes; None: the report that is written."""


@interruptible("lra-report")
def main() -> None:
    arguments = _arguments()
    faults: list[str] = []
    try:
        if arguments.watch or arguments.once:
            watch(arguments.folder, arguments.once, faults.append)
        elif arguments.verify and is_over_folders(arguments.folder):
            sys.exit(_verify_all(arguments))
        elif arguments.verify:
            sys.exit(_verify(arguments))
        elif arguments.fill or arguments.overview:
            for line in fill_pages(arguments.folder, arguments.text):
                say(f"lra-report: {line}")
            if arguments.overview:
                _show(write_overview(arguments.folder, faults.append), "over the folders in it")
        elif arguments.pack:
            _pack(arguments, faults)
        elif arguments.submit:
            path = submit(arguments.folder)
            say(f"lra-report: wrote {path} ({path.stat().st_size:,} bytes); it is all that a board needs")
        elif arguments.board:
            page, refused = write_board(arguments.folder)
            faults += [f"refused: {line}" for line in refused]
            say(f"lra-report: wrote {page} and {TABLE} beside it")
        elif arguments.cards:
            say(f"lra-report: wrote {write_cards(arguments.folder, arguments.selection, arguments.published)}")
        elif arguments.unpack:
            count = unpack(arguments.folder)
            _write(arguments, faults)
            say(f"lra-report: {count} files lie below {arguments.folder} again; its report links to them")
        else:
            _show(_write(arguments, faults), "and what lies beside it")
    except (UserError, OSError) as error:
        faults.append(str(error))
        if not any(getattr(arguments, name) for name in ALONE) and is_over_folders(arguments.folder):
            faults.append(f"{arguments.folder} holds results folders: lra-report --overview writes the pages over them")
    for fault in dict.fromkeys(faults):
        say(f"lra-report: error: {printable(fault)}")
    if faults:
        sys.exit(2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lra-report", description="Write or verify the report of a results folder.")
    parser.add_argument(
        "folder", type=Path, metavar="DIR",
        help=f"a folder with records below it, as lra-train's out=..., or its {RECEIPTS}",
    )  # fmt: skip
    parser.add_argument(
        "--selection", choices=RULES, help="show this test result; default: what each run's recipe says"
    )
    parser.add_argument(
        "--published", type=Path, action="append", default=[], metavar="FILE",
        help="more published numbers, in the form of lra/report/published.yaml; also read from DIR/published.yaml",
    )  # fmt: skip
    parser.add_argument(
        "--pages-only", action="store_true",
        help="write README.md and index.html alone, and remove the tables and figures of an earlier report",
    )  # fmt: skip
    parser.add_argument(
        "--text", type=Path, action="append", default=[], metavar="FILE",
        help="one more page with <!--{NAME}-->NUMBER<!--{}-->, for --fill, --overview and --verify",
    )  # fmt: skip
    for name, text in ALONE.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    arguments = parser.parse_args()
    if arguments.folder.name == RECEIPTS and not arguments.verify:  # a report is of all runs of the folder
        arguments.folder = arguments.folder.parent
    asked = [f"--{name}" for name in ALONE if getattr(arguments, name)]
    if len(asked) > 1 and set(asked) != {"--watch", "--once"}:
        parser.error(f"{' and '.join(asked)}: expected one of them")
    _refuse_idle(parser, arguments, asked[0].removeprefix("--") if asked else None)
    return arguments


def _refuse_idle(parser: argparse.ArgumentParser, arguments: argparse.Namespace, asked: str | None) -> None:
    """Options that would do nothing are mistakes: what they name was to be verified, or shown."""
    what = f"--{asked}" if asked else "the report of a folder"
    for name, changed in MODIFIERS.items():
        option = f"--{name.replace('_', '-')}"
        if getattr(arguments, name) and asked not in changed:
            parser.error(f"{option}: it changes nothing in {what}")
    over = asked == "verify" and is_over_folders(arguments.folder)
    if asked == "verify" and arguments.text and not over:
        parser.error(f"--text: its numbers are of several folders; say --verify {arguments.folder.parent}")
    if over and (arguments.selection or arguments.published):
        parser.error(f"--selection, --published: {arguments.folder} holds results folders; verify one of them")
    if arguments.pages_only and arguments.selection:
        parser.error("--selection: --pages-only leaves no file that says which rule it was; write the whole report")


def _write(arguments: argparse.Namespace, faults: list[str]) -> Path:
    write = write_pages if arguments.pages_only else write_report
    return write(arguments.folder, arguments.selection, arguments.published, faults.append)


def _show(page: Path, what: str) -> None:
    show(page)
    say(f"lra-report: wrote {page}, {what}")


def _verify_all(arguments: argparse.Namespace) -> int:
    """Verify each results folder in DIR, the numbers of its pages, and the pages over them."""
    outcomes = verified(arguments.folder)
    wrong = [_told(folder, runs, mismatches) for folder, (runs, mismatches) in outcomes.items()]
    for folder in not_listed(arguments.folder, outcomes):
        say(f"{folder}: not on the pages over the folders; lra-report --overview puts it there", to_stdout=True)
    faults = verify_pages(arguments.folder, arguments.text, outcomes)
    for line in faults:
        say(printable(line), to_stdout=True)
    return 1 if faults or any(wrong) else 0


def _verify(arguments: argparse.Namespace) -> int:
    return _told(arguments.folder, *verify(arguments.folder, arguments.selection, arguments.published))


def _told(folder: Path, runs: int, mismatches: list[str]) -> int:
    for line in mismatches:
        say(printable(line), to_stdout=True)
    say(printable(f"{folder}: {runs} records, {len(mismatches)} mismatches"), to_stdout=True)
    return 1 if mismatches else 0


def _pack(arguments: argparse.Namespace, faults: list[str]) -> None:
    if (arguments.folder / RECEIPTS).exists():  # where packing was cut short, the report is that of what lay in folders
        _write(arguments, faults)
    if _verify(arguments):
        raise UserError(f"{arguments.folder}: not packed; mend what does not match, or run lra-report on it first")
    receipts = pack(arguments.folder)
    _write(arguments, faults)
    say(f"lra-report: wrote {receipts} ({receipts.stat().st_size:,} bytes) and the report anew")
