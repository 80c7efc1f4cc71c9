"""Whether a command that was given something hostile did no harm: its limits, what it said, and the pages it wrote."""

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import html5lib
import matplotlib.font_manager  # reads its fonts while HOME is still the own one
from faults.runs import Ended, command, without_figures
from faults.trial import Outcome, Verdict
from markdown_it import MarkdownIt

from lra.report.render.markup import MATHS, SPECIAL

MARK = "zq7x"  # stands in every hostile text
CPU_SECONDS, WALL_SECONDS = 10, 240  # whoever else works on the machine
MEMORY_BYTES = 3 * 2**29  # that a command may take on top of what it starts with
SAID = re.compile(r"(usage: )?lra(-\w+)?\b|[\w./-]+ ?.*")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
FONTS = matplotlib.get_cachedir()  # so that nobody writes them into the HOME of a case
COMMANDS = {
    *("begin", "end", "centering", "footnotesize", "setlength", "tabcolsep", "caption", "label", "smallskip"),
    *("toprule", "midrule", "bottomrule", "textbf", "textit", "mathcal", "usepackage", "\\"),
    *("resizebox", "ifdim", "width", "linewidth", "else", "fi"),
    *(name for text in (*SPECIAL.values(), *MATHS.values()) for name in re.findall(r"\\([A-Za-z]+|.)", text)),
}
PLAIN = ("href", "src", "action", "formaction", "data", "xlink:href", "srcset", "poster")


def bounded() -> None:
    """For `inside`: an end by a signal to a command that takes too long, and no memory for one that takes too much."""
    without_figures()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)


def ran(main: Callable[[], None], *arguments: str, inside: Callable[[], object] = bounded) -> Ended:
    """A command within these bounds."""
    return command(*arguments, main=main, inside=inside)


def started(*arguments: str, **environment: str | None) -> Ended:
    """A command in a process of its own, for what is read at its start; a variable that is None is not set."""
    known = {
        **os.environ,
        "MPLCONFIGDIR": FONTS,
        **{name: value for name, value in environment.items() if value is not None},
    }
    for name in [name for name, value in environment.items() if value is None]:
        known.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "lra", *arguments], env=known, capture_output=True, check=False, timeout=WALL_SECONDS
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def outcome(injected: str, ended: Ended, *more: str, at_most: int = 1, codes: tuple[int, ...] = (1, 2)) -> Outcome:
    """Of a command that may do its work, if what it wrote is harmless, or refuse in one line; `more`: what else is
    wrong; `at_most`: lines that name an error."""
    wrong = [*faults_of(ended, at_most, codes), *more]
    seen = f"{ended.code}, {ended.said:.300}"
    if wrong:
        return Outcome(injected, f"{'; '.join(wrong)}: {seen}", Verdict.WRONG)
    return Outcome(injected, seen, Verdict.EQUAL if ended.code == 0 else Verdict.REFUSED)


def faults_of(ended: Ended, at_most: int, codes: tuple[int, ...]) -> list[str]:
    """What is wrong with how a command ended and with what it said."""
    errors = [line for line in ended.err.splitlines() if "error:" in line]
    faults = []
    if "Traceback" in ended.err or ended.code not in (0, *codes):
        faults.append("a traceback" if "Traceback" in ended.err else "an end by itself")
    elif ended.code == 2 and not 1 <= len(errors) <= at_most:
        faults.append(f"{len(errors)} errors are named")
    if not visible(ended.out + ended.err):
        faults.append("control characters reach the terminal")
    return faults


