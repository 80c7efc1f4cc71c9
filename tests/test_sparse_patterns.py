"""Attention by patterns: the block-gather kernel beside dense masks, and the pattern of each mechanism by loops."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from support import composed, mixer_of, noise
from torch import Tensor

from lra.attention import Shape
from lra.attention.bigbird import draw_blocks
from lra.config import configure
from lra.config.configure import build
from lra.core.errors import UserError
from lra.ops.block_sparse import PatternAttention
from lra.ops.dropout import set_keys

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
    "strided": ("sparse", "attention.pattern=strided", "attention.stride=4"),
    "strided-plain": ("sparse", "attention.pattern=strided", "attention.stride=5", "attention.cls_global=false"),
    "bigbird": ("bigbird", "attention.block=2", "attention.random_blocks=3"),
    "bigbird-1": ("bigbird", "attention.block=3", "attention.random_blocks=1"),
    "bigbird-few": ("bigbird", "attention.block=5", "attention.random_blocks=4"),
    "bigbird-default": ("bigbird",),
}
LENGTHS = [1, 2, 3, 4, 7, 10, 13, 20, 28, 29]
BLIND = {"local-block", *(case for case in CASES if "bigbird" in case)}  # no causal form
every = pytest.mark.parametrize("case", CASES)
both_ways = pytest.mark.parametrize(
    ("case", "causal"), [(case, causal) for case in CASES for causal in (False, True) if not (causal and case in BLIND)]
)


@cache
def built(case: str, **shape: object) -> PatternAttention:
    return mixer_of(*CASES[case], max_positions=MAX_LEN, **shape)


def made(case: str, **shape: object) -> PatternAttention:
    return deepcopy(built(case, **shape))


@cache
def design_of(*overrides: str) -> Callable[[Shape], PatternAttention]:
    return build(configure.plain(composed(*overrides))["attention"], "attention", [], supplied=1)


def heads(length: int, seed: int) -> Tensor:
    return noise(2, 3, length, 5, seed=seed).requires_grad_()


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(dim=-1) @ v


def masks(length: int) -> list[Tensor | None]:
    """None; right padding of the second row; holes."""
    padded = torch.arange(length) < torch.tensor([length, max(1, length // 2)])[:, None]
    holes = noise(2, length, seed=9) > -0.5
    return [None, padded, holes]


# ---------------------------------------------------------------- the kernel


@both_ways
def test_the_kernel_is_the_dense_mask(case: str, causal: bool) -> None:
    """Outputs at real positions, and what they give back to queries, keys and values."""
    mixer = made(case, causal=causal)
    for length in LENGTHS:
        for mask in masks(length):
            q, k, v = heads(length, 1), heads(length, 2), heads(length, 3)
            real = torch.ones(2, length, dtype=torch.bool) if mask is None else mask
            seen = mixer.pattern(length) & real[:, None, None, :] | torch.eye(length, dtype=torch.bool)
            weight = noise(2, 3, length, 5, seed=4) * real[:, None, :, None]
            actual, expected = mixer.attend(q, k, v, mask), dense(q, k, v, seen, mixer.scale)
            torch.testing.assert_close(actual * weight, expected * weight, rtol=1e-12, atol=1e-12)
            gradients = torch.autograd.grad((actual * weight).sum(), (q, k, v))
            wanted = torch.autograd.grad((expected * weight).sum(), (q, k, v))
            torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)


@every
def test_an_output_depends_on_the_keys_of_its_pattern_and_no_others(case: str) -> None:
    mixer = made(case)
    for length in (7, 29):
        q, k, v = (heads(length, seed)[:1].detach() for seed in (1, 2, 3))
        for which in ("keys", "values"):

            def sums(x: Tensor, which: str = which, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
                mixed = mixer.attend(q, x, v, None) if which == "keys" else mixer.attend(q, k, x, None)
                return mixed[0].square().sum(dim=-1)

            jacobian = torch.autograd.functional.jacobian(sums, k if which == "keys" else v)
            touched = torch.stack([jacobian[head, :, 0, head].abs().sum(dim=-1) > 0 for head in range(3)])
            seen = mixer.pattern(length).expand(3, -1, -1).clone()
            if which == "keys":  # one key alone has weight 1, whatever it is
                alone = seen.sum(dim=-1, keepdim=True) == 1
                touched, seen = touched & ~alone, seen & ~alone
            assert torch.equal(touched, seen)


@every
def test_each_key_counts_once(case: str) -> None:
    """With equal scores the weights of a query are 1 / (the keys of its pattern), and sum to 1."""
    mixer = made(case, dropout=1e-9).train()
    set_keys(mixer, seed=1, step=0, rows=range(1))
    met: list[Tensor] = []
    mixer.dropout.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0]))
    for length in LENGTHS:
        q, k, v = torch.zeros(1, 3, length, 5), noise(1, 3, length, 5), noise(1, 3, length, 5)
        mixer.attend(q.double(), k, v, None)
        weights = met.pop().flatten(2, 3)[0, :, :length]
        places = torch.arange(length)
        ordinary = ~torch.isin(places, mixer.global_places(places))
        counts = mixer.pattern(length).expand(3, -1, -1).sum(dim=-1)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, length, dtype=torch.float64))
        assert torch.equal((weights > 0).sum(dim=-1)[:, ordinary], counts[:, ordinary])
        torch.testing.assert_close(weights.amax(dim=-1)[:, ordinary], 1 / counts[:, ordinary].double())


@every
def test_training_is_evaluation_up_to_dropout(case: str) -> None:
    mixer, mask = made(case, dropout=1e-9), masks(13)[1]
    set_keys(mixer, seed=1, step=0, rows=range(2))
    q, k, v = heads(13, 1), heads(13, 2), heads(13, 3)
    trained, evaluated = mixer.train().attend(q, k, v, mask), mixer.eval().attend(q, k, v, mask)
    torch.testing.assert_close(trained.transpose(1, 2)[mask], evaluated.transpose(1, 2)[mask])


def test_dropout_is_on_the_weights() -> None:
    """With values of 1, an output is the sum of the kept weights of its query, over 1 - p."""
    mixer = made("fixed", dropout=0.5).train()
    set_keys(mixer, seed=1, step=0, rows=range(2))
    kept: list[Tensor] = []
    mixer.dropout.register_forward_hook(lambda _, __, output: kept.append(output))
    mixed = mixer.attend(heads(29, 1), heads(29, 2), torch.ones(2, 3, 29, 5, dtype=torch.float64), None)
    expected = kept[0].sum(dim=-1).flatten(2)[:, :, 1:29, None].expand(-1, -1, -1, 5)
    torch.testing.assert_close(mixed[:, :, 1:], expected)
    assert 0.4 < (kept[0] == 0).double().mean() < 0.8
    torch.testing.assert_close(mixed.mean(), torch.ones((), dtype=torch.float64), rtol=0.1, atol=0)


def test_the_dense_rows_have_their_own_dropout() -> None:
    mixer = made("longformer-3", dropout=0.5).train()
    set_keys(mixer, seed=1, step=0, rows=range(2))
    met: list[Tensor] = []
    mixer.row_dropout.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0]))
    mixer.attend(heads(7, 1), heads(7, 2), heads(7, 3), None)
    assert [weights.shape for weights in met] == [(2, 3, 3, 7)]
    assert mixer.row_dropout.key.layer != mixer.dropout.key.layer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [("local", "attention.kind=sliding", "attention.window=150"), ("longformer", "attention.window=300")]
)
def test_a_window_wider_than_the_blocks(options: tuple[str, ...], causal: bool) -> None:
    """Blocks of 128 and a window that is no multiple of them."""
    mixer = mixer_of(*options, max_positions=401, causal=causal)
    q, k, v = heads(401, 1), heads(401, 2), heads(401, 3)
    expected = dense(q, k, v, mixer.pattern(401), mixer.scale)
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # it asks to be compiled
def test_flex_attention_agrees() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    for case in ("bigbird", "strided", "longformer"):
        mixer, length = made(case), 29
        seen = mixer.pattern(length).expand(3, -1, -1)
        with torch.no_grad():
            blocks = flex.create_block_mask(lambda b, h, i, j, m=seen: m[h, i, j], 2, 3, length, length, device="cpu")
            q, k, v = (heads(length, seed).detach() for seed in (1, 2, 3))
            expected = flex.flex_attention(q, k, v, block_mask=blocks, scale=mixer.scale)
            torch.testing.assert_close(mixer.attend(q, k, v, None), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "overrides",
    [
        ("local", "attention.kind=sliding", "attention.window=28"),
        ("local", "attention.window=29"),
        ("longformer", "attention.window=56", "attention.global_positions=0"),
        ("longformer",),
        ("sparse",),
        ("sparse", "attention.pattern=strided", "attention.stride=28"),
        ("sparse", "attention.stride=3", "attention.summary=3"),
        ("bigbird",),
        ("bigbird", "attention.block=4", "attention.random_blocks=8"),
    ],
    ids=",".join,
)
def test_a_pattern_of_all_keys_is_softmax(overrides: tuple[str, ...]) -> None:
    mixer, softmax = mixer_of(*overrides, max_positions=MAX_LEN), mixer_of("softmax", max_positions=MAX_LEN)
    softmax.load_state_dict({key: value for key, value in mixer.state_dict().items() if key != "table"})
    x = noise(2, MAX_LEN, 15)
    torch.testing.assert_close(mixer(x), softmax(x), rtol=1e-12, atol=1e-12)
    assert mixer.commutes
    assert mixer.full_pattern


@both_ways
def test_a_pattern_is_full_where_the_dense_mask_is(case: str, causal: bool) -> None:
    name, *options = CASES[case]
    design = design_of(f"attention={name}", *options)
    shape = Shape(
        dim=15,
        qkv_dim=15,
        heads=3,
        max_positions=1,
        bias=True,
        out_proj=True,
        dropout=0,
        dropout_over="values",
        causal=causal,
        layer=0,
        layers=2,
    )
    for length in (2, 5, 11, 13, 29):
        mixer = design(replace(shape, max_positions=length))
        possible = torch.ones(length, length, dtype=torch.bool)
        full = bool((mixer.pattern(length) == (possible.tril() if causal else possible)).all())
        assert mixer.full_pattern == full
        assert mixer.to("meta").full_pattern == full


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


SHORT = [
    ("table1_small", "listops"),
    ("table1_small", "text"),
    ("table1_small", "acl_matching"),
]


@pytest.mark.parametrize(("preset", "task"), SHORT)
def test_small_presets_leave_out_most_pairs(preset: str, task: str) -> None:
    """The share of all pairs that their blocks and windows read."""
    cfg = configure.plain(composed(f"experiment={preset}", f"task={task}"))
    length = build(cfg["task"], "task", [])().facts.max_len + 1
    for name in ("local", "sinkhorn", "reformer", "sparse", "longformer", "bigbird", "nystromformer"):
        chosen = configure.plain(composed(f"experiment={preset}", f"task={task}", f"attention={name}"))
        shape = {
            "dim": 12,
            "qkv_dim": 12,
            "heads": 3,
            "bias": True,
            "out_proj": True,
            "dropout": 0.0,
            "dropout_over": "values",
        }
        build_mixer = build(chosen["attention"], "attention", [], supplied=1)
        mixer = build_mixer(Shape(**shape, max_positions=length, causal=False, layer=0, layers=1))
        assert not mixer.full_pattern
        if isinstance(mixer, PatternAttention):
            assert mixer.pattern(length).float().mean() < 0.4
        else:
            key = {"sinkhorn": "block", "reformer": "chunk", "nystromformer": "landmarks"}[name]
            size = chosen["attention"][key]
            keys = {"sinkhorn": 2 * size, "reformer": 4 * size}.get(name, size)  # that a query reads, at most
            assert keys < 0.4 * length


def test_full_sizes_are_those_of_the_sources() -> None:
    """Long Range Arena's, at its lengths."""
    settings = {
        name: composed(f"attention={name}", "task=text").attention for name in ("local", "sparse", "longformer")
    }
    assert (settings["local"].kind, settings["local"].window) == ("block", 50)
    assert (settings["sparse"].stride, settings["sparse"].summary, settings["longformer"].window) == (50, 10, 512)
    settings = {
        name: composed(f"attention={name}", "task=text").attention for name in ("bigbird", "sinkhorn", "reformer")
    }
    assert (settings["bigbird"].block, settings["sinkhorn"].block, settings["reformer"].chunk) == (64, 50, 64)


