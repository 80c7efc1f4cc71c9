"""results/attentions.md: what each attention is, what it adds, what it supports, what it was checked against, and
what it costs beside `simple` on this machine.

    python -m lra.bench.catalogue results/attentions.md
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lra import configure, record
from lra.attention import Mixer, Shape
from lra.bench.measure import Step, peak_bytes, ratio, take_turns
from lra.console import say
from lra.dropout import set_keys
from lra.files import write_atomic
from lra.settings import assemble, settings_of

TASKS = ("text", "matching", "listops")
LENGTHS = (1024, 4096)
LAYER = {"dim": 256, "qkv_dim": 256, "heads": 4, "bias": True, "out_proj": True, "causal": False, "layer": 0}
BUDGET = 0.10  # Long Range Arena asks for at most a tenth more parameters than the Transformer


def page(attentions: list[str], rounds: int) -> Iterator[str]:
    """The lines of the page."""
    mixers = {name: mixer_of(name, LENGTHS[0], dropout=0.1) for name in attentions}
    yield "# Attentions\n"
    yield "By `bash scripts/attentions.sh`. Every attention takes any length up to the task's.\n"
    yield "## What they are\n"
    yield "| `attention=` | paper | formula | time | mask | causal | variants | order matters | checked against |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, mixer in mixers.items():
        card = mixer.card
        flags = [_yes(mixer.maskable), _yes(mixer.can_be_causal), _yes(mixer.projects_out), _yes(not mixer.commutes)]
        yield f"| `{name}` | {card.paper} | {_cell(card.formula)} | {card.time} | {' | '.join(flags)} | {card.oracle} |"
    yield "\n*mask*: can leave padding out. *causal*: has a form for language models. *variants*: can do without the"
    yield "output projection (Simple, Simple-Res). *order matters*: without positions it tells permuted inputs apart.\n"
    yield "## Parameters\n"
    yield "Of the whole model at the paper's sizes (`protocol=paper`): how many more than the Transformer's, and their"
    yield f"share. **Bold**: beyond the {BUDGET:.0%} that Long Range Arena allows.\n"
    yield f"| `attention=` | {' | '.join(TASKS)} | settings for text |"
    yield f"|---|{'---:|' * len(TASKS)}---|"
    base = {task: _parameters("softmax", task) for task in TASKS}
    for name in attentions:
        added = [_added(_parameters(name, task), base[task]) for task in TASKS]
        yield f"| `{name}` | {' | '.join(added)} | {_settings(name)} |"
    yield "\n## Cost beside `simple`\n"
    yield "One layer with its projections, D = 256, 4 heads, batch 1, fp32, dropout 0.1, forward and backward, one"
    yield "thread; time: median [least, most] of the ratios of turns taken in one process; memory: peak of a fresh"
    yield "process beyond its weights and input, as a ratio.\n"
    yield f"| `attention=` | {' | '.join(f'time, L = {length} | memory, L = {length}' for length in LENGTHS)} |"
    yield f"|---|{'---:|' * 2 * len(LENGTHS)}"
    reference = {length: _fresh("simple", length, 1)["peak"] for length in LENGTHS}
    for name in attentions:
        cells = []
        for length in LENGTHS:
            say(f"{name}, L = {length}")
            found = _fresh(name, length, rounds)
            middle, least, most = found["ratio"]
            cells += [f"{middle:.2f} [{least:.2f}, {most:.2f}]", f"{found['peak'] / reference[length]:.2f}"]
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield ""
    where = record.provenance({}, None, "cpu", "fp32", record.now())
    yield f"Measured on {where['cpu']}, torch {where['packages']['torch']}, commit {where['commit']}"
    yield f"{'with uncommitted changes ' * bool(where['dirty'])}({where['started'][:10]}).\n"


def mixer_of(name: str, length: int, dropout: float) -> Mixer:
    """A mixer as `attention=name` configures it for text, at the size of `LAYER`."""
    cfg = configure.plain(configure.compose("train", f"attention={name}", "task=text"))
    build = configure.build(cfg["attention"], "attention", [], supplied=1)
    return build(Shape(**LAYER, max_len=length, dropout=dropout))


def training_step(mixer: Mixer, length: int) -> Step:
    """Forward and backward of one layer on one document."""
    x = torch.randn(1, length, LAYER["dim"], requires_grad=True)
    mixer.train()

    def step() -> None:
        set_keys(mixer, seed=1, step=0, rows=range(1))
        mixer(x).sum().backward()

    return step


def measure(name: str, length: int, rounds: int) -> dict[str, Any]:
    """Peak bytes of the first step, then the ratio of its time to that of `simple`."""
    torch.set_num_threads(1)
    step = training_step(mixer_of(name, length, dropout=0.1), length)
    peak = peak_bytes(step, "cpu")
    subjects = {"subject": step, "simple": training_step(mixer_of("simple", length, dropout=0.1), length)}
    seconds = take_turns(subjects, rounds, "cpu")
    return {"peak": peak, "ratio": ratio(seconds["subject"], seconds["simple"])}


def _fresh(name: str, length: int, rounds: int) -> dict[str, Any]:
    """`measure` in a process of its own, so that no other subject's memory counts."""
    command = [sys.executable, "-m", "lra.bench.catalogue", "--measure", name, str(length), str(rounds)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _parameters(name: str, task: str) -> int:
    system = assemble(settings_of(configure.compose("train", f"attention={name}", f"task={task}")))
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in system.model(system.builder.facts).parameters())


def _added(count: int, base: int) -> str:
    share = (count - base) / base
    text = f"{count - base:+,} ({share:+.1%})"
    return f"**{text}**" if share > BUDGET else text


def _settings(name: str) -> str:
    node = configure.plain(configure.compose("train", f"attention={name}", "task=text"))["attention"]
    return ", ".join(f"{key} {value}" for key, value in node.items() if not key.startswith("_"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.bench.catalogue", description="Write the page of attentions.")
    parser.add_argument("page", type=Path, nargs="?", help="where to write it")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each pair")
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "LENGTH", "ROUNDS"), help="print one measurement")
    arguments = parser.parse_args()
    if arguments.measure:
        name, length, rounds = arguments.measure
        print(json.dumps(measure(name, int(length), int(rounds))))
        return
    if arguments.page is None:
        parser.error("say where to write the page")
    lines = page(configure.options("attention"), arguments.rounds)
    write_atomic(arguments.page, "\n".join(lines).encode())


if __name__ == "__main__":
    main()
