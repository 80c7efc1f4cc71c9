"""Compiled blocks: few graphs, and the outputs and gradients of the uncompiled ones.

The backend traces graphs as `train.compile` does and runs them without generating code; tests/test_fit.py does both.
"""

from functools import partial

import numpy as np
import pytest
import torch
import yaml
from support import TINY_MODEL, mask_of, model_of, noise, options, stub_task
from torch import Tensor

from lra.core.paths import conf_dir
from lra.network.model import Model
from lra.ops.dropout import set_keys
from lra.ops.packing import Packed
from lra.training.optimizer import compile_blocks

THREE = {  # graphs, where one or two serve all lengths of the others
    "bigbird", "gated_deltanet", "lru", "mamba2", "mlstm", "reformer", "retention", "s5", "sinkhorn",
}  # fmt: skip
ROWS = [
    pytest.param(row["option"], packs, marks=[] if (row["option"], packs) == ("simple", True) else pytest.mark.slow)
    for row in yaml.safe_load((conf_dir() / "table1.yaml").read_text())["systems"]
    if "option" in row
    for packs in (True, False)
]
NAMES = [pytest.param(name, marks=[] if name == "simple" else pytest.mark.slow) for name in options("attention")]


def compiled_and_plain(
    monkeypatch: pytest.MonkeyPatch, max_len: int, *settings: str, backend: str = "eager"
) -> tuple[Model, Model]:
    """Two equal models with dropout, the first with compiled blocks."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    words, task = (*TINY_MODEL, "model.dropout=0.3", *settings), stub_task(max_len=max_len)
    model, plain = (model_of(*words, task=task).double().train() for _ in range(2))
    plain.load_state_dict(model.state_dict())
    compile_blocks(model)
    for module in plain.modules():
        module.hashed = True  # compiled blocks hash their noise
    return model, plain


def outputs_and_gradients(model: Model, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Output of a block for x [B, L, D], and the gradients of a weighted sum of it by x and all weights."""
    set_keys(model, seed=1, step=3, documents=range(len(x)))
    x = x.clone().requires_grad_()
    y = model.blocks[0](x, mask)
    real = y if mask is None else y[mask]
    inputs = [x, *model.blocks[0].parameters()]
    return [
        y,
        *torch.autograd.grad((real * noise(*real.shape, seed=9).to(real.dtype)).sum(), inputs, allow_unused=True),
    ]


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_block_is_one_graph_with_the_numbers_of_a_plain_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block trains with dropout at lengths of less than one chunk, one and a half chunks, and two chunks."""
    model, plain = compiled_and_plain(monkeypatch, 131, "model.depth=1", f"attention={name}")
    maskable, one_graph = model.blocks[0].mixer.maskable, model.blocks[0].mixer.one_graph
    lengths = (97, 131, 61) if maskable else (131,)
    counters = torch._dynamo.utils.counters
    counters.clear()
    for length in lengths:
        batch = noise(2, length, 6, seed=length), mask_of([length, 9], length) if maskable else None
        pairs = [outputs_and_gradients(each, *batch) for each in (model, plain)]
        for actual, expected in zip(*pairs, strict=True):
            assert (actual is None) == (expected is None)
            if expected is not None:
                assert (actual - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)
    assert not counters["graph_break"]
    assert 1 <= counters["stats"]["unique_graphs"] <= (3 if name in THREE or not one_graph else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("system", "packs"), ROWS)
def test_rows_of_table_1_train_with_the_gradients_of_plain_blocks(
    system: str, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few graphs serve batches of other documents and rows."""
    models = compiled_and_plain(monkeypatch, 400, "task=text", "protocol=strict", f"system={system}")
    gram = system.startswith("simple") and not packs  # its other form serves short batches
    counters = torch._dynamo.utils.counters
    counters.clear()
    for lengths in ([97, 300, 1], [131, 9, 400, 260, 3], [9, 8, 7, 6]):
        pairs = []
        for model in models:
            set_keys(model, seed=1, step=3, documents=range(len(lengths)))
            mask = mask_of(lengths, max(lengths))
            packed = Packed.of(np.array(lengths), max(lengths), torch.device("cpu")) if packs else None
            real = packed.chunk_mask.flatten() if packs else mask
            x = noise(*real.shape, 6).requires_grad_()
            y = x
            for block in model.blocks:
                y = block(y, None, None, packed) if packs else block(y, mask)
            y = y[real]
            weights = [*model.blocks.parameters()]
            gradients = torch.autograd.grad((y * noise(*y.shape, seed=9)).sum(), [x, *weights], allow_unused=True)
            pairs.append([y, *gradients])
        for actual, expected in zip(*pairs, strict=True):
            assert (actual is None) == (expected is None)
            if expected is not None:
                assert (actual - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)
    assert not counters["graph_break"] and 1 <= counters["stats"]["unique_graphs"] <= (
        3 if system in THREE or gram else 2
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["linear", "performer", "simple"])
@pytest.mark.parametrize("mask", [True, False])
def test_compiled_backward_passes_keep_full_precision(name: str, mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under bf16 autocast gradients are those of plain blocks to the last bit; `simple` takes its Gram form."""
    gram = ["attention.form=gram"] * (name == "simple")
    models = compiled_and_plain(
        monkeypatch, 97, "protocol=strict", "model.dropout=0", f"attention={name}", *gram, backend="aot_eager"
    )
    real = mask_of([97, 31], 97) if mask else None
    pairs = []
    for model in models:
        with torch.autocast("cpu", torch.bfloat16):
            pairs.append(outputs_and_gradients(model.float(), noise(2, 97, 6).float(), real))
    for actual, expected in zip(*pairs, strict=True):
        assert torch.equal(actual, expected) if expected is not None else actual is None
