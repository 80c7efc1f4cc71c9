"""Hooks of MkDocs that build the site from templates and from the Markdown files of the repository."""

import inspect
import json
import os
import re
import tempfile
from functools import cache
from pathlib import Path

import excerpts
import nbformat
from excerpts import RESULTS, rendered
from hydra.utils import get_class
from matplotlib.figure import Figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient

import lra
from lra.config.compose import compose, options
from lra.core.paths import conf_dir
from lra.records.names import PAGE, README, RUNS, SEEDS_FIGURE
from lra.reports import Report
from lra.reports.figures import COLOURS, CROSS, DOT, LINE, RULE, SEEDS, WIDTH, drawn, rows, styled, svg
from lra.reports.published import Published

TOP = Path(__file__).resolve().parents[2]
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.png"),
    *("results/*.md", "results/bench/*.*", "results/bench/steps/*", "results/*/*.svg", "results/*/runs.jsonl"),
)
COG = re.compile(r"<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n?", re.DOTALL)
NOTEBOOK = re.compile(r"(?<=\]\()([\w./-]*)\.ipynb(?=\))")
# parts of annotations that say nothing about a value; of a FieldInfo, only the bounds (group 1) remain
NOISE = re.compile(r"typing\.|FieldInfo\(.*?metadata=\[(.*?)\]\)|, BeforeValidator\(.*?\)")
OPTIONS = re.compile(r"^\|.*`(task|attention)=`.*\n(?:\|.*\n)+", re.MULTILINE)  # table of tasks or attentions
NAMES = re.compile(r"(?<=\| )(?:`\w+`(?:, )?)+(?= \|)")  # table cell with names, separated by commas


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to `nav` of mkdocs.yml."""
    studies = [{title: f"results/{folder}/README.md"} for folder, title in titles().items()]
    config.nav += [
        {"Notebooks": [*notebooks()]},
        {"Attentions": [*attentions()]},
        {"Tasks": [{"Their data": "results/data.md"}, *tasks()]},
        {"Results": ["results/README.md", "results/findings.md", {"Studies": studies}]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the site. Files of the repository keep their paths, so that links work."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    sources = {path.relative_to(TOP).as_posix(): path for pattern in SOURCES for path in TOP.glob(pattern)}
    scripts = [*Path(__file__).parent.glob("*.[cj]s*"), TOP / "lra/reports/assets/sortable.min.js"]
    sources |= {f"assets/{path.name}": path for path in scripts}
    texts = front() | attentions() | tasks() | studies() | notebooks()
    added = [File.generated(config, place, abs_src_path=str(path)) for place, path in sources.items()]
    for file in [*added, *(File.generated(config, place, content=text) for place, text in texts.items())]:
        if file.src_uri.endswith("README.md"):  # MkDocs would name it index.html
            file.dest_uri = file.src_uri.removesuffix(".md") + ".html"
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to notebooks to their pages, link the options in tables of docs/, and remove the comments of cog."""

    def linked(table: re.Match) -> str:
        return NAMES.sub(lambda cell: re.sub(r"`(\w+)`", rf"[`\1`](../{table[1]}s/\1.md)", cell[0]), table[0])

    if page.file.src_uri.startswith("docs/"):
        markdown = OPTIONS.sub(linked, markdown)
    return COG.sub("", NOTEBOOK.sub(r"\1.md", markdown))


def reports() -> dict[str, Report]:
    """Return the report of each folder in results/ that has kept runs, by the name of the folder."""
    return {path.parent.name: excerpts.report(path.parent.name) for path in sorted(RESULTS.glob(f"*/{RUNS}"))}


def titles() -> dict[str, str]:
    """Return the title of each study in results/README.md, by the name of its folder."""
    links = re.findall(r"\[(.+?)\]\((\w+)/README\.md\)", (RESULTS / README).read_text())
    return {folder: title for title, folder in links}


def front() -> dict[str, str]:
    """Return index.md and the figures of published accuracies and ours in Table 1, one SVG for each task, by path."""
    source, columns = Published().sources[0], {column.task: column for column in reports()["table1_narrow"].columns}
    files = {}
    with styled():
        for task, title in excerpts.TASKS.items():
            cells = {cell.system: cell.summary for cell in columns[task].cells} if task in columns else {}
            names = [name for name in (*source.best, "Convolution") if source.number(name, task) or name in cells]
            figure = Figure(figsize=(WIDTH, LINE * len(names) + 0.7), layout="constrained")
            axis = figure.subplots()
            for y, name in enumerate(names):
                for which, marker, colour in (("best", "x", CROSS), ("mean", "D", COLOURS[1])):
                    if (value := source.number(name, task, which)) is not None:
                        axis.scatter([value], [y], marker=marker, s=18, color=colour, zorder=2)
                if own := cells.get(name):
                    axis.errorbar([own.mean], [y], xerr=[own.sd], fmt="o", color=DOT, capsize=2, zorder=3)
            if cells:
                axis.axvline(columns[task].best_baseline[1], color=RULE, linestyle="--")
            rows(axis, names)
            axis.set_title(title)
            axis.set_xlabel("test accuracy (%)")
            files[f"assets/overview-{task}.svg"] = svg(figure)
    listed = (RESULTS / README).read_text().partition("| study |")[2].partition("\n## ")[0]
    studies = listed.replace("](", "](results/")
    return files | {"index.md": rendered("front.md", panels=[*files], excerpts=excerpts, studies=studies)}