@pytest.mark.parametrize("pattern", ["fixed", "strided"])
def test_sparse_scores_what_it_promises(pattern: str) -> None:
    """Keys per query near sqrt(L), not L: s + c N of `fixed`, three blocks and N of `strided`, and the CLS."""
    mixer = mixer_of(
        "sparse",
        "attention.stride=16",
        "attention.summary=2",
        f"attention.pattern={pattern}",
        max_positions=256,
        dropout=1e-9,
    ).train()
    set_keys(mixer, seed=1, step=0, rows=range(1))
    met: list[int] = []
    mixer.dropout.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0].shape[-1]))
    mixer(noise(1, 256, 15))
    assert met == [16 + 2 * 16 + 1 if pattern == "fixed" else 3 * 16 + 16 + 1]


# ---------------------------------------------------------------- the patterns


def looped(length: int, reads: object) -> Tensor:
    return torch.tensor([[bool(reads(i, j)) for j in range(length)] for i in range(length)])


def same_blocks(b: int) -> object:
    return lambda i, j: any(i in range(start, start + b) and j in range(start, start + b) for start in range(0, 99, b))


LOOPS = {
    "local": lambda i, j: j in range(i - 3, i + 4),
    "local-block": same_blocks(5),
    "longformer": lambda i, j: j in range(i - 3, i + 4) or 0 in (i, j),
    "longformer-3": lambda i, j: j in range(i - 2, i + 3) or i < 3 or j < 3,
    "fixed": lambda i, j: same_blocks(5)(i, j) or j % 5 in (3, 4) or 0 in (i, j),
    "fixed-plain": lambda i, j: same_blocks(4)(i, j) or j in range(3, 99, 4),
    "strided": lambda i, j: j in range(i - 3, i + 4) or j in range(i % 4, 99, 4) or 0 in (i, j),
    "strided-plain": lambda i, j: j in range(i - 4, i + 5) or j in range(i % 5, 99, 5),
}


