"""Sparse patterns: attention over gathered blocks against dense masks; random blocks of BigBird; full patterns."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from support import mixer_of, noise, same
from torch import Tensor

from lra.mixers._sparse import PatternAttention
from lra.mixers.bigbird import draw_blocks

MAX_LEN = 29
CASES = {
    "local": ("local", "attention.kind=sliding", "attention.window=3"),
    "local-1": ("local", "attention.kind=sliding", "attention.window=1"),
    "local-wide": ("local", "attention.kind=sliding", "attention.window=50"),
    "local-block": ("local", "attention.window=5"),
    "longformer": ("longformer", "attention.window=6"),
    "longformer-3": ("longformer", "attention.window=4", "attention.global_positions=3"),
    "longformer-none": ("longformer", "attention.window=4", "attention.global_positions=0"),
    "fixed": ("sparse", "attention.stride=5", "attention.summary=2"),
    "fixed-plain": ("sparse", "attention.stride=4", "attention.summary=1", "attention.cls_global=false"),
    "fixed-all": ("sparse", "attention.stride=3", "attention.summary=3"),
    "bigbird": ("bigbird", "attention.block=2", "attention.random_blocks=3"),
    "bigbird-1": ("bigbird", "attention.block=3", "attention.random_blocks=1"),
    "bigbird-few": ("bigbird", "attention.block=5", "attention.random_blocks=4"),
    "bigbird-default": ("bigbird",),
}
LENGTHS = [1, 2, 7, 13, 28, 29]
BLIND = {"local-block", *(case for case in CASES if "bigbird" in case)}  # no causal form
FIRST = ("local", "longformer-3", "fixed", "bigbird")  # the others are slow tests
both_ways = pytest.mark.parametrize(
    ("case", "causal"),
    [
        pytest.param(case, causal, marks=[] if case in FIRST else [pytest.mark.slow])
        for case in CASES
        for causal in (False, True)
        if not (causal and case in BLIND)
    ],
)


@cache
def built(case: str, **shape: object) -> PatternAttention:
    return mixer_of(*CASES[case], max_positions=MAX_LEN, **shape)


def made(case: str, **shape: object) -> PatternAttention:
    return deepcopy(built(case, **shape))


def heads(length: int, seed: int) -> Tensor:
    return noise(2, 3, length, 5, seed=seed).requires_grad_()


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(dim=-1) @ v


def pattern(mixer: PatternAttention, length: int) -> Tensor:
    """Dense mask of the pattern [1 or H, L, L]."""
    places = torch.arange(length)
    everywhere = torch.isin(places, mixer.select_global(places))
    seen = mixer.pattern(places[:, None], places) | everywhere[:, None] | everywhere
    return (seen.tril() if mixer.causal else seen).view(-1, length, length)


def masks(length: int) -> list[Tensor | None]:
    """None; right padding of the second row; holes."""
    padded = torch.arange(length) < torch.tensor([length, max(1, length // 2)])[:, None]
    holes = noise(2, length, seed=9) > -0.5
    return [None, padded, holes]


# ---------------------------------------------------------------- the kernel


@both_ways
def test_the_kernel_is_the_dense_mask(case: str, causal: bool) -> None:
    """Outputs at real positions, and their gradients by queries, keys and values."""
    mixer = made(case, causal=causal)
    for length in LENGTHS:
        for mask in masks(length):
            q, k, v = heads(length, 1), heads(length, 2), heads(length, 3)
            real = torch.ones(2, length, dtype=torch.bool) if mask is None else mask
            seen = pattern(mixer, length) & real[:, None, None, :] | torch.eye(length, dtype=torch.bool)
            rows = real[:, None, :, None]
            same(mixer.attend(q, k, v, mask) * rows, dense(q, k, v, seen, mixer.scale) * rows, [q, k, v], 1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [("local", "attention.kind=sliding", "attention.window=150"), ("longformer", "attention.window=300")]
)
def test_a_window_wider_than_the_blocks(options: tuple[str, ...], causal: bool) -> None:
    """Blocks of 128 and a window that is no multiple of them."""
    mixer = mixer_of(*options, max_positions=401, causal=causal)
    q, k, v = heads(401, 1), heads(401, 2), heads(401, 3)
    expected = dense(q, k, v, pattern(mixer, 401), mixer.scale)
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, rtol=1e-12, atol=1e-12)


@both_ways
def test_a_pattern_is_full_where_the_dense_mask_is(case: str, causal: bool) -> None:
    for length in (2, 11, 13, 29):
        mixer = mixer_of(*CASES[case], max_positions=length, causal=causal)
        possible = torch.ones(length, length, dtype=torch.bool)
        assert mixer.full_pattern == bool((pattern(mixer, length) == (possible.tril() if causal else possible)).all())
        assert mixer.to("meta").full_pattern == mixer.full_pattern


@pytest.mark.parametrize(
    ("overrides", "length"),
    [
        (("sinkhorn", "attention.block=7"), 7),
        (("nystromformer", "attention.landmarks=7", "attention.conv_kernel=null", "attention.iterations=40"), 7),
    ],
)
def test_other_mechanisms_are_softmax_where_they_say_so(overrides: tuple[str, ...], length: int) -> None:
    mixer, softmax = mixer_of(*overrides, max_positions=length), mixer_of("softmax", max_positions=length)
    softmax.load_state_dict({key: value for key, value in mixer.state_dict().items() if key != "sort"})
    x = noise(2, length, 15)
    torch.testing.assert_close(mixer(x), softmax(x), rtol=1e-6, atol=1e-6)
    assert mixer.full_pattern
    longer = mixer_of(*overrides, max_positions=length + 1)
    assert not longer.full_pattern


def test_reformer_reads_all_pairs_where_it_says_so() -> None:
    """One chunk and no buckets: every output depends on every input, whatever the hashes."""
    for chunk, full in ((11, True), (10, False), (6, False)):
        mixer = mixer_of("reformer", f"attention.chunk={chunk}", "attention.hashes=1", max_positions=11, heads=1)
        x = noise(1, 11, 15).requires_grad_()
        read = torch.stack([torch.autograd.grad(y.sum(), x, retain_graph=True)[0][0].any(-1) for y in mixer(x)[0]])
        assert mixer.full_pattern == full
        assert bool(read.all()) == full
    assert not mixer_of("reformer", "attention.within_bucket=true", max_positions=11).full_pattern


# ---------------------------------------------------------------- BigBird


@pytest.mark.parametrize(("block", "count"), [(2, 3), (1, 7), (5, 4), (3, 0)])
def test_the_random_blocks_are_distinct_and_new(block: int, count: int) -> None:
    mixer = mixer_of("bigbird", f"attention.block={block}", f"attention.random_blocks={count}", max_positions=MAX_LEN)
    blocks = -(-MAX_LEN // block)
    most = max(len(set(range(1, blocks - 1)) - {n - 1, n, n + 1}) for n in range(blocks))
    assert mixer.table.shape == (3, blocks, min(count, most))
    for rows in mixer.table.tolist():
        for n, row in enumerate(rows):
            free = set(range(blocks)) - {n - 1, n, n + 1, 0, blocks - 1}
            drawn = [column for column in row if column >= 0]
            assert len(set(drawn)) == len(drawn) == min(count, len(free))
            assert set(drawn) <= free


def test_random_blocks_are_uniform() -> None:
    """Each of the 6 free blocks of row 4 of 11 is drawn a third of the time, twice of six."""
    torch.manual_seed(1)
    counts = draw_blocks(heads=900, blocks=11, count=2)[:, 4].flatten().bincount(minlength=11)
    assert counts[[0, 3, 4, 5, 10]].sum() == 0
    assert (counts[[1, 2, 6, 7, 8, 9]] - 300).abs().max() < 4 * (900 * 2 / 9) ** 0.5