@cache
def attentions() -> dict[str, str]:
    """Return a page with a table of all attentions, and a page for each attention, by path."""
    layers = {}
    for name in options("attention"):
        node = lra.compose(f"attention={name}", "task=text", "protocol=paper").settings.attention
        chosen = {key: value for key, value in node.items() if not key.startswith("_")}
        layers[name] = lra.attention(name, width=64, heads=4, max_len=1024, options=chosen)
    costs = json.loads((RESULTS / "bench/bench.json").read_text())["attentions"]["rows"]
    cells = [
        (folder, column.name, cell)
        for folder, report in reports().items()
        for column in report.columns
        for cell in column.cells
        if not cell.settings
    ]
    known = Published()
    published = [
        (source.name, known.systems[row], task, value)
        for source in known.sources
        for row, best in source.best.items()
        if row in known.systems
        for task, value in best.items()
    ]
    values = {"costs": costs, "titles": titles(), "cells": cells, "published": published}
    pages = {"attentions/all.md": rendered("attentions.md", layers=layers)}
    for name, layer in layers.items():
        option = described("attention", name, type(layer.mixer))
        pages[f"attentions/{name}.md"] = rendered("attention.md", layer=layer, **values, **option)
    return pages


@cache
def tasks() -> dict[str, str]:
    """Return a page for each task, by path."""
    data = [line for line in (RESULTS / "data.md").read_text().splitlines() if line.startswith("| ")]
    pages = {}
    for name in options("task"):
        option = described("task", name, get_class(compose("prepare", f"task={name}").task._target_))
        rows = [line for line in data if line.startswith((f"| {name} |", f"| {name} ("))]
        pages[f"tasks/{name}.md"] = rendered("task.md", head=data[0], data=rows, **option)
    return pages


def described(group: str, name: str, owner: type) -> dict[str, str]:
    """Return template values of an option: name, YAML file, docstring of its module, and the type of each key."""
    keys = [each for each in inspect.signature(owner).parameters.values() if each.kind is each.KEYWORD_ONLY]
    types = "\n".join(f"{each.name}: {inspect.formatannotation(each.annotation)}" for each in keys)
    yaml, module = (conf_dir() / group / f"{name}.yaml").read_text(), inspect.getmodule(owner)
    return {"name": name, "yaml": yaml, "documentation": module.__doc__.strip(), "types": NOISE.sub(r"\1", types)}


def studies() -> dict[str, str]:
    """Return the files of each study by path: README.md with all figures, their SVGs, and index.html."""
    files = {}
    for name, report in reports().items():
        figures = drawn(report.columns)[1]
        links = {}
        for title, panels in figures.items():
            names = [f"{title.lower().replace(' ', '-')}-{index}.svg" for index in range(1, len(panels) + 1)]
            files |= {f"results/{name}/{file}": panel for file, panel in zip(names, panels, strict=True)}
            links[title] = " ".join(f"![{title}]({file})" for file in names)
        text = (RESULTS / name / README).read_text().replace(f"# Results: {name}", f"# {titles()[name]}", 1)
        text = text.replace(f"![{SEEDS}]({SEEDS_FIGURE})", links.pop(SEEDS))
        text += "".join(f"\n## {title}\n\n{panels}\n" for title, panels in links.items())
        files[f"results/{name}/{README}"] = f"{text}\n[Sortable tables of all systems and seeds]({PAGE})\n"
        files[f"results/{name}/{PAGE}"] = report.page(figures)
    return files


@cache
def notebooks() -> dict[str, str]:
    """Run the notebooks, each in an empty folder beside `results`; return pages of text, code and outputs by path."""
    pages = {}
    for path in sorted((TOP / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "notebooks")
            folder.mkdir()
            Path(place, "results").symlink_to(RESULTS)
            environment = os.environ | {"LRA_CACHE": f"{place}/cache", "OMP_NUM_THREADS": "1"}
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute(env=environment)
        pages[f"notebooks/{path.stem}.md"] = rendered("notebook.md", cells=notebook.cells, name=path.name)
    return pages
