"""What each token contributes to the CLS, exact, for one example of a trained run, as a page of HTML.

SimpleAttention is a sum over tokens: the CLS receives sum_j w_j W_o v_j with w_j = q . k_j / sqrt(L), so each token's
part is a vector, and the parts of all tokens and heads, with the bias of W_o, are what the mixer adds. Softmax has
the same form with other w_j, the attention map. Nothing is approximated; it holds for what one attention adds in one
block, from the vectors that enter it. What norms, feed-forward layers and later blocks make of it is another question.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lra.attention.softmax import Softmax
from lra.config import configure
from lra.core.console import Preparation
from lra.core.errors import UserError
from lra.data import Place, Task, TaskBuilder
from lra.data.tokenise import BYTE_VOCABULARY, TOKENIZER, load, text_of
from lra.init import read_of_run
from lra.model.model import Model
from lra.ops.mixer import Attention, Mixer
from lra.ops.protocols import HasWeights
from lra.records import record
from lra.records.names import WEIGHTS
from lra.report.read import schema
from lra.runs.build import architecture
from lra.tasks.listops.trees import IDS

CLOSE_ENOUGH = 1e-10  # of the sum of all parts to what the mixer gave, relative, in float64


@dataclass(frozen=True, kw_only=True)
class ExplainSettings:
    """The checked configuration; the fields are the keys of `conf/explain.yaml`."""

    run: str
    beside: str | None
    split: Literal["train", "val", "test"]
    example: NonNegativeInt
    page: str
    cache: str
    data_dir: str | None
    workers: PositiveInt | None
    packages: list[str]


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A trained model in float64, its task, and how its mechanism and variant are called."""

    title: str
    model: Model
    task: Task


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What one mixer adds at the CLS: `output` [D] = the sum of `parts` [H, N, D] over heads and tokens + `bias` [D].

    `weights` [H, N]: what the values of the tokens are multiplied by.
    """

    weights: Tensor
    parts: Tensor
    bias: Tensor
    output: Tensor

    @property
    def gap(self) -> float:
        """Between the sum of all parts with the bias and the output, relative."""
        return ((self.parts.sum(dim=(0, 1)) + self.bias - self.output).norm() / self.output.norm()).item()

    @property
    def shares(self) -> Tensor:
        """[H, N]: of each part the component along the whole, as a fraction of it; they sum to one."""
        whole = self.output - self.bias
        return self.parts @ whole / (whole @ whole)


@torch.no_grad()
def attributions(model: Model, tokens: Tensor) -> tuple[list[list[Attribution]], Tensor]:
    """The attributions of every document of one example [P, L] and every block, in this order, and the logits
    [classes]."""
    if model.pooling != "cls":
        raise UserError(f"the run pools by {model.pooling}: only what reaches a CLS can be explained")
    seen: list[tuple[tuple[Any, ...], Tensor]] = []
    mixers = [block.mixer for block in model.blocks]
    hooks = [mixer.register_forward_hook(lambda _, inputs, output: seen.append((inputs, output))) for mixer in mixers]
    try:
        logits = model.eval()(tokens)[0]
    finally:
        for hook in hooks:
            hook.remove()
    outputs = zip(mixers, seen, strict=True)
    blocks = [_attributions(mixer, x, key_mask, output[:, 0]) for mixer, ((x, key_mask, *_), output) in outputs]
    return [list(document) for document in zip(*blocks, strict=True)], logits


def _attributions(mixer: Mixer, x: Tensor, key_mask: Tensor | None, outputs: Tensor) -> list[Attribution]:
    """The attributions of one mixer for each document; x [P, N, D], outputs [P, D] at the CLS."""
    if not (isinstance(mixer, Attention) and isinstance(mixer, HasWeights)):
        raise UserError(f"{type(mixer).__name__} has no weights between tokens: explain a run of simple or softmax")
    shape = mixer.shape
    q, k, v = mixer.project(x)
    weights = mixer.weights(q[:, :, :1], k, key_mask).squeeze(2)  # [P, H, N]
    weight = mixer.out.weight if shape.out_proj else torch.eye(shape.dim, dtype=x.dtype)
    bias = mixer.out.bias.detach() if shape.out_proj and shape.bias else torch.zeros(shape.dim, dtype=x.dtype)
    out = weight.T.unflatten(0, (shape.heads, -1))  # [H, Dh, D]
    parts = torch.einsum("phn,phnd,hde->phne", weights, v, out)
    of_documents = [
        Attribution(weights=w, parts=p, bias=bias, output=output)
        for w, p, output in zip(weights, parts, outputs, strict=True)
    ]
    for reading in of_documents:
        if reading.gap > CLOSE_ENOUGH:
            raise RuntimeError(f"the parts of {type(mixer).__name__} differ from its output by {reading.gap:.1e}")
    return of_documents


def pieces(task: Task, ids: np.ndarray, length: int) -> list[tuple[str, int]]:
    """The positions of one document as a person reads them: what each piece says, and how many positions it has.

    Bytes make words. The CLS is the first piece, padding up to `length` tokens, where it is read, the last.
    """
    named = [("[CLS]", 1)]
    if (task.folder / TOKENIZER).exists():
        tokenizer = load(task.folder / TOKENIZER)
        named += [(f"{tokenizer.decode([number])} ", 1) for number in ids.tolist()]
    elif task.vocab_size == BYTE_VOCABULARY:
        words = re.findall(rb"\S+\s*|\s+", text_of(ids))
        named += [(word.decode(errors="replace"), len(word)) for word in words]
    else:
        names = {number: f"{word} " for word, number in IDS.items()}
        named += [(names.get(number, f"{number} "), 1) for number in ids.tolist()]
    padding = length - len(ids)
    return named + [(f" [padding, {padding} times]", padding)] * (padding > 0)


def summed(values: Tensor, named: list[tuple[str, int]]) -> Tensor:
    """[..., N] over positions -> [..., pieces]."""
    return torch.stack([part.sum(dim=-1) for part in values.split([count for _, count in named], dim=-1)], dim=-1)


def load_run(folder: Path, settings: ExplainSettings) -> TrainedRun:
    """Raises UserError where the folder has no finished run with its weights, or where the data are others now."""
    if not (folder / record.NAME).exists():
        raise UserError(f"{folder}: no {record.NAME} there; expected the folder of a run")
    try:
        read = record.read(folder / record.NAME)
        schema.check(schema.Record, read)
    except ValueError as error:
        raise UserError(f"{folder}: not the folder of a run: {error}") from None
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{folder / WEIGHTS}: no such file; a run leaves it with checkpoint.keep=true")
    config, data_sha256 = read["config"], read["provenance"]["data_sha256"]
    for key in ("task", "attention", "model"):
        if not isinstance(config.get(key), dict):
            raise UserError(f"{folder}: not the folder of a run: its config has no {key}")
    builder = configure.build(config["task"], "task", settings.packages, kind=TaskBuilder)().at(Place.of(settings))
    with Preparation(builder.facts.name) as progress:
        task = builder.build(Place.of(settings, progress))
    if task.digest != data_sha256:
        raise UserError(f"{folder}: trained on data {data_sha256}, here are {task.digest}")
    model = architecture(config["attention"], config["model"], settings.packages)(task)
    try:
        model.load_state_dict(read_of_run(folder / WEIGHTS))
    except RuntimeError as error:
        raise UserError(f"{folder / WEIGHTS}: not of the model in its record: {configure.first_line(error)}") from None
    return TrainedRun(title=f"{read['attention']} ({read['variant']})", model=model.double(), task=task)


def page(runs: list[TrainedRun], split: str, example: int) -> str:
    """HTML: for every document and block the strips of every run, one for each head and one for their sum."""
    task = runs[0].task
    data = getattr(task, split)
    if example >= len(data):
        raise UserError(f"example={example}: {split} has examples 0 to {len(data) - 1}")
    places = np.array([example])
    told = []
    for run in runs:
        length = int(data.lengths(places).max()) if run.model.key_mask else run.model.max_len
        documents, logits = attributions(run.model, torch.from_numpy(data.pad(places, length).astype(np.int64)))
        told.append((run, length, documents, logits.softmax(dim=0)))
    label = int(data.targets(places)[0])
    lines = [HEAD, f"<h1>{escape(task.name)}: {split} example {example}, class {label}</h1>"]
    gap = max(reading.gap for _, _, documents, _ in told for blocks in documents for reading in blocks)
    lines.append(LEGEND.format(gap=f"{gap:.0e}"))
    for run, _, _, chances in told:
        chosen = int(chances.argmax())
        lines.append(f"<p>{escape(run.title)}: class {chosen}, probability {chances[chosen]:.3f}</p>")
    for place in range(task.documents):
        ids = data.document(example, place)
        for block in range(max(len(documents[place]) for _, _, documents, _ in told)):
            lines.append(f"<h2>{f'Document {place + 1}, ' if task.documents > 1 else ''}block {block + 1}</h2>")
            lines.append("<div class=beside>")
            for run, length, documents, _ in told:
                shown = documents[place][block : block + 1]
                strips = [strip for reading in shown for strip in _strips(run, reading, pieces(task, ids, length))]
                lines += ["<section>", *strips, "</section>"]
            lines.append("</div>")
    return "\n".join([*lines, "</body></html>", ""])


def _strips(run: TrainedRun, reading: Attribution, named: list[tuple[str, int]]) -> Iterator[str]:
    shares = summed(reading.shares, named)
    yield _strip(f"{run.title}, all heads: share of the sum", shares.sum(dim=0), named)
    softmax = isinstance(run.model.blocks[0].mixer, Softmax)
    strips = summed(reading.weights, named) if softmax else shares
    for head, values in enumerate(strips, start=1):
        yield _strip(f"{run.title}, head {head}{': attention' if softmax else ''}", values, named)


def _strip(title: str, values: Tensor, named: list[tuple[str, int]]) -> str:
    """The text on a background: red adds to the whole, blue takes from it, the deepest is the largest of the strip."""
    largest = values.abs().max().clamp(min=1e-300)
    spans = [
        f'<span style="background:rgba({"210,40,40" if value > 0 else "40,80,210"},{abs(value) / largest:.2f})" '
        f'title="{value:+.4f}">{escape(text)}</span>'
        for (text, _), value in zip(named, values.tolist(), strict=True)
    ]
    return f"<h3>{escape(title)} (total {values.sum():.4f})</h3>\n<p class=strip>{''.join(spans)}</p>"


HEAD = """<!doctype html>
<html lang=en><head><meta charset=utf-8><title>lra-explain</title><style>
body { font: 15px/1.5 sans-serif; max-width: 90em; margin: 2em auto; padding: 0 1em; background: #fff; color: #111 }
h1 { font-size: 1.3em } h2 { font-size: 1.1em; border-top: 1px solid #bbb; padding-top: 1em }
h3 { font-size: 0.9em; margin: 1em 0 0 } p { max-width: 60em }
.strip { font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(25em, 1fr)); gap: 0 2em }
</style></head><body>"""

LEGEND = """<p>What each token gives to the CLS in the attention of each block. Shares: a token's vector along the
sum of all, as a fraction of it; over the heads of a block they add up to one. Attention: softmax's weights, which add
up to one in each head. Red adds, blue takes away; colours are scaled strip by strip; the value stands where the pointer
rests. Where the text is bytes, a word has the sum of its bytes, so long words have more.</p>
<p>Exact for what an attention adds to the CLS (the parts and the bias sum to it; largest relative gap {gap}), from the
vectors that enter the block. Later norms, feed-forward layers and blocks mix it further: a share is not a token's
effect on the class.</p>"""
