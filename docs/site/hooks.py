"""What mkdocs asks for while it builds the site: its files and its navigation."""

import re
from pathlib import Path

import attentions
import tasks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import notebooks
from lra.report.check.numbers import without_marks

TOP = Path(__file__).resolve().parents[2]
ASSETS = ("site.css", "site.js", "iframe-worker.js")
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.svg"),
    *("results/*.md", "results/*.json", "results/*.svg", "results/bench/*"),
    *(f"results/*/{name}" for name in ("README.md", "cards.md", "index.html", "*.svg", "receipts.zip")),
)
LANDING = "results/index.html"
DOORS = {
    "README.html": "start",
    "docs/your-attention.html": "your attention",
    "docs/data.html": "your data",
    "docs/cluster.html": "a cluster",
    "attentions/all.html": "attentions",
    "results/findings.html": "findings",
}
THEME = '<button type="button" id="theme">'
HREF = re.compile(r'(?<=href=")(?!#|\w+:)([^"#]+?)(\.md)?(?=["#])')
NOTEBOOK = re.compile(r"(?<=\]\()([\w./-]*)\.ipynb(?=\))")
FIRST_CELL = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Behind the pages of mkdocs.yml: those of Python, where there are some, attentions, tasks and results."""
    python = [*(["docs/api.md"] if (TOP / "docs" / "api.md").exists() else []), *notebooks.pages(TOP)]
    config.nav += [{"Python": python}] if python else []
    config.nav.append({"Attentions": [*attentions.places()]})
    config.nav.append({"Tasks": [{"Their data": "results/data.md"}, *tasks.places()]})
    config.nav.append({"Results": _results()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's files at their own paths, so that their links hold, and what is made here."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted({path for pattern in SOURCES for path in TOP.glob(pattern)}):
        files.append(_file(config, path.relative_to(TOP).as_posix(), abs_src_path=str(path)))
    landing = (TOP / LANDING).read_text()
    files.append(_file(config, LANDING, content=_linked_page(landing)))
    files.append(_file(config, "index.html", content=_front(_linked_page(landing, "results/"))))
    for name in ASSETS:
        files.append(_file(config, f"assets/{name}", abs_src_path=str(Path(__file__).with_name(name))))
    for place, text in {**attentions.pages(TOP), **tasks.pages(TOP), **notebooks.pages(TOP)}.items():
        files.append(_file(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Without the names of numbers, and with links to what is made here: from tables of attentions and tasks to their
    pages, and from a notebook's file to its page."""
    folder = {"docs/data.md": tasks.FOLDER}.get(page.file.src_uri)
    if folder is not None:
        markdown = FIRST_CELL.sub(lambda cell: _linked(cell, folder, files), markdown)
    if page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    return without_marks(NOTEBOOK.sub(r"\1.md", markdown))


def _linked_page(text: str, folder: str = "") -> str:
    """The page of all results, with links to what is made of texts here, seen from where it lies
    below `folder`."""
    missing = [link[0] for link in HREF.finditer(text) if not (TOP / "results" / f"{link[1]}{link[2] or ''}").exists()]
    if missing:
        raise PluginError(f"{LANDING}: no file {missing[0]}")
    return HREF.sub(lambda link: f"{folder}{link[1]}{'.html' * bool(link[2])}", text)


def _front(landing: str) -> str:
    """The page of all results as the first of the site, with doors to the others."""
    if THEME not in landing:
        raise PluginError(f"{LANDING}: expected a header with {THEME}")
    doors = " · ".join(f'<a href="{address}">{text}</a>' for address, text in DOORS.items())
    title = landing.replace("<title>Results</title>", "<title>lra</title>").replace("<h1>Results</h1>", "<h1>lra</h1>")
    return title.replace(THEME, f"<nav>{doors}</nav>{THEME}", 1)


def _linked(cell: re.Match, folder: str, files: Files) -> str:
    place = f"{folder}/{cell[1]}.md"
    return f"| [`{cell[1]}`](../{place}) |" if files.get_file_from_path(place) else cell[0]


def _file(config: MkDocsConfig, place: str, **content: str) -> File:
    """A README keeps its name: index.html is a page that a report wrote."""
    file = File.generated(config, place, **content)
    if place.endswith("README.md"):
        file.dest_uri = place.removesuffix(".md") + ".html"
    return file


def _results() -> list:
    """What is written of all results, and a page for each folder of them."""
    over_all = [path for path in sorted((TOP / "results").glob("*.md")) if path.stem != "data"]
    folders = sorted({path.parent for path in (TOP / "results").glob("*/README.md")})
    return [
        *(path.relative_to(TOP).as_posix() for path in over_all),
        {"Trained": [{folder.name: f"results/{folder.name}/README.md"} for folder in folders]},
    ]
