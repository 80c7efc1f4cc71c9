"""results/attentions.md: what each attention is, in what it deviates, what it adds, what it supports, what it was
checked against, and what it costs beside `simple`.

    python scripts/attentions_page.py PAGE                       (the costs that attentions.json beside it has)
    python scripts/attentions_page.py PAGE --measure             (measured here first, in 10 minutes)
    python scripts/attentions_page.py PAGE --measure hyena s5    (these alone; the others are kept)
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lra.bench.layers import LayerSubject, layer_of, work
from lra.bench.measure import Result, side_by_side
from lra.bench.page import measured
from lra.bench.settings import BenchSettings, settings_of
from lra.bench.worker import BenchPlace
from lra.config.compose import compose, options
from lra.core.console import say
from lra.core.files import write_atomic, write_json
from lra.model.model import Model
from lra.ops.mixer import Mixer
from lra.records import provenance
from lra.runs.build import assemble

TASKS = ("text", "matching", "listops")
LENGTHS = (1024, 4096)
PLACE = BenchPlace(device="cpu", threads=1, memory_limit=None)
BUDGET = 0.10  # Long Range Arena asks for at most a tenth more parameters than the Transformer


Costs = dict[str, Any]
"""`rows`: of each attention its `settings`, by length `ratio` and `memory`, and `where` they were measured; `flags`: of
each attention, by name, what it supports."""


def page(attentions: list[str], costs: Costs) -> Iterator[str]:
    """The lines of the page."""
    mixers = {name: mixer_of(settings(f"attention={name}")) for name in attentions}
    yield "# Attentions\n"
    yield "By `bash scripts/attentions.sh`. Every attention takes any length up to the task's.\n"
    yield "## What they are\n"
    yield "As they run on text (`task=text protocol=paper`); `protocol=strict` and `protocol=lra` divide scores by √Dh,"
    yield "the root of a head's width, where √(H Dh) stands here.\n"
    yield "| `attention=` | paper | formula | time | mask | causal | variants | order matters | checked against |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, mixer in mixers.items():
        card, flags = mixer.card, " | ".join(map(_yes, flags_of(mixer).values()))
        yield f"| `{name}` | {card.paper} | {_cell(card.formula)} | {card.time} | {flags} | {card.oracle} |"
    yield "\n*mask*: can leave padding out. *causal*: has a form for language models. *variants*: can do without the"
    yield "output projection (Simple, Simple-Res). *order matters*: without positions it tells permuted inputs apart.\n"
    yield "## Where they deviate from their papers or their authors' code\n"
    for name, mixer in mixers.items():
        if mixer.card.deviations:
            yield f"- `{name}`: {'; '.join(mixer.card.deviations)}"
    yield "\n## Parameters\n"
    yield "Of the whole model at the paper's sizes (`protocol=paper`): how many more than the Transformer's, and their"
    yield f"share. **Bold**: beyond the {BUDGET:.0%} that Long Range Arena allows.\n"
    yield f"| `attention=` | {' | '.join(TASKS)} | settings for text |"
    yield f"|---|{'---:|' * len(TASKS)}---|"
    base = {task: _parameters("softmax", task) for task in TASKS}
    for name in attentions:
        added = [_added(_parameters(name, task), base[task]) for task in TASKS]
        yield f"| `{name}` | {' | '.join(added)} | {_settings(name)} |"
    yield from _costs(attentions, costs)


def flags_of(mixer: Mixer) -> dict[str, bool]:
    """What it supports, by the columns of the page."""
    return {
        "mask": mixer.maskable,
        "causal": mixer.can_be_causal,
        "variants": mixer.projects_out,
        "order": not mixer.commutes,
    }


def _costs(attentions: list[str], costs: Costs) -> Iterator[str]:
    """What was measured; rows of other settings than today's say so."""
    yield "\n## Cost beside `simple`\n"
    yield "One layer with its projections, D = 256, 4 heads, batch 1, fp32, dropout 0.1, forward and backward, one"
    yield "thread, each in a process of its own; time: median [least, most] of the ratios of turns; memory: peak of"
    yield "tensors beyond weights, their gradients and input, as a ratio.\n"
    yield f"| `attention=` | {' | '.join(f'time, L = {length} | memory, L = {length}' for length in LENGTHS)} |"
    yield f"|---|{'---:|' * 2 * len(LENGTHS)}"
    for name in attentions:
        row = costs["rows"].get(name)
        cells = [""] * 2 * len(LENGTHS)
        if row is not None:
            cells = [text for length in LENGTHS for text in _cost(row["lengths"][str(length)])]
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield ""
    rows = {name: costs["rows"][name] for name in attentions if name in costs["rows"]}
    missing = [name for name in attentions if name not in rows]
    if missing:
        yield f"Not measured yet: {_names(missing)}.\n"
    for name, row in rows.items():
        if _without_nulls(row["settings"]) != _without_nulls(_settings(name)):
            yield f"Measured with other settings than those above: `{name}` with {row['settings']}.\n"
    places = {measured(row["where"]): [] for row in rows.values()}
    for name, row in rows.items():
        places[measured(row["where"])].append(name)
    for place, names in places.items():
        yield (place if len(places) == 1 else f"{_names(names)}: {place}") + "\n"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cost(result: Result) -> tuple[str, str]:
    middle, least, most = result["ratio"]
    return f"{middle:.2f} [{least:.2f}, {most:.2f}]", f"{result['memory']:.2f}"


