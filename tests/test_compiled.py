"""Compiled blocks: how many graphs they are. Those of the newer mixers have the outputs and gradients of plain ones.

What train.compile does, but for the last part, in which machine code is made of the graphs; tests/test_fit.py has that.
"""

from functools import partial

import pytest
import torch
from support import TINY_MODEL, mask_of, model_of, noise, options, stub_task
from torch import Tensor

from lra.model.model import Model
from lra.ops.dropout import set_keys
from lra.training.update import compile_blocks

NEWER = [
    "based", "differential", "extractor", "gated_deltanet", "gla", "hyena", "lru", "mamba2", "mega", "mlstm",
    "retention", "rotary", "rwkv7", "s4d", "s5",
]  # fmt: skip

FEW = {  # another graph for few parts
    "bigbird", "gated_deltanet", "lru", "mamba2", "mlstm", "reformer", "retention", "s5", "sinkhorn",
}  # fmt: skip


def passes(model: Model, x: Tensor, mask: Tensor) -> list[Tensor]:
    """What a block makes of x [B, L, D] in training, and the gradients of a weighted sum by x and all weights."""
    set_keys(model, seed=1, step=3, rows=range(len(x)))
    x = x.clone().requires_grad_()
    y = model.blocks[0](x, mask)
    inputs = [x, *model.blocks[0].parameters()]
    return [y, *torch.autograd.grad((y * noise(*y.shape, seed=9))[mask].sum(), inputs, allow_unused=True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the compiler
@pytest.mark.parametrize("name", NEWER)
def test_compiled_blocks_are_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a chunk and a half, and at two chunks and three positions."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(1)
    options = (*TINY_MODEL, "model.depth=1", "model.dropout=0.3", f"attention={name}", "protocol=strict")
    model = model_of(*options, task=stub_task(max_len=131)).double().train()
    batches = [(noise(2, length, 6, seed=length), mask_of([length, 9], length)) for length in (97, 131)]
    plain = [passes(model, *batch) for batch in batches]
    compile_blocks(model)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for batch, expected in zip(batches, plain, strict=True):
        for actual, wanted in zip(passes(model, *batch), expected, strict=True):
            assert (actual is None) == (wanted is None)
            if wanted is not None:
                assert (actual - wanted).abs().max() <= 1e-10 * wanted.abs().max().clamp(min=1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", options("attention"))
def test_a_block_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In evaluation one or two for all lengths, three for those named above, and one for each length for those that say
    so. In training, where it draws noise, too, nothing breaks a graph in parts."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    sizes = (*TINY_MODEL, "model.depth=1", "model.dropout=0.3")
    model = model_of(*sizes, f"attention={name}", task=stub_task(max_len=131)).eval()
    compile_blocks(model)
    counters = torch._dynamo.utils.counters
    counters.clear()
    lengths = (131, 97, 113, 61) if model.blocks[0].mixer.maskable else (131,)
    for length in lengths:
        model.blocks[0](noise(2, length, 6).float(), None)
    assert not counters["graph_break"]
    most = 3 if name in FEW else 2 if model.blocks[0].mixer.one_graph else len(lengths)
    assert counters["stats"]["unique_graphs"] <= min(most, len(lengths))
    model.train()
    set_keys(model, seed=1, step=3, rows=range(2))
    model.blocks[0](noise(2, 131, 6).float(), None)
    assert not counters["graph_break"]
