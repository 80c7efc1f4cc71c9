"""Packed batches have the values, gradients and noise of padded ones."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from support import TINY_MODEL, every_setting, model_of, noise, small_recipe, stub_task
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.core.signals import StopFlag
from lra.mixers import softmax
from lra.network.model import Model
from lra.ops import packing
from lra.ops.dropout import Dropout, Keyed, set_keys
from lra.ops.packing import Packed
from lra.training.batches import MicroBatch
from lra.training.trainer import Trainer

CHUNK = 8
LENGTHS = [1, 19, 1, 8, 13, 2]  # of documents: one token, and one, two and three chunks with the CLS
DROPOUT = ("model.dropout=0.3", "model.embedding_dropout=true", "model.mixer_dropout=true")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", CHUNK)


def model_for(name: str, extra: list[str], *more: str, documents: int = 2) -> Model:
    torch.manual_seed(1)
    task = stub_task(max_len=max(LENGTHS), documents=documents)
    model = model_of(*TINY_MODEL, "protocol=strict", f"attention={name}", *extra, *more, task=task).double()
    assert model.can_pack
    return model


def logits_and_gradients(model: Model, *, pack: bool, step: int = 3) -> list[Tensor]:
    """Logits of random documents, and the gradients of a weighted sum of them by all weights."""
    rng, lengths = torch.Generator().manual_seed(3), np.array(LENGTHS)
    tokens = torch.randint(1, 9, (len(lengths), lengths.max()), generator=rng)
    tokens *= torch.arange(lengths.max()) < torch.from_numpy(lengths)[:, None]
    packed = Packed.of(lengths + model.cls, lengths.max() + model.cls, tokens.device) if pack else None
    model.redraw(1, step)
    set_keys(model, seed=1, step=step, documents=range(len(tokens)))
    logits = model(tokens, packed=packed)
    loss = (logits * noise(*logits.shape, seed=9)).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [logits, *[gradient for gradient in gradients if gradient is not None]]


def check_packed_is_padded(model: Model) -> None:
    """Compare to 1e-12 of the largest value, with the noise of an accelerator."""
    for module in model.modules():
        if isinstance(module, Keyed):
            module.hashed = True
    packed, padded = (logits_and_gradients(model, pack=pack) for pack in (True, False))
    scale = max(1.0, *(value.abs().max().item() for value in padded))
    for actual, expected in zip(packed, padded, strict=True):
        assert (actual - expected).abs().max().item() <= 1e-12 * scale


@every_setting
def test_packed_batches_equal_padded_ones_for_every_mixer(name: str, extra: list[str]) -> None:
    """Noise is off and on. The pairs of documents have odd lengths, and some have one token."""
    for more in (("model.dropout=0",), DROPOUT):
        try:
            model = model_for(name, extra, *more)
        except UserError:
            pytest.skip(f"{name} cannot mask")
        check_packed_is_padded(model)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("performer", f"model.pooling={pooling}") for pooling in ("mean", "max", "last", "cls")),
        *((name, "model.pooling=mean") for name in ("simple", "linear", "softmax", "mamba2")),
        ("simple", "variant=simple_resl"),
        ("simple", "model.cls_position=true"),
        ("simple", "model.norm=post"),
        ("simple", "attention.dropout_on=output"),
    ],
)
def test_packed_batches_equal_padded_ones_for_every_pooling_and_form(name: str, settings: str) -> None:
    check_packed_is_padded(model_for(name, [], *DROPOUT, settings, documents=1))


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("over", ["values", "channels"])
def test_noise_bits_depend_neither_on_padding_nor_packing_nor_the_cut(over: str, hashed: bool) -> None:
    lengths, layers = [5, 1, 29, 17], nn.ModuleList([Dropout(0.3, over), Dropout(0.3, over)]).train()
    for layer in layers:
        layer.hashed = hashed

    def kept(rows: list[int], longest: int) -> list[Tensor]:
        set_keys(layers, seed=1, step=3, documents=rows)
        outputs = layers[1](torch.ones(len(rows), longest, 13)) != 0
        return [document[: lengths[row]] for document, row in zip(outputs, rows, strict=True)]

    padded = torch.cat(kept([0, 1, 2, 3], 29))
    assert torch.equal(padded, torch.cat(kept([0, 1, 2, 3], 101)))
    assert torch.equal(padded, torch.cat([*kept([0], 5), *kept([1, 2], 29), *kept([3], 17)]))
    if hashed:  # as packed batches always are
        packed = Packed.of(np.array(lengths), 29, torch.device("cpu"))
        set_keys(layers, seed=1, step=3, documents=range(4))
        rows = layers[1](torch.ones(packed.chunk_mask.numel(), 13), packed)
        assert torch.equal(padded, rows[packed.chunk_mask.flatten()] != 0)
    assert 0.5 < padded.double().mean() < 0.9


def test_packed_training_resumes_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MicroBatch, "packs", lambda self, model, precision: bool((self.lengths + model.cls).all()))
    task, recipe = stub_task(), small_recipe(steps=5)

    def trained(trainer: Trainer, until: int) -> Trainer:
        trainer.stopping.step = until
        trainer.train(StopFlag())
        return trainer

    def new() -> Trainer:
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, "protocol=strict", "attention=performer", *DROPOUT, task=task)
        return Trainer(model, task, recipe, seed=3, precision="fp32")

    whole, first, second = trained(new(), 5), trained(new(), 3), new()
    values, state = first.state_dict()
    second.load_state_dict({name: value.clone() for name, value in values.items()}, state)
    ended, _ = trained(second, 5).state_dict()
    for name, value in whole.state_dict()[0].items():
        assert name.startswith("best/") or torch.equal(ended[name], value), name


def test_padding_inverts_packing() -> None:
    lengths = np.array([1, 2 * CHUNK, 3, CHUNK + 1, CHUNK - 1])
    packed = Packed.of(lengths, 2 * CHUNK + 5, torch.device("cpu"))
    padded = noise(5, 2 * CHUNK + 5, 7) * packed.mask.unsqueeze(-1)
    x = packed.unpad(padded)
    assert x.shape == ((1 + 2 + 1 + 2 + 1) * CHUNK, 7)
    assert torch.equal(packed.pad(x), padded)
    assert torch.equal(x[packed.chunk_mask.flatten()], padded[packed.mask])
    assert torch.equal(x[packed.first], padded[:, 0])
    document, position = packed.document.long(), packed.position.clamp(max=2 * CHUNK + 4)
    assert torch.equal(x, padded[document, position] * packed.chunk_mask.view(-1, 1))
    chunks = packed.by_chunk(x.unsqueeze(1))
    assert torch.equal(packed.by_row(chunks).squeeze(1), x)
    torch.testing.assert_close(packed.sum_chunks(chunks.sum(dim=2)).squeeze(1), padded.sum(dim=1))
    assert torch.equal(packed.of_chunks(padded[:, 0], x.dtype)[packed.owner == 3], padded[3, 0].expand(2, -1))


# ---------------------------------------------------------------- FlashAttention


def attended(q, k, v, q_starts, k_starts, scale: float, dropout: float, state: Tensor) -> Tensor:
    """Softmax attention of each sequence by itself, with a dropout of its weights that `state` draws."""
    parts = []
    spans = zip(*(pairwise(starts.tolist()) for starts in (q_starts, k_starts)), strict=True)
    for number, ((a, b), (c, d)) in enumerate(spans):
        weights = (torch.einsum("nhd,mhd->hnm", q[a:b], k[c:d]) * scale).softmax(dim=-1)
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(int(state[0]) + number))
        parts.append(torch.einsum("hnm,mhd->nhd", weights * (drawn >= dropout) / (1 - dropout), v[c:d]))
    return torch.cat(parts)


def forward(q, k, v, q_starts, k_starts, q_longest, k_longest, dropout, causal, debug, *, scale):
    """Return what `aten._flash_attention_forward` returns."""
    assert not causal and not debug
    assert q_starts.diff().max() <= q_longest and k_starts.diff().max() <= k_longest
    state = torch.randint(2**31, (2,)).to(torch.uint64)
    out = attended(q, k, v, q_starts, k_starts, scale, dropout, state)
    return out, torch.zeros(q.shape[1], len(q)), state, torch.zeros((), dtype=torch.uint64), torch.zeros(0)


def backward(
    grad, q, k, v, out, sums, q_starts, k_starts, q_longest, k_longest, dropout, causal, state, unused, *, scale
):
    """Return what `aten._flash_attention_backward` returns."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        return torch.autograd.grad(attended(*inputs, q_starts, k_starts, scale, dropout, state), inputs, grad)


@pytest.fixture
def flash_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the kernels, which need an accelerator, by a reference."""
    monkeypatch.setattr(softmax, "FORWARD", forward)
    monkeypatch.setattr(softmax, "BACKWARD", backward)
    monkeypatch.setattr(softmax, "has_flash", lambda *_: True)


@pytest.mark.usefixtures("flash_on_a_cpu")
@pytest.mark.parametrize(("pooling", "documents"), [("cls", 1), ("cls", 2), ("mean", 1)])
def test_packed_flash_attention_equals_padded_attention(pooling: str, documents: int) -> None:
    settings = ("model.dropout=0", f"model.pooling={pooling}")
    check_packed_is_padded(model_for("softmax", [], *settings, documents=documents))


@pytest.mark.usefixtures("flash_on_a_cpu")
def test_noise_of_flash_attention_follows_from_seed_step_and_layer_alone() -> None:
    model = model_for("softmax", [], *DROPOUT, documents=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = logits_and_gradients(model, pack=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert all(map(torch.equal, first, logits_and_gradients(model, pack=True)))
    assert not torch.equal(first[0], logits_and_gradients(model, pack=True, step=4)[0])
