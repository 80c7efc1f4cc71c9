"""A table of all attentions and a page for each: description, cost, results, options, published numbers."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import option_tables
import torch
import trained

import lra
from lra.config.compose import options
from lra.config.settings import Settings
from lra.mixers.base import Mixer
from lra.reports.published import Published
from lra.runs.build import assemble

FOLDER = "attentions"
ALL = f"{FOLDER}/all.md"
COSTS = "results/bench/bench.json"
SUPPORTS = {
    "mask": "It can mask padding",
    "causal": "It has a causal form",
    "variants": "It works without the output projection (`variant=simple`, `simple_res`)",
    "order": "Without positions it distinguishes permuted inputs",
}


def places() -> list[str]:
    """Return the pages, for the navigation."""
    return [ALL, *(f"{FOLDER}/{name}.md" for name in options("attention"))]


def pages(top: Path) -> dict[str, str]:
    """Return the text of each page; `top` is the checkout, whose results have the costs."""
    costs = json.loads((top / COSTS).read_text())["attentions"]["rows"]
    published, runs = Published(), trained.trained(top)
    settings = {name: lra.compose(f"attention={name}", "task=text").settings for name in options("attention")}
    mixers = {name: _mixer(given) for name, given in settings.items()}
    texts = {ALL: _table(mixers)}
    for name, mixer in mixers.items():
        texts[f"{FOLDER}/{name}.md"] = _page(name, settings[name], mixer, costs.get(name), runs[name], published)
    return {place: "\n".join(lines) + "\n" for place, lines in texts.items()}


def _mixer(settings: Settings) -> Mixer:
    """Return the attention of these settings on the meta device."""
    system = assemble(settings)
    with torch.device("meta"):
        return system.model(system.builder.spec).blocks[0].mixer


def _flags(mixer: Mixer) -> dict[str, bool]:
    return {
        "mask": mixer.maskable,
        "causal": mixer.can_be_causal,
        "variants": mixer.projects_out,
        "order": not mixer.commutes,
    }


def _table(mixers: dict[str, Mixer]) -> Iterator[str]:
    yield "# Attentions\n"
    yield "As configured for `task=text protocol=paper`. Measured costs are in [bench](../results/bench/README.md).\n"
    yield "| `attention=` | paper | formula | time | mask | causal | variants | order matters | checked against |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, mixer in mixers.items():
        info = mixer.info
        formula = info.formula.replace("|", "\\|").replace("](", "]\\(")
        flags = " | ".join("yes" if flag else "no" for flag in _flags(mixer).values())
        yield f"| [`{name}`]({name}.md) | {info.paper} | {formula} | {info.complexity} | {flags} | {info.reference} |"
    yield "\n*mask*: can mask padding. *causal*: has a causal form. *variants*: works without the"
    yield "output projection. *order matters*: without positions it distinguishes permuted inputs."


def _page(
    name: str,
    given: Settings,
    mixer: Mixer,
    cost: dict[str, Any] | None,
    runs: list[trained.Trained],
    published: Published,
) -> Iterator[str]:
    info = mixer.info
    yield f"# {name}\n"
    yield f"{info.paper}.\n"
    yield f"```text\n{info.formula}\n```\n"
    yield f"```bash\nlra-train attention={name} experiment=small_listops\nlra-check attention={name}\n```\n"
    yield "The formula is that of `task=text protocol=paper`; other protocols scale scores in other ways.\n"
    yield "## What it supports\n"
    yield from (f"- {SUPPORTS[flag]}: {'yes' if holds else 'no'}." for flag, holds in _flags(mixer).items())
    yield f"- Checked against: {info.reference}.\n"
    yield "## Cost\n"
    growth = "no faster than the length" if info.linear_memory else "faster than the length"
    yield f"Time O({info.complexity}). The memory of a training step grows {growth}.\n"
    yield from _measured(cost)
    yield from trained.section(runs)
    yield "## Deviations\n"
    yield from [f"- {deviation}" for deviation in info.deviations] or ["None known."]
    yield "\n## Options\n"
    yield option_tables.introduction("attention", name) + "\n"
    yield from option_tables.table("attention", name, given.attention)
    yield "\nThe defaults are those of `task=text protocol=paper`.\n"
    yield from _published(name, published)
    yield "## Notes from the code\n"
    yield f"```text\n{import_module(type(mixer).__module__).__doc__.strip()}\n```"


def _measured(cost: dict[str, Any] | None) -> Iterator[str]:
    if cost is None:
        yield "Not measured.\n"
        return
    yield "One layer, forward and backward, next to `simple` ([all attentions](../results/bench/README.md)):\n"
    yield "| positions | time [least, most] | memory |\n|---:|---:|---:|"
    for length, measured in cost["lengths"].items():
        middle, least, most = measured["ratio"]
        yield f"| {int(length):,} | {middle:.2f} [{least:.2f}, {most:.2f}] | {measured['memory']:.2f} |"
    yield ""


def _published(name: str, published: Published) -> Iterator[str]:
    """Yield the published numbers of this attention."""
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