def measure(attentions: list[str], rounds: int) -> dict[str, Any]:
    """The rows of costs of these on this machine."""
    where = provenance.provenance({}, None, "cpu", "fp32", provenance.now())
    rows = {}
    for name in attentions:
        lengths = {}
        for length in LENGTHS:
            say(f"{name}, L = {length}")
            result = beside_simple(name, length, rounds)
            lengths[str(length)] = {"ratio": result["ratio"], "memory": result["memory"]}
        rows[name] = {"settings": _settings(name), "lengths": lengths, "where": where}
    return rows


def layer(name: str) -> LayerSubject:
    """An attention as it is configured for text, with an output projection if it can have one."""
    return layer_of(f"{name} variant=transformer", settings(), settings)


def settings(*overrides: str) -> BenchSettings:
    return settings_of(compose("bench", "task=text", *overrides))


def beside_simple(name: str, length: int, rounds: int) -> Result:
    """Every measure of one layer on one document, `memory` beside that of `simple`, too."""
    arguments = (length, 1, "train", "cpu")
    subjects = {"simple": (work, (layer("simple"), *arguments)), "subject": (work, (layer(name), *arguments))}
    results = side_by_side(subjects, PLACE, rounds, "fp32")
    return {
        **results["subject"],
        "memory": results["subject"]["allocated_bytes"] / results["simple"]["allocated_bytes"],
    }


def mixer_of(given: BenchSettings) -> Mixer:
    """The attention of these settings, without storage."""
    return _model(given).blocks[0].mixer


def _parameters(name: str, task: str) -> int:
    model = _model(settings(f"attention={name}", f"task={task}"))
    return sum(parameter.numel() for parameter in model.parameters())


def _model(given: BenchSettings) -> Model:
    system = assemble(given)
    with torch.device("meta"):
        return system.model(system.builder.facts)


def _added(count: int, base: int) -> str:
    share = (count - base) / base
    text = f"{count - base:+,} ({share:+.1%})"
    return f"**{text}**" if share > BUDGET else text


def _settings(name: str) -> str:
    node = settings(f"attention={name}").attention
    return ", ".join(f"{key} {value}" for key, value in node.items() if not key.startswith("_"))


def _without_nulls(settings: str) -> list[str]:
    """Keys that came after a measurement are null, and say what was before."""
    return [part for part in settings.split(", ") if not part.endswith(" None")]


def _cell(text: str) -> str:
    """A formula has bars, which are no columns, and brackets before parentheses, which are no links."""
    return text.replace("|", "\\|").replace("](", "]\\(")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/attentions_page.py", description="Write the page of attentions."
    )
    parser.add_argument("page", type=Path, help="where to write it; the costs lie beside it, as .json")
    parser.add_argument(
        "--measure", nargs="*", choices=options("attention"), metavar="NAME", help="measure these here first, or all"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each pair that is measured")
    arguments = parser.parse_args()
    torch.set_num_threads(PLACE.threads)  # as in the processes that measure
    attentions, kept = options("attention"), arguments.page.with_suffix(".json")
    if not kept.is_file():
        parser.error(f"{kept}: no such file; it holds the costs of a page")
    costs = json.loads(kept.read_text())
    if arguments.measure is not None:
        costs["rows"] |= measure(arguments.measure or attentions, arguments.rounds)
    costs["flags"] = {name: flags_of(mixer_of(settings(f"attention={name}"))) for name in attentions}
    write_json(kept, costs)
    lines = page(attentions, costs)
    write_atomic(arguments.page, "".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    main()
