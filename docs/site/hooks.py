"""Hooks of MkDocs: the repository's Markdown files at their own paths, and pages from templates."""

import inspect
import json
import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import excerpts
import nbformat
from hydra.utils import get_class
from jinja2 import Environment, FileSystemLoader, StrictUndefined
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
from lra.reports.render import escape, mean_sd, number

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "results"
SOURCES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/*.md", "docs/*.png"),
    *("results/*.md", "results/bench/*.*", "results/bench/steps/*", "results/*/*.svg", "results/*/runs.jsonl"),
)
COG = re.compile(r"<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n?", re.DOTALL)
NOTEBOOK = re.compile(r"(?<=\]\()([\w./-]*)\.ipynb(?=\))")
NOISE = re.compile(r"typing\.|FieldInfo\(.*?metadata=\[(.*?)\]\)|, BeforeValidator\(.*?\)")  # of annotations
OPTIONS = re.compile(r"^\|.*`(task|attention)=`.*\n(?:\|.*\n)+", re.MULTILINE)  # a table of options
NAMES = re.compile(r"(?<=\| )(?:`\w+`(?:, )?)+(?= \|)")  # a cell of names, separated by commas
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")), undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


def types(owner: type) -> str:
    """Return a line with type and bounds for each option of a constructor."""
    options = [each for each in inspect.signature(owner).parameters.values() if each.kind is each.KEYWORD_ONLY]
    text = "\n".join(f"{each.name}: {inspect.formatannotation(each.annotation)}" for each in options)
    return NOISE.sub(r"\1", text)


TEMPLATES.filters |= {"md": escape, "mean_sd": mean_sd, "number": number, "types": types}
TEMPLATES.globals["documentation"] = lambda owner: sys.modules[owner.__module__].__doc__.strip()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation of mkdocs.yml."""
    studies = [{title: f"results/{folder}/README.md"} for folder, title in titles().items()]
    config.nav += [
        {"Notebooks": [*notebooks()]},
        {"Attentions": [*attentions()]},
        {"Tasks": [{"Their data": "results/data.md"}, *tasks()]},
        {"Results": ["results/README.md", "results/findings.md", {"Studies": studies}]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the site. They keep their paths, so that their links work."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    sources = {path.relative_to(TOP).as_posix(): path for pattern in SOURCES for path in TOP.glob(pattern)}
    scripts = [*Path(__file__).parent.glob("*.[cj]s*"), TOP / "lra/reports/assets/sortable.min.js"]
    sources |= {f"assets/{path.name}": path for path in scripts}
    texts = front() | attentions() | tasks() | studies() | notebooks()
    added = [File.generated(config, place, abs_src_path=str(path)) for place, path in sources.items()]
    for file in [*added, *(File.generated(config, place, content=text) for place, text in texts.items())]:
        if file.src_uri.endswith("README.md"):  # keeps its name
            file.dest_uri = file.src_uri.removesuffix(".md") + ".html"
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the pages of notebooks, and of options in tables of docs/, and remove the marks of cog."""

    def linked(table: re.Match) -> str:
        return NAMES.sub(lambda cell: re.sub(r"`(\w+)`", rf"[`\1`](../{table[1]}s/\1.md)", cell[0]), table[0])

    if page.file.src_uri.startswith("docs/"):
        markdown = OPTIONS.sub(linked, markdown)
    return COG.sub("", NOTEBOOK.sub(r"\1.md", markdown))


def reports() -> dict[str, Report]:
    """Return the report of each folder with kept runs by its name."""
    return {path.parent.name: excerpts.report(path.parent.name) for path in sorted(RESULTS.glob(f"*/{RUNS}"))}


def titles() -> dict[str, str]:
    """Return the title of each study by folder, as results/README.md links it."""
    links = re.findall(r"\[(.+?)\]\((\w+)/README\.md\)", (RESULTS / README).read_text())
    return {folder: title for title, folder in links}


def front() -> dict[str, str]:
    """Return the first page and its figure, published numbers and ours of Table 1."""
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
    files["index.md"] = _rendered(
        "front.md", panels=[*files], excerpts=excerpts, studies=listed.replace("](", "](results/")
    )
    return files


