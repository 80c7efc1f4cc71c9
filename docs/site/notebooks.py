"""Notebooks as pages: text, code and saved outputs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "notebooks"


def pages(top: Path) -> dict[str, str]:
    """Return the text of each page by its path."""
    return {
        f"{FOLDER}/{path.stem}.md": "\n\n".join(_cells(json.loads(path.read_text()))) + "\n"
        for path in sorted((top / FOLDER).glob("*.ipynb"))
    }


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
        elif source:
            yield f"```python\n{source}\n```"
            yield from filter(None, map(_output, cell.get("outputs", [])))


def _output(output: dict[str, Any]) -> str:
    """Return a picture, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png'].split())})"
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text else ""
