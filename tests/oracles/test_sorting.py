"""Sinkhorn and Reformer against published implementations."""

import math

import pytest
import torch
from support import mixer_of, noise, same
from torch import Tensor

from lra.mixers.reformer import Reformer
from lra.mixers.sinkhorn import doubly_stochastic

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

LENGTH, WIDTH = 24, 5


def heads(seed: int, length: int = LENGTH) -> Tensor:
    return noise(2, 3, length, WIDTH, seed=seed)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- sinkhorn-transformer


def test_sinkhorn_operator() -> None:
    lib = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    logits = noise(6, 7, 7)
    actual = doubly_stochastic(logits, torch.ones(7, dtype=torch.bool), 8)
    close(actual, lib.sinkhorn_sorting_operator(logits, 8))


def test_sinkhorn_sorting_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs takes sums of queries, too, and the logarithm of relu(R); without noise, with exp in place of relu."""
    lib = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    monkeypatch.setattr(lib, "sample_gumbel", lambda shape, device, dtype: torch.zeros(shape, dtype=dtype))
    monkeypatch.setattr(lib, "log", torch.log)
    mixer = mixer_of("sinkhorn", "attention.block=3", max_positions=LENGTH).eval()
    net = lib.SimpleSortNet(3, 3, 8, 2 * WIDTH, False, 0.75, 7).double()
    net.act.forward = torch.exp
    net.linear.data[0, :, :WIDTH], net.linear.data[0, :, WIDTH:] = 0, mixer.sort.data
    k = heads(1)
    order = mixer.permutation(k.unflatten(2, (8, 3)), torch.ones(2, 1, 8, 3, dtype=torch.bool))
    close(order.flatten(0, 1), net(heads(2).flatten(0, 1), k.flatten(0, 1)))


def test_sinkhorn_attention() -> None:
    """Given the same permutation. Theirs takes the sorted values from the keys, so here values are keys."""
    lib = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    mixer = mixer_of("sinkhorn", "attention.block=3", "protocol=strict", max_positions=LENGTH).eval()
    q, k = heads(1).requires_grad_(), heads(2).requires_grad_()
    order = mixer.permutation(k.unflatten(2, (8, 3)), torch.ones(2, 1, 8, 3, dtype=torch.bool)).flatten(0, 1)
    theirs = lib.SinkhornAttention(3, 3 * WIDTH, WIDTH, 3, LENGTH, non_permutative=False)
    theirs.sort_net.forward = lambda q, k, topk: order
    same(mixer.attend(q, k, k, None), theirs(q, k, k), [q, k], tolerance=1e-6)


# ---------------------------------------------------------------- reformer-pytorch


def reformer_of(chunk: int, hashes: int, *options: str) -> Reformer:
    options = (f"chunk={chunk}", f"hashes={hashes}", *options)
    overrides = [f"attention.{option}" for option in options]
    return mixer_of("reformer", *overrides, max_positions=LENGTH, bias=False).eval()


@pytest.mark.parametrize("masked", [False, True])
def test_reformer_full_attention(masked: bool) -> None:
    lib = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [17]]) if masked else torch.ones(2, LENGTH, dtype=torch.bool)
    q, v = heads(1), heads(2)
    rows = mask[:, None].expand(2, 3, LENGTH)
    actual = reformer_of(LENGTH, 2, "scale=head_dim").attend(q, v, mask)[rows]
    every = mask.repeat_interleave(3, dim=0)
    expected = lib.FullQKAttention()(q.flatten(0, 1), v.flatten(0, 1), input_mask=every)[0].view_as(q)[rows]
    close(actual, expected)
    # Two of their chunks, of which each looks back at the other, are everything.
    chunks = lib.LSHAttention(bucket_size=LENGTH // 2, n_hashes=1)
    expected = chunks(q.flatten(0, 1), v.flatten(0, 1), input_mask=every)[0].view_as(q)[rows]
    close(actual, expected)


@pytest.mark.parametrize(("chunk", "hashes"), [(2, 1), (3, 2), (4, 3), (2, 4)])
def test_reformer_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int, hashes: int) -> None:
    """The same rotations. Their first chunk looks back at the last one of another round, which has other buckets."""
    lib = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    mixer = reformer_of(chunk, hashes, "within_bucket=true", "scale=head_dim")
    theirs = lib.LSHAttention(
        bucket_size=chunk,
        n_hashes=hashes,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
        random_rotations_per_head=True,
    )
    hash_vectors = theirs.hash_vectors
    buckets = 2 * LENGTH // chunk  # ours: twice as many as they draw
    monkeypatch.setattr(theirs, "hash_vectors", lambda n, vectors, **keywords: hash_vectors(buckets, vectors))
    q, v = heads(1).requires_grad_(), heads(2).requires_grad_()
    actual = mixer.attend(q, v, None)
    with monkeypatch.context() as patch:
        patch.setattr(lib.torch, "randn", lambda shape, **keywords: mixer.rotations.repeat(2, 1, 1, 1).reshape(shape))
        expected = theirs(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(actual)
    same(actual, expected, [q, v], tolerance=1e-6)


# ---------------------------------------------------------------- transformers


@pytest.mark.parametrize("lengths", [[LENGTH, LENGTH], [LENGTH, 17]])
@pytest.mark.parametrize("chunk", [3, 4, LENGTH])
def test_reformer_of_transformers(monkeypatch: pytest.MonkeyPatch, chunk: int, lengths: list[int]) -> None:
    """One round, the same rotations. Their first chunk looks back at the last one."""
    lib = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    mixer = reformer_of(chunk, 1)
    config = lib.ReformerConfig(
        hidden_size=15,
        num_attention_heads=3,
        attention_head_size=WIDTH,
        lsh_attn_chunk_length=chunk,
        num_hashes=1,
        num_buckets=2 * LENGTH // chunk,
        is_decoder=False,
        lsh_attention_probs_dropout_prob=0.0,
    )
    theirs = lib.LSHSelfAttention(config, layer_idx=0).double().eval()
    theirs.query_key.weight.data, theirs.value.weight.data = mixer.query.weight.data, mixer.value.weight.data
    x, mask = noise(2, LENGTH, 15), torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    with monkeypatch.context() as patch:
        patch.setattr(lib.torch, "randn", lambda shape, **keywords: mixer.rotations.reshape(shape))
        expected = theirs(x, attention_mask=mask.long()).hidden_states
    actual = mixer(x, mask)
    q = mixer.query(x).unflatten(-1, (3, WIDTH)).transpose(1, 2)
    first = mixer.buckets(q, mask)[:, :, 0].argsort(dim=-1, stable=True).argsort(dim=-1) < chunk
    rows = (mask[:, None] & ~first) if chunk < LENGTH else mask[:, None].expand(2, 3, LENGTH)
    actual, expected = (y.unflatten(-1, (3, WIDTH)).transpose(1, 2)[rows] for y in (actual, expected))
    assert len(actual) > LENGTH
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * math.sqrt(WIDTH))  # their norm adds 1e-6
