"""How names and texts from records stand in Markdown and LaTeX."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reports import change, files_of, page_of, put

from lra.core.errors import UserError
from lra.core.paths import CHECKOUT
from lra.report import Report
from lra.report.check.overview import results_folders
from lra.report.render import markup, pages
from lra.report.render.layout import Grid, TableText, address
from lra.report.render.markup import markdown

HOSTILE = r"a|b *c* `d` <script> \e_f^g~h 50% & #1 {x} $y$ α"


def test_markdown_of_names(tmp_path: Path) -> None:
    shown = markdown(Grid(["x"], [[TableText(HOSTILE)], [TableText("n", bold=True, link=address("a b(c).json"))]]))
    assert shown.splitlines()[2].startswith(r"| a\|b \*c\* \`d\` \<script> \\e_f^g\~h 50%")
    assert shown.splitlines()[3] == "| [**n**](a%20b%28c%29.json) |"


def test_latex_of_names() -> None:
    shown = markup.tex(HOSTILE)
    assert markup.tex("-1.5 [-2.0, 3-4] x-1") == "$-$1.5 [$-$2.0, 3-4] x-1"
    assert shown == (
        r"a$|$b *c* `d` $<$script$>$ \textbackslash{}e\_f\textasciicircum{}g\textasciitilde{}h 50\% \& \#1 "
        r"\{x\} \$y\$ U+03B1"
    )


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex")
def test_latex_compiles_and_fits_the_page(whole: Path, tmp_path: Path) -> None:
    put(whole, 1, 36.0, attention=HOSTILE.replace("/", ""), task="Ümläut – 50% <task>", baselines={})
    typeset(tmp_path, files_of(whole)["table1.tex"], r"\ref{tab:listops-strict-best-val}")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex")
@pytest.mark.parametrize("folder", results_folders(CHECKOUT / "results"), ids=lambda folder: folder.name)
def test_the_latex_of_every_kept_folder_compiles(folder: Path, tmp_path: Path) -> None:
    typeset(tmp_path, pages.table_tex(Report(folder).sections))


def typeset(folder: Path, tables: str, more: str = "") -> None:
    """As the only thing in a paper, with a log that complains of nothing."""
    (folder / "table1.tex").write_text(tables)
    (folder / "paper.tex").write_text(
        r"\documentclass[a4paper]{article}\usepackage[margin=2cm]{geometry}\usepackage{booktabs,graphicx}"
        rf"\begin{{document}}\input{{table1}}{more}\end{{document}}"
    )
    for _ in range(2):
        done = subprocess.run(
            ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper"],
            cwd=folder, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "paper.pdf").exists()
    assert not re.search(r"Overfull|undefined|Missing character|multiply", (folder / "paper.log").read_text("latin-1"))


def test_texts_are_quoted_as_text(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = put(tmp_path, seed, 30.0)
        path.with_name("sample.txt").write_text(f"Once {seed}\n\n<b>upon</b> | a\n# time *\n")
    assert "\nSimple, seed 1:\n\n> Once 1 \\<b>upon\\</b> \\| a # time \\*\n" in page_of(tmp_path)
    change(path, files={"sample.txt": "0"})
    with pytest.raises(UserError, match=r"seed2/sample.txt: its SHA-256 is not that of its record"):
        Report(tmp_path)