@cache
def attentions() -> dict[str, str]:
    """Return a table of all attentions, and a page for each: formula, cost, results, options, published numbers."""
    layers = {}
    for name in options("attention"):
        node = lra.compose(f"attention={name}", "task=text", "protocol=paper").settings.attention
        chosen = {key: value for key, value in node.items() if not key.startswith("_")}
        layers[name] = lra.attention(name, width=64, heads=4, max_len=1024, options=chosen)
    costs = json.loads((RESULTS / "bench/bench.json").read_text())["attentions"]["rows"]
    cells = [(folder, column.name, cell) for folder, report in reports().items()
             for column in report.columns for cell in column.cells if not cell.settings]  # fmt: skip
    rows = Published().systems
    published = [(source.name, row, task, value) for source in Published().sources
                 for row, numbers in source.best.items() for task, value in numbers.items() if row in rows]  # fmt: skip
    pages = {"attentions/all.md": _rendered("attentions.md", layers=layers)}
    for name, layer in layers.items():
        pages[f"attentions/{name}.md"] = _rendered(
            "attention.md",
            name=name,
            layer=layer,
            cost=costs.get(name),
            cells=[each for each in cells if each[2].attention == name],
            titles=titles(),
            published=[each for each in published if rows[each[1]].attention == name],
            yaml=(conf_dir() / "attention" / f"{name}.yaml").read_text(),
        )
    return pages


@cache
def tasks() -> dict[str, str]:
    """Return a page for each task: its docstring, options, and prepared data."""
    data = [line for line in (RESULTS / "data.md").read_text().splitlines() if line.startswith("| ")]
    pages = {}
    for name in options("task"):
        text = (conf_dir() / "task" / f"{name}.yaml").read_text()
        builder = get_class(compose("prepare", f"task={name}").task._target_)
        rows = [line for line in data if line.startswith((f"| {name} |", f"| {name} ("))]
        pages[f"tasks/{name}.md"] = _rendered("task.md", name=name, builder=builder, yaml=text, head=data[0], data=rows)
    return pages


def studies() -> dict[str, str]:
    """Return for each study the README of its report, followed by all figures, and the page with sortable tables."""
    files = {}
    for name, report in reports().items():
        figures = drawn(report.columns)[1]
        links = {}
        for title, panels in figures.items():
            slug = title.lower().replace(" ", "-")
            places = {f"{slug}-{place}.svg": panel for place, panel in enumerate(panels, start=1)}
            files |= {f"results/{name}/{place}": panel for place, panel in places.items()}
            links[title] = " ".join(f"![{title}]({place})" for place in places)
        text = (RESULTS / name / README).read_text().replace(f"# Results: {name}", f"# {titles()[name]}", 1)
        text = text.replace(f"![{SEEDS}]({SEEDS_FIGURE})", links.pop(SEEDS))
        text += "".join(f"\n## {title}\n\n{panels}\n" for title, panels in links.items())
        files[f"results/{name}/{README}"] = f"{text}\n[Sortable tables of all systems and seeds]({PAGE})\n"
        files[f"results/{name}/{PAGE}"] = report.page(figures)
    return files


@cache
def notebooks() -> dict[str, str]:
    """Run the notebooks, and return their pages."""
    return {f"notebooks/{path.stem}.md": _notebook(path) for path in sorted((TOP / "notebooks").glob("*.ipynb"))}


def _notebook(path: Path) -> str:
    """Run a notebook in an empty folder next to the results; return its text, code and outputs as Markdown."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "notebooks")
        folder.mkdir()
        Path(place, "results").symlink_to(RESULTS)
        environment = os.environ | {"LRA_CACHE": f"{place}/cache", "OMP_NUM_THREADS": "1"}
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute(env=environment)
    return _rendered("notebook.md", cells=notebook.cells, name=path.name)


def _rendered(template: str, **values: object) -> str:
    return TEMPLATES.get_template(template).render(**values)
