"""A page for each task: question, an example if it can be generated, options, prepared data with baselines."""

import io
import math
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import option_tables
from omegaconf import OmegaConf
from PIL import Image, ImageDraw

from lra.config import configure
from lra.config.compose import compose, options
from lra.core.errors import UserError
from lra.datasets.probes import BLOCK, Draws, Probe
from lra.datasets.tokenise import BYTE_VOCABULARY, byte_ids
from lra.tasks import TaskBuilder, no_op_progress
from lra.tasks._listops_trees import WORDS, generate
from lra.tasks._pathfinder_snakes import block
from lra.tasks.listops import ListOps
from lra.tasks.pathfinder import Pathfinder

FOLDER = "tasks"
DATA = "results/data.md"
SHORT = {"min_length": 10, "max_length": 40, "max_depth": 4, "max_args": 5}
SAMPLE = "A fine film."
PICTURES, LARGEST = 9, 32  # pixels of a side; larger ones take too long to draw here
SHORTEST, CAPTION, GAP = 96, 14, 4  # pixels: smallest side of a picture, height of its label, gap
QUESTIONS = {
    "classify": "One of {classes} classes for each example.",
    "next_token": "The next token at every position, one of {classes}.",
    "positions": "One of {classes} answers at each position that is scored.",
    "reconstruct": "All tokens, from what the last position holds.",
}


def places() -> list[str]:
    """Return the pages, for the navigation."""
    return [f"{FOLDER}/{name}.md" for name in options("task")]


def pages(top: Path) -> dict[str, str]:
    """Return the text of each page; `top` is the checkout, whose results/data.md has the prepared data."""
    rows = [line for line in (top / DATA).read_text().splitlines() if line.startswith("|")]
    return {f"{FOLDER}/{name}.md": "\n".join(_page(name, rows)) + "\n" for name in options("task")}


def _page(name: str, rows: list[str]) -> Iterator[str]:
    node = OmegaConf.to_container(compose("prepare", f"task={name}")["task"], resolve=True)
    yield f"# {name}\n"
    yield option_tables.introduction("task", name) + "\n"
    builder = _builder(node)
    if builder is not None:
        spec = builder.spec
        yield QUESTIONS[spec.objective].format(classes=f"{spec.classes:,}")
        texts = "Pairs of documents of" if spec.documents == 2 else "Documents of"
        yield f"{texts} at most {spec.max_len:,} tokens, {spec.vocab_size - 1:,} of which are different;"
        yield f"measured by {spec.metric}{', causal' if spec.causal else ''}.\n"
        yield "\n".join(_example(builder)) + "\n"
    yield f"```bash\nlra-prepare task={name}\nlra-train task={name} attention=simple describe=true\n```\n"
    yield "## Options\n"
    yield from option_tables.table("task", name, node)
    yield "\nWhere the data come from and how they are kept: [tasks and data](../docs/tasks.md).\n"
    yield from _prepared(name, rows)


def _builder(node: dict[str, Any]) -> TaskBuilder | None:
    """Return the builder, or None if an option has no default."""
    try:
        return configure.build(node, "task", [])()
    except UserError:
        return None


def _prepared(name: str, rows: list[str]) -> Iterator[str]:
    """Yield the rows of results/data.md for a task."""
    own = [row for row in rows if row.startswith((f"| {name} |", f"| {name} ("))]
    if own:
        yield "## Prepared data\n"
        yield from [*rows[:2], *own]
        yield "\nSources and licences: [data](../results/data.md).\n"


def _example(builder: TaskBuilder) -> list[str]:
    if isinstance(builder, Probe):
        return _of_probe(builder)
    if isinstance(builder, ListOps):
        tokens, offsets, labels = generate(1, **SHORT, seed=builder.seed, workers=1, progress=no_op_progress)
        words = [(WORDS[token - 1], False) for token in tokens[: offsets[1]]]
        says = "An example, shorter than those of the task; its class is the value of the expression"
        return [f"{says}, {labels[0]}:\n", _strip(words)]
    if isinstance(builder, Pathfinder) and builder.design.window <= LARGEST:
        return _of_pictures(builder)
    if builder.spec.vocab_size == BYTE_VOCABULARY:
        ids = " ".join(map(str, byte_ids(SAMPLE.encode(), len(SAMPLE))))
        return [f"A token is a byte plus one, and 0 is padding: `{SAMPLE}` becomes `{ids}`."]
    return []


def _of_probe(probe: Probe) -> list[str]:
    """Return the first training example."""
    tokens, answers = probe.draw(Draws(probe.seed, 0, 0), BLOCK, train=True)
    scored = answers[0] >= 0
    lines = ["The first example of train, with the positions that are scored marked:\n"]
    lines.append(_strip(zip(map(str, tokens[0]), scored, strict=True)))
    if probe.objective == "positions":
        lines.append(f"\nThe answers there: {', '.join(map(str, np.asarray(answers[0])[scored]))}.")
    return lines


def _of_pictures(builder: Pathfinder) -> list[str]:
    """Return the first training pictures."""
    images = block(0, builder.seed, builder.design)
    png = _sheet(images.pixels[:PICTURES].reshape(PICTURES, -1), images.labels[:PICTURES])
    says = "The first pictures of train, with their labels"
    return [f"{says}:\n", f"![{says}](data:image/png;base64,{b64encode(png).decode()})"]


def _sheet(grey: np.ndarray, labels: np.ndarray) -> bytes:
    """Draw square pictures with their labels on one sheet, as a PNG.

    Args:
        grey: grey values [n, pixels].
        labels: [n].
    """
    number = len(grey)
    side = math.isqrt(grey.shape[1])
    scale = math.ceil(SHORTEST / side)
    columns = math.ceil(math.sqrt(number))
    width, height = side * scale + GAP, side * scale + CAPTION + GAP
    canvas = Image.new("L", (columns * width + GAP, math.ceil(number / columns) * height + GAP), 255)
    for place, (picture, label) in enumerate(zip(grey.reshape(number, side, side), labels, strict=True)):
        x, y = GAP + place % columns * width, GAP + place // columns * height
        ImageDraw.Draw(canvas).text((x, y), f"label {label}", fill=0)
        large = Image.fromarray(picture).resize((side * scale, side * scale), Image.Resampling.NEAREST)
        canvas.paste(large, (x, y + CAPTION))
    png = io.BytesIO()
    canvas.save(png, "PNG", optimize=True)
    return png.getvalue()


def _strip(words: Any) -> str:
    """Return tokens side by side, the scored ones marked."""
    cells = [f'<span class="{"scored" if marked else "token"}">{escape(word)}</span>' for word, marked in words]
    return f'<div class="tokens">{" ".join(cells)}</div>'