@pytest.mark.parametrize("case", LOOPS)
def test_patterns_by_loops(case: str) -> None:
    mixer = made(case)
    causal = None if case in BLIND else made(case, causal=True)
    assert mixer.can_be_causal == (causal is not None)
    for length in LENGTHS:
        expected = looped(length, LOOPS[case])
        assert torch.equal(mixer.pattern(length)[0], expected)
        if causal is not None:
            assert torch.equal(causal.pattern(length)[0], expected.tril())


@pytest.mark.parametrize("case", [case for case in CASES if case != "local-block"])
def test_the_first_position_reads_the_next_one(case: str) -> None:
    """Long Range Arena's local attention groups position 0 with every (L / 50)th one instead."""
    assert made(case).pattern(MAX_LEN)[:, 0, 1].all()


def test_the_image_task_has_its_own_window() -> None:
    assert composed("attention=local", "task=image").attention.window == 64
    assert composed("attention=local", "task=text").attention.window == 50


# ---------------------------------------------------------------- Longformer


def test_global_positions_have_projections_of_their_own() -> None:
    overrides = (
        "longformer",
        "attention.window=4",
        "attention.global_positions=2",
        "attention.global_projections=true",
    )
    mixer = mixer_of(*overrides, max_positions=MAX_LEN)
    for old, new in (
        (mixer.query, mixer.global_query),
        (mixer.key, mixer.global_key),
        (mixer.value, mixer.global_value),
    ):
        assert torch.equal(old.weight, new.weight)
        assert old.weight is not new.weight
        torch.nn.init.normal_(new.weight)
    for length in (1, 2, 11):
        x, mask = noise(2, length, 15), masks(length)[1]

        def split(project: torch.nn.Module, x: Tensor = x) -> Tensor:
            return project(x).unflatten(-1, (3, 5)).transpose(1, 2)

        ordinary = [split(project) for project in (mixer.query, mixer.key, mixer.value)]
        global_heads = [split(project) for project in (mixer.global_query, mixer.global_key, mixer.global_value)]
        seen = mixer.pattern(length) & mask[:, None, None, :] | torch.eye(length, dtype=torch.bool)
        expected = dense(*ordinary, seen, mixer.scale)
        expected[:, :, :2] = dense(*global_heads, seen, mixer.scale)[:, :, :2]
        expected = expected.transpose(1, 2).flatten(2)
        torch.testing.assert_close(mixer(x, mask)[mask], expected[mask], rtol=1e-12, atol=1e-12)


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