def visible(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


# ---------------------------------------------------------------- what was written


def faults_in(folder: Path) -> list[str]:
    """What in the pages and tables below a folder would do something, or be something, that the input made it."""
    judges = {"html": of_html, "md": of_markdown, "tex": of_latex, "csv": of_csv, "svg": of_svg}
    faults = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        judge = judges.get(path.suffix.removeprefix("."))
        if judge is not None and path.parent.name != "own":
            faults += [f"{path.name}: {fault}" for fault in judge(path.read_text())]
    return faults


def of_html(text: str) -> list[str]:
    """Elements, attributes, addresses or scripts that come of the input."""
    faults = []
    for element in html5lib.parse(text, namespaceHTMLElements=False).iter():
        if not isinstance(element.tag, str):  # a comment
            faults += ["a comment"] * (MARK in (element.text or ""))
            continue
        name = element.tag.rpartition("}")[2]
        faults += _of_element(name, {key.rpartition("}")[2]: value for key, value in element.attrib.items()})
        if name == "script" and MARK in (element.text or ""):
            faults += _of_data(element.attrib, element.text or "")
        faults += [f"text in <{name}>"] * (name == "style" and MARK in (element.text or ""))
    return faults


def _of_element(name: str, attributes: dict[str, str]) -> list[str]:
    faults = [f"<{name}>"] * (
        MARK in name or (name in ("iframe", "object", "embed", "base", "form") and MARK in str(attributes))
    )
    for key, value in attributes.items():
        if MARK in key or key.startswith("on") or (key == "style" and MARK in value):
            faults.append(f"attribute {key} of <{name}>")
        if key in PLAIN and MARK in value and not _stays(value):
            faults.append(f"{key}={value!r:.80}")
    return faults


def _stays(address: str) -> bool:
    """Whether an address leads below the page."""
    scheme = re.match(r"[\x00-\x20]*[A-Za-z][A-Za-z0-9+.\-\s]*:", address)
    return not scheme and not address.lstrip().startswith(("//", "\\", "/")) and ".." not in address.split("/")


def _of_data(attributes: dict[str, str], text: str) -> list[str]:
    if attributes.get("type") != "application/json":
        return ["text in <script>"]
    try:
        json.loads(text)
    except ValueError:
        return ["data that are no JSON"]
    return []


def of_markdown(text: str) -> list[str]:
    """As `of_html` of the page that it becomes, whatever its renderer thinks of addresses; headings and rows of tables
    are those of the page."""
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    renderer.validateLink = lambda address: True
    page = renderer.render(text)
    faults = of_html(page)
    for element in html5lib.parse(page, namespaceHTMLElements=False).iter():
        if element.tag == "h1" and (element.text or "").startswith(MARK):
            faults.append("a heading")
        if element.tag in ("em", "pre", "hr") and MARK in "".join(element.itertext())[:9]:
            faults.append(f"<{element.tag}>")
        if element.tag == "img" and MARK in str(element.attrib):
            faults.append("a picture")
    return faults + _rows([line for line in text.splitlines() if line.startswith("| ")])


def _rows(lines: list[str]) -> list[str]:
    """Rows of a table must have the places of its head, which stands above the ruler."""
    faults, places = [], 0
    for line, below in zip(lines, [*lines, ""][1:], strict=True):
        count = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))
        if re.fullmatch(r"[|: -]+", below) and "---" in below:
            places = count
        if places and count != places:
            faults.append(f"a row of {count - 1} places in a table of {places - 1}")
    return faults


def of_latex(text: str) -> list[str]:
    """Commands that are not ours, braces that do not close, comments, and rows of other widths."""
    body = text.partition("\n")[2]
    faults = [f"\\{name}" for name in re.findall(r"\\([A-Za-z]+|.)", body) if name not in COMMANDS]
    plain = re.sub(r"\\\\", " ROW ", body)
    plain = re.sub(r"\\[{}%&$#_]", "", plain)
    depths = [*accumulate({"{": 1, "}": -1}.get(character, 0) for character in plain)]
    faults += ["a brace that closes nothing"] * (min(depths, default=0) < 0)
    for line in plain.splitlines():
        faults += ["a comment"] * ("%" in line.removesuffix("{%"))
        faults += ["^^ or ~ or #"] * bool(re.search(r"\^\^|~|#", line))
    faults += ["a brace that is never closed"] * (depths[-1:] not in ([], [0])) + ["control characters"] * (
        not visible(text)
    )
    return faults


def of_csv(text: str) -> list[str]:
    """Places that a spreadsheet would compute, and rows of other widths."""
    rows = list(csv.reader(io.StringIO(text)))
    faults = ["a row of another width"] * (len({len(row) for row in rows}) > 1)
    return faults + [f"a formula {place!r:.40}" for row in rows for place in row if _is_formula(place)]


def _is_formula(place: str) -> bool:
    return place.startswith(FORMULAS) and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", place)


def of_svg(text: str) -> list[str]:
    from xml.etree import ElementTree

    try:
        elements = ElementTree.fromstring(text).iter()
    except ElementTree.ParseError as error:
        return [f"no XML: {error}"]
    return [
        fault for element in elements for fault in _of_element(element.tag.rpartition("}")[2], _plain(element.attrib))
    ]


def _plain(attributes: dict[str, Any]) -> dict[str, str]:
    return {key.rpartition("}")[2]: value for key, value in attributes.items()}
