"""Notebooks as pages: text, code, and the outputs of a run when the site is built."""

import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = "notebooks"
HOW = (
    "To run it: `pip install notebook`, then `jupyter notebook notebooks/{name}`, both in the environment of the "
    "[quick start](../docs/quickstart.md). The outputs below are of the build of this page."
)


@cache
def pages(top: Path) -> dict[str, str]:
    """Return the text of each page by its path."""
    return {f"{FOLDER}/{path.stem}.md": _page(top, path) for path in sorted((top / FOLDER).glob("*.ipynb"))}


def _page(top: Path, path: Path) -> str:
    """Run a notebook in an empty folder next to the results, and return its page."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, FOLDER)
        folder.mkdir()
        Path(place, "results").symlink_to(top / "results")
        os.environ |= {"LRA_CACHE": f"{place}/cache", "OMP_NUM_THREADS": "1"}
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        del os.environ["LRA_CACHE"]
    title, rest = notebook.cells[0].source.split("\n", 1)
    notebook.cells[0].source = f"{title}\n{rest}\n\n{HOW.format(name=path.name)}"
    return "\n\n".join(_cells(notebook)) + "\n"


def _cells(notebook: nbformat.NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell.source
        elif cell.source:
            yield f"```python\n{cell.source}\n```"
            yield from filter(None, map(_output, cell.outputs))


def _output(output: nbformat.NotebookNode) -> str:
    """Return a picture, a table, Markdown, or the text that was printed."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png'].split())})"
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "text/markdown" in data:
        return re.sub("^#", "###", data["text/markdown"], flags=re.MULTILINE)
    text = output.get("text", data.get("text/plain", "")) if output.get("name") != "stderr" else ""
    return f"```text\n{text.rstrip()}\n```" if text else ""