def test_the_random_blocks_belong_to_seed_layer_and_head() -> None:
    def tables(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [mixer_of("bigbird", "attention.block=1", max_positions=97, layer=layer).table for layer in range(2)]

    (first, other), again, different = tables(5), tables(5), tables(7)
    assert torch.equal(first, again[0])
    assert torch.equal(other, again[1])
    assert not torch.equal(first, other)
    assert not torch.equal(first, different[0])
    assert not torch.equal(first[0], first[1])


def test_random_blocks_are_uniform() -> None:
    """Each of the 6 free blocks of row 4 of 11 is drawn a third of the time, twice of six."""
    torch.manual_seed(1)
    counts = draw_blocks(heads=900, blocks=11, count=2)[:, 4].flatten().bincount(minlength=11)
    assert counts[[0, 3, 4, 5, 10]].sum() == 0
    assert (counts[[1, 2, 6, 7, 8, 9]] - 300).abs().max() < 4 * (900 * 2 / 9) ** 0.5


def test_training_and_evaluation_read_the_same_blocks() -> None:
    mixer = made("bigbird", dropout=0.5)
    before = mixer.table.clone()
    mixer.train().redraw(1, 0)
    set_keys(mixer, seed=1, step=0, rows=range(2))
    mixer(noise(2, MAX_LEN, 15))
    assert torch.equal(mixer.table, before)
    assert torch.equal(mixer.eval().table, before)
    assert "table" in mixer.state_dict()


def test_bigbird_by_loops() -> None:
    """The last block is that of `max_positions`: an input that ends before it has none, however it is padded."""
    mixer = made("bigbird")  # blocks of 2, 15 of them
    for length in LENGTHS:
        for head in range(3):
            table = mixer.table[head].tolist()

            def reads(i: int, j: int, table: list[list[int]] = table) -> bool:
                row, column = i // 2, j // 2
                return abs(row - column) <= 1 or bool({row, column} & {0, 14}) or column in table[row]

            assert torch.equal(mixer.pattern(length)[head], looped(length, reads))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("sparse", "attention.stride=3", "attention.summary=4"),
            "attention.summary=4: expected at most attention.stride=3, .* lower the first or raise the second",
        ),
        (
            ("longformer", "attention.global_positions=0", "attention.global_projections=true"),
            "attention.global_projections=true: no position uses them",
        ),
        (("longformer", "attention.window=5"), "attention.window=5: should be a multiple of 2"),
        (("local", "attention.window=0"), "attention.window=0: should be greater than 0"),
    ],
)
def test_a_wrong_option_is_named(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixer_of(*overrides)
