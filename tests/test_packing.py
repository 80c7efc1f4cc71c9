"""Packed batches give what padded ones do: values, gradients and noise."""

import numpy as np
import pytest
import torch
from support import TINY_MODEL, every_setting, model_of, noise, stub_task
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.model.model import Model
from lra.ops.dropout import Dropout, Keyed, set_keys
from lra.ops.packing import CHUNK, Packed

LENGTHS = [1, 131, 1, 128, 37, 2]  # of documents: of one token, and of one, two and three chunks with the CLS
WIDE = (*TINY_MODEL, "model.embedding_dropout=true", "model.mixer_dropout=true", "protocol=strict")


def tokens_of(lengths: list[int]) -> Tensor:
    """Tokens [B, longest], padded with 0."""
    rng = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 9, (len(lengths), max(lengths)), generator=rng)
    return tokens * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def results(model: Model, tokens: Tensor, *, pack: bool, rows: list[int] | None = None) -> list[Tensor]:
    """Logits, and the gradients of a weighted sum of them by all weights."""
    lengths = (tokens != 0).sum(dim=1).numpy() + model.cls
    packed = Packed.of(lengths, tokens.shape[1] + model.cls, tokens.device) if pack else None
    model.redraw(1, 3)
    set_keys(model, seed=1, step=3, rows=range(len(tokens)) if rows is None else rows)
    logits = model(tokens, packed=packed)
    weights = noise(*logits.shape, seed=9)
    gradients = torch.autograd.grad((logits * weights).sum(), list(model.parameters()), allow_unused=True)
    return [logits, *[gradient for gradient in gradients if gradient is not None]]


def check_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    """Within 1e-12 of the largest value."""
    assert len(actual) == len(expected)
    scale = max(value.abs().max().item() for value in expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).abs().max().item() <= 1e-12 * max(scale, 1)


def built(name: str, extra: list[str], *more: str, documents: int = 1) -> Model:
    torch.manual_seed(1)
    task = stub_task(max_len=131, documents=documents)
    model = model_of(*WIDE, f"attention={name}", *extra, *more, task=task).double()
    assert model.can_pack
    return model


@every_setting
def test_packed_logits_and_gradients_are_those_of_a_padded_batch(name: str, extra: list[str]) -> None:
    """With dropout, which must meet the same values, and without."""
    for more in (("model.dropout=0.3",), ("model.dropout=0", "variant=simple_resl")):
        try:
            model = built(name, extra, *more)
        except UserError:
            pytest.skip(f"{name} cannot mask, or needs its output projection")
        tokens = tokens_of(LENGTHS)
        check_same(results(model, tokens, pack=True), results(model, tokens, pack=False))


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
@pytest.mark.parametrize("name", ["simple", "linear", "performer", "softmax", "mamba2"])
def test_packed_pooling_and_hashed_noise(name: str, pooling: str) -> None:
    """Where all positions are read, with the noise of accelerators, for two documents an example."""
    model = built(name, [], f"model.pooling={pooling}", "model.dropout=0.3", documents=2)
    for module in model.modules():
        if isinstance(module, Keyed):
            module.hashed = True
    tokens = tokens_of(LENGTHS)
    check_same(results(model, tokens, pack=True), results(model, tokens, pack=False))


@pytest.mark.parametrize("cls_position", [True, False])
@pytest.mark.parametrize("dropout_on", ["state", "output"])
def test_packed_pairs_of_documents(cls_position: bool, dropout_on: str) -> None:
    changes = (f"model.cls_position={cls_position}", f"attention.dropout_on={dropout_on}", "model.dropout=0.3")
    model = built("simple", [], *changes, "model.norm=post", documents=2)
    tokens = tokens_of(LENGTHS)
    check_same(results(model, tokens, pack=True), results(model, tokens, pack=False))


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("over", ["values", "channels"])
def test_noise_bits_are_those_of_any_padding_any_cut_and_of_a_packed_batch(over: str, hashed: bool) -> None:
    lengths, layers = [5, 1, 29, 17], nn.ModuleList([Dropout(0.3, over), Dropout(0.3, over)]).train()
    for layer in layers:
        layer.hashed = hashed

    def kept(rows: list[int], longest: int) -> list[Tensor]:
        set_keys(layers, seed=1, step=3, rows=rows)
        outputs = layers[1](torch.ones(len(rows), longest, 13)) != 0
        return [document[: lengths[row]] for document, row in zip(outputs, rows, strict=True)]

    padded = torch.cat(kept([0, 1, 2, 3], 29))
    assert torch.equal(padded, torch.cat(kept([0, 1, 2, 3], 101)))
    assert torch.equal(padded, torch.cat([*kept([0], 5), *kept([1, 2], 29), *kept([3], 17)]))
    packed = Packed.of(np.array(lengths), 29, torch.device("cpu"))
    set_keys(layers, seed=1, step=3, rows=range(4))
    assert torch.equal(padded, layers[1](torch.ones(sum(lengths), 13), packed) != 0)
    assert 0.5 < padded.double().mean() < 0.9


def test_a_layout_is_undone() -> None:
    lengths = np.array([1, 2 * CHUNK, 3, CHUNK + 1, CHUNK - 1])
    packed = Packed.of(lengths, 2 * CHUNK + 5, torch.device("cpu"))
    x = noise(lengths.sum(), 7)
    padded, chunks = packed.pad(x), packed.chunk(x)
    assert torch.equal(padded[packed.mask], x) and torch.equal(packed.unpad(padded), x)
    assert torch.equal(chunks[packed.chunk_mask], x) and torch.equal(packed.unchunk(chunks), x)
    assert padded.shape == (5, 2 * CHUNK + 5, 7) and not padded[~packed.mask].any()
    assert chunks.shape == (1 + 2 + 1 + 2 + 1, CHUNK, 7) and not chunks[~packed.chunk_mask].any()
    torch.testing.assert_close(packed.sum_chunks(chunks.sum(dim=1)), padded.sum(dim=1))
    assert torch.equal(packed.of_chunks(padded[:, 0])[packed.owner == 3], x[packed.first[3]].expand(2, -1))
