"""What mkdocs asks for while it builds the site: its files and its navigation."""

import re
from pathlib import Path

import attentions
import tasks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import notebooks

TOP = Path(__file__).resolve().parents[2]
ASSETS = ("site.css", "site.js", "iframe-worker.js")
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.svg"),
    *("results/*.md", "results/*.json", "results/*.svg", "results/bench/*"),
    *(f"results/*/{name}" for name in ("README.md", "*.svg", "runs.jsonl")),
)
TABLE_1 = "results/table1_narrow/README.md"
COG = re.compile(r"<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n?", re.DOTALL)
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
    files.append(_file(config, "index.md", content=_front()))
    for name in ASSETS:
        files.append(_file(config, f"assets/{name}", abs_src_path=str(Path(__file__).with_name(name))))
    for place, text in {**attentions.pages(TOP), **tasks.pages(TOP), **notebooks.pages(TOP)}.items():
        files.append(_file(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link tables of attentions and tasks to the pages that are made of them, and notebooks to their pages."""
    folder = {"docs/data.md": tasks.FOLDER}.get(page.file.src_uri)
    if folder is not None:
        markdown = FIRST_CELL.sub(lambda cell: _linked(cell, folder, files), markdown)
    if page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    return COG.sub("", NOTEBOOK.sub(r"\1.md", markdown))


def _front() -> str:
    """Return the first page: Table 1 as it was run here, and all studies."""
    table = (TOP / TABLE_1).read_text().partition("\n## ")[0].partition("\n")[2]
    table = table.replace("](", f"]({Path(TABLE_1).parent.as_posix()}/")
    studies = (TOP / "results" / "README.md").read_text().partition("| folder |")[2].partition("\n## ")[0]
    studies = "| folder |" + studies.replace("](", "](results/")
    return f"""# Long Range Arena: attentions compared

[Start](README.md) · [your attention](docs/your-attention.md) · [your data](docs/data.md) ·
[experiments](docs/experiments.md) · [findings](results/findings.md)

## Table 1 of SimpleTRON, two blocks of width 64
{table}
## All studies

{studies}
"""


def _linked(cell: re.Match, folder: str, files: Files) -> str:
    place = f"{folder}/{cell[1]}.md"
    return f"| [`{cell[1]}`](../{place}) |" if files.get_file_from_path(place) else cell[0]


def _file(config: MkDocsConfig, place: str, **content: str) -> File:
    """Return a file of the site; a README keeps its name."""
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
