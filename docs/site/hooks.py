"""Hooks of mkdocs: the files and the navigation of the site."""

import re
from pathlib import Path
from textwrap import indent

import attentions
import excerpts
import studies
import tasks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import notebooks

TOP = Path(__file__).resolve().parents[2]
ASSETS = {
    **{f"assets/{name}": Path(__file__).with_name(name) for name in ("site.css", "site.js", "iframe-worker.js")},
    "assets/sortable.js": TOP / "lra/reports/assets/sortable.min.js",
    "assets/sortable.LICENSE": TOP / "lra/reports/assets/sortable.LICENSE",
}
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.png"),
    *("results/*.md", "results/bench/*", "results/*/*.svg", "results/*/runs.jsonl"),
)
COG = re.compile(r"<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n?", re.DOTALL)
NOTEBOOK = re.compile(r"(?<=\]\()([\w./-]*)\.ipynb(?=\))")
FIRST_CELL = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add attentions, tasks, results and notebooks to the navigation of mkdocs.yml."""
    config.nav.append({"Notebooks": [*notebooks.pages(TOP)]})
    config.nav.append({"Attentions": [*attentions.places()]})
    config.nav.append({"Tasks": [{"Their data": "results/data.md"}, *tasks.places()]})
    config.nav.append({"Results": _results()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's files at their own paths, so that their links work, and the generated pages."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted({path for pattern in SOURCES for path in TOP.glob(pattern)}):
        files.append(_file(config, path.relative_to(TOP).as_posix(), abs_src_path=str(path)))
    files.append(_file(config, "index.md", content=_front()))
    for place, path in ASSETS.items():
        files.append(_file(config, place, abs_src_path=str(path)))
    generated = {
        **studies.overview(TOP),
        **attentions.pages(TOP),
        **tasks.pages(TOP),
        **notebooks.pages(TOP),
        **studies.pages(TOP),
    }
    for place, text in generated.items():
        files.append(_file(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link tasks to their pages, notebooks to theirs, and remove blocks of cog."""
    folder = {"docs/tasks.md": tasks.FOLDER}.get(page.file.src_uri)
    if folder is not None:
        markdown = FIRST_CELL.sub(lambda cell: _linked(cell, folder, files), markdown)
    return COG.sub("", NOTEBOOK.sub(r"\1.md", markdown))


def _front() -> str:
    """Return the first page: Table 1, what small models learn, recent mixers, three findings, all studies."""
    tabs = {
        "Table 1": "Accuracy in percent; ours: mean ± sd, width 64 at the published lengths. All rows and deviations:\n"
        "[Table 1, narrow](results/table1_narrow/README.md).\n" + excerpts.table1(),
        "Learnability": "Seeds that reach 99 % validation accuracy in 5,000 steps\n"
        "([report, with median steps](results/hour/README.md)).\n" + excerpts.solved("hour", excerpts.OLDER),
        "Newer mixers": "The same for recent mixers ([report](results/present/README.md)).\n"
        + excerpts.solved("present", excerpts.NEWER),
    }
    listed = (TOP / "results" / "README.md").read_text().partition("| study |")[2].partition("\n## ")[0]
    listed = "| study |" + listed.replace("](", "](results/")
    overview = " ".join(f"![Published and own accuracies of each system]({place})" for place in studies.overview(TOP))
    return f"""---
hide: [navigation, toc]
---

# Long Range Arena: attentions compared

Which attentions learn the tasks of the Long Range Arena, in how many seeds, and at what cost: next to
trivial baselines and published numbers.

{overview}

Cross: published, the best of five seeds for Simple and its variants. Diamond: published mean of Simple (66.61, 73.74,
37.15). Dot and bar: our mean ± sd at width 64. Dashed line: best trivial baseline.

{"".join(_tab(title, text) for title, text in tabs.items())}
## Three findings

- A lookup table on the first three tokens scores 37.2 % on ListOps, more than 16 of the 20 published systems.
- On short ListOps the Transformer scores 49.0 % and Simple 38.8 % after up to 5,000 steps; after 1,200 steps the
  difference is not significant.
- Simple recalls twelve pairs in as many seeds as the Transformer, but needs 4,400 steps instead of 800.

[All findings](results/findings.md) · [quick start](docs/quickstart.md) · [reproduce](docs/reproduce.md)

## All studies

{listed}
"""


def _tab(title: str, text: str) -> str:
    """Return a content tab of pymdownx."""
    return f'=== "{title}"\n\n{indent(text.strip(), "    ")}\n\n'


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
    """Return the pages over all results, and the page of each study."""
    over_all = [path for path in sorted((TOP / "results").glob("*.md")) if path.stem != "data"]
    folders = sorted({path.parent for path in (TOP / "results").glob("*/README.md")})
    return [
        *(path.relative_to(TOP).as_posix() for path in over_all),
        {"Studies": [{studies.titles(TOP)[folder.name]: f"results/{folder.name}/README.md"} for folder in folders]},
    ]
