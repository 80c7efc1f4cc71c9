"""Hooks of MkDocs: the repository's Markdown files at their own paths, and the generated pages of pages.py."""

import re
from pathlib import Path

import pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parents[2]
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.png"),
    *("results/*.md", "results/bench/*", "results/*/*.svg", "results/*/runs.jsonl"),
)
COG = re.compile(r"<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n?", re.DOTALL)
NOTEBOOK = re.compile(r"(?<=\]\()([\w./-]*)\.ipynb(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation of mkdocs.yml."""
    studies = [{title: f"results/{folder}/README.md"} for folder, title in pages.titles().items()]
    config.nav += [
        {"Notebooks": [*pages.notebooks()]},
        {"Attentions": [*pages.attentions()]},
        {"Tasks": [{"Their data": "results/data.md"}, *pages.tasks()]},
        {"Results": ["results/README.md", "results/findings.md", {"Studies": studies}]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the site. They keep their paths, so that their links work."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    sources = {path.relative_to(TOP).as_posix(): path for pattern in SOURCES for path in TOP.glob(pattern)}
    sources |= {f"assets/{path.name}": path for path in Path(__file__).parent.glob("*.[cj]s*")}
    for place, path in sources.items():
        files.append(_file(config, place, abs_src_path=str(path)))
    for place, text in pages.every().items():
        files.append(_file(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the pages of notebooks instead of their files, and remove the marks of cog."""
    return COG.sub("", NOTEBOOK.sub(r"\1.md", markdown))


def _file(config: MkDocsConfig, place: str, **content: str) -> File:
    """Return a file of the site; a README keeps its name."""
    file = File.generated(config, place, **content)
    if place.endswith("README.md"):
        file.dest_uri = place.removesuffix(".md") + ".html"
    return file
