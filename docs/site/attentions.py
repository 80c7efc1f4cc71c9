"""A page for every attention: what it is by its card, what it costs, how it learned here, its options, and what was
published of it."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import option_tables
import trained

from lra.config.compose import options
from lra.core.paths import CHECKOUT
from lra.report.published import Published

sys.path.append(str(CHECKOUT / "scripts"))
attentions_page = import_module("attentions_page")
FOLDER = "attentions"
ATTENTIONS = "attentions.json"  # costs, of scripts/attentions.sh
SUPPORTS = {
    "mask": "It can leave padding out",
    "causal": "It has a form for language models",
    "variants": "It can do without the output projection (`variant=simple`, `simple_res`)",
    "order": "Without positions it tells permuted inputs apart",
}


def places() -> list[str]:
    """The pages, for the navigation."""
    return [f"{FOLDER}/{name}.md" for name in options("attention")]


def pages(top: Path) -> dict[str, str]:
    """The text of each page; `top`: the checkout, whose results have the costs."""
    kept = top / "results" / ATTENTIONS
    costs = json.loads(kept.read_text())["rows"] if kept.exists() else {}
    published, runs = Published(), trained.trained(top)
    return {
        f"{FOLDER}/{name}.md": "\n".join(_page(name, costs.get(name), runs[name], published)) + "\n"
        for name in options("attention")
    }


def _page(name: str, cost: dict[str, Any] | None, runs: list[trained.Trained], published: Published) -> Iterator[str]:
    given = attentions_page.settings(f"attention={name}")
    mixer = attentions_page.mixer_of(given)
    card = mixer.card
    yield f"# {name}\n"
    yield f"{card.paper}.\n"
    yield f"```text\n{card.formula}\n```\n"
    yield f"```bash\nlra-train attention={name} experiment=small_listops\nlra-check attention={name}\n```\n"
    yield "The formula is that of `task=text protocol=paper`; other protocols scale scores in other ways.\n"
    yield "## What it supports\n"
    yield from (
        f"- {SUPPORTS[flag]}: {'yes' if holds else 'no'}." for flag, holds in attentions_page.flags_of(mixer).items()
    )
    yield f"- Checked against: {card.oracle}.\n"
    yield "## Cost\n"
    growth = "no faster than the length" if card.linear else "faster than the length"
    yield f"Time O({card.time}). The memory of a training step grows {growth}.\n"
    yield from _measured(cost)
    yield from trained.section(runs)
    yield "## Deviations\n"
    yield from [f"- {deviation}" for deviation in card.deviations] or ["None from its paper is known."]
    yield "\n## Options\n"
    yield option_tables.introduction("attention", name) + "\n"
    yield from option_tables.table("attention", name, given.attention)
    yield "\nThe defaults are those of `task=text protocol=paper`.\n"
    yield from _published(name, published)
    yield "## What the code says\n"
    yield f"```text\n{import_module(type(mixer).__module__).__doc__.strip()}\n```"


def _measured(cost: dict[str, Any] | None) -> Iterator[str]:
    if cost is None:
        yield "It was not measured.\n"
        return
    yield "One layer, forward and backward, beside `simple` ([all attentions](../results/attentions.md)):\n"
    yield "| positions | time [least, most] | memory |\n|---:|---:|---:|"
    for length, measured in cost["lengths"].items():
        middle, least, most = measured["ratio"]
        yield f"| {int(length):,} | {middle:.2f} [{least:.2f}, {most:.2f}] | {measured['memory']:.2f} |"
    yield ""


def _published(name: str, published: Published) -> Iterator[str]:
    """The numbers that sources print for the rows of this attention."""
    rows = {row.name: row for row in published.rows() if row.attention == name}
    lines = [
        f"| {source.name} | {row} | {published.title(task)} | {value:.2f} |"
        for source in published.sources
        for row in rows
        for task, value in source.best.get(row, {}).items()
    ]
    if lines:
        yield "## Published numbers\n"
        yield "Test accuracy in percent, the number that the source prints.\n"
        yield "| source | row | task | accuracy |\n|---|---|---|---:|"
        yield from lines
        yield ""
