"""The model: equations of blocks, positions, initial weights, padding, pooling, heads, refused settings."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from support import TINY_MODEL, model_of, options, settings, spec
from torch import nn

from lra.core.errors import UserError
from lra.mixers.softmax import Softmax
from lra.network.architecture import Architecture
from lra.network.block import Block, ShortConvolution
from lra.network.embedding import sinusoids
from lra.network.heads import pooled
from lra.network.model import Model

TINY = (*TINY_MODEL, "model.dropout=0")


def tiny(*overrides: str, **changes: object) -> nn.Module:
    torch.manual_seed(3)
    return model_of(*TINY, *overrides, task=spec(**changes)).double().eval()


def tokens(*lengths: int, width: int = 11, seed: int = 0) -> torch.Tensor:
    rows = torch.randint(1, 17, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    return rows * (torch.arange(width) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize("variant", options("variant"))
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_are_their_equations(norm: str, variant: str) -> None:
    block: Block = tiny("attention=softmax", f"variant={variant}", f"model.norm={norm}").blocks[0]
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    n1, n2, mix, net = block.mixer_norm, block.feed_forward_norm, block.mixer, block.feed_forward
    skip = x if variant in ("simple_res", "simple_resl") else 0
    if norm == "pre":
        h = x + mix(n1(x))
        expected = h + net(n2(h)) + skip
    else:
        h = n1(x + mix(x))
        expected = n2(h + net(h) + skip)
    torch.testing.assert_close(block(x, None), expected)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_cls_has_a_position_where_the_protocol_says(shift: int) -> None:
    """The authors add positions to the tokens alone, and all but the token vectors begin as zeros."""
    embedding = tiny(f"model.cls_position={shift == 1}").embedding
    assert embedding.positions.shape == (11 + shift, 6)
    assert not any(part.any() for part in (embedding.positions, embedding.cls, embedding.tokens.weight[0]))
    nn.init.normal_(embedding.positions), nn.init.normal_(embedding.cls)
    row = tokens(11)
    out = embedding(row)
    torch.testing.assert_close(out[0, 0], embedding.cls + embedding.positions[0] * shift)
    torch.testing.assert_close(out[0, 1:], embedding.tokens(row)[0] + embedding.positions[shift:])


def test_learned_positions_begin_as_the_protocol_says() -> None:
    """The authors' as zeros (their code); Google's as N(0, 0.02), normal(stddev=0.02) of its transformer.py."""
    known = ("model.positions=learned", "model.dim=96")
    assert not tiny("protocol=paper", *known).embedding.positions.any()
    drawn = tiny("protocol=lra", *known, max_len=101).embedding.positions
    assert drawn.shape == (102, 96)
    assert abs(drawn.mean()) < 0.001
    torch.testing.assert_close(drawn.std().item(), 0.02, rtol=0.03, atol=0)


def test_weights_begin_as_in_googles_code() -> None:
    """Xavier's uniform in the blocks, LeCun's normal in the head, which is cut off at two deviations."""
    model = tiny("protocol=lra", "model.dim=96", "model.mlp_dim=384")
    inner, head = model.blocks[0].feed_forward[0].weight, model.head[0].weight
    bound = (6 / (96 + 384)) ** 0.5
    assert 0.99 * bound < inner.abs().max() <= bound
    torch.testing.assert_close(head.std().item(), 96**-0.5, rtol=0.02, atol=0)
    assert 2.2 < head.abs().max() * 96**0.5 < 2 / 0.8796
    assert not any(bias.any() for name, bias in model.named_parameters() if name.endswith("bias"))


def test_sinusoids() -> None:
    table = sinusoids(7, 6)
    assert table[0].tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(table[3, 1], torch.tensor(3 / 100.0).sin())  # rates 1, 1/100, 1/10000
    torch.testing.assert_close(table[5, 5], torch.tensor(5 / 10_000.0).cos())


@pytest.mark.parametrize(
    ("attention", "pooling"),
    [*((name, "cls") for name in ("simple", "performer", "mamba2")), *(("softmax", how) for how in ("mean", "max"))],
)
def test_padding_is_invisible_with_a_mask(attention: str, pooling: str) -> None:
    model = tiny(f"attention={attention}", "protocol=strict", f"model.pooling={pooling}")
    batch = tokens(11, 4, 7)
    together = model(batch)
    for row, length in enumerate((11, 4, 7)):
        torch.testing.assert_close(model(batch[row : row + 1, :length])[0], together[row])


@pytest.mark.parametrize("attention", ["softmax", "simple", "performer"])
def test_documents_of_one_length_need_no_mask(attention: str) -> None:
    model = tiny(f"attention={attention}", "protocol=lra", max_len=11, fixed_length=True)
    unmasked = model(tokens(11, 11, 11))
    assert not model.masks_padding
    model.masks_padding = True
    torch.testing.assert_close(model(tokens(11, 11, 11)), unmasked)


def test_padding_takes_part_without_a_mask() -> None:
    model = tiny("attention=simple", "protocol=paper")
    nn.init.normal_(model.embedding.cls)
    batch = tokens(4)
    assert not torch.allclose(model(batch), model(batch[:, :4]))


def test_a_pair_shares_the_encoder_and_keeps_its_order() -> None:
    model = tiny("model.final_norm=false", documents=2)
    assert [type(layer).__name__ for layer in model.head] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    a, b = tokens(11, seed=1), tokens(11, seed=2)
    both, swapped = model(torch.cat([a, b, b, a])), model(torch.cat([b, a]))
    assert both.shape == (2, 5)
    torch.testing.assert_close(both[1:], swapped)
    assert not torch.allclose(both[0], both[1])


def test_pair_interaction_features() -> None:
    model = tiny("model.pair_features=interaction", documents=2)
    assert model.head[0].in_features == 4 * 6
    seen = {}
    model.head.register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0]))
    model(tokens(11, 7))
    first, second = seen["x"][0, :6], seen["x"][0, 6:12]
    torch.testing.assert_close(seen["x"][0, 12:], torch.cat([first * second, first - second]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.heads=4",), "model.heads=4 does not divide model.qkv_dim=6"),
        (("model.qkv_dim=12", "variant=simple"), "model.qkv_dim=12: expected model.dim=6"),
        (("model.qkv_dim=12", "variant=simple_res"), "model.qkv_dim=12: expected model.dim=6"),
        (("model.dim=9", "model.positions=sinusoidal"), "expected an even model.dim, got 9"),
        (("model.pair_features=interaction",), "expected a task of two documents"),
    ],
)
def test_widths_that_do_not_fit_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(*overrides)


def test_a_mixer_that_cannot_mask_is_refused() -> None:

    class Blind(Softmax):
        maskable = False

    values = settings(*TINY, "protocol=strict")["model"]
    with pytest.raises(UserError, match="Blind cannot mask padding: use model.key_mask=false"):
        Model(partial(Blind, scale="head_dim"), spec(), Architecture(**values))


def test_pooling_reads_real_positions() -> None:
    """For a document without real tokens `max` gives 0, and `last` reads the first position."""
    x, tokens = torch.randn(3, 7, 6, dtype=torch.float64) - 3, torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [0] * 7])
    for pooling, pick, nothing in (
        ("first", lambda x: x[0], x[2, 0]),
        ("last", lambda x: x[-1], x[2, 0]),
        ("mean", lambda x: x.mean(dim=0), 0 * x[2, 0]),
        ("max", lambda x: x.max(dim=0).values, 0 * x[2, 0]),
    ):
        expected = torch.stack([pick(x[0]), pick(x[1, :5]), nothing])
        torch.testing.assert_close(pooled(x, tokens != 0, pooling), expected)
        torch.testing.assert_close(pooled(x, None, pooling), torch.stack([pick(row) for row in x]))


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (lambda x: x.mean(dim=-1, keepdim=True), "[2, 12, 1]"),
        (lambda x: x.mean(dim=1, keepdim=True), "[2, 1, 15]"),
        (lambda x: x.mean(dim=0, keepdim=True), "[1, 12, 15]"),
        (lambda x: x.double(), "float64"),
        (lambda x: None, "NoneType"),
        (lambda x: (x, x), "tuple"),
    ],
    ids=["width", "positions", "documents", "type", "nothing", "two"],
)
def test_an_output_of_another_shape_or_type_is_refused(output: Callable, shown: str) -> None:
    """Broadcasting would add these without an error."""
    sizes = ("model.dim=15", "model.heads=3", "model.depth=2", "model.mlp_dim=7")
    model = model_of("attention=softmax", *sizes, task=spec()).eval()
    model.blocks[0].mixer.forward = lambda x, *_: output(x)
    with pytest.raises(UserError) as error:
        model(torch.ones(2, 11, dtype=torch.long))
    actual, _, expected = str(error.value).partition("expected")
    assert actual.startswith("Softmax") and shown in actual
    assert "[2, 12, 15]" in expected and "float32" in expected


@pytest.mark.parametrize(("causal", "later"), [(True, 0), (False, 1)])
def test_a_short_convolution_is_a_loop_over_the_real_neighbours(causal: bool, later: int) -> None:
    torch.manual_seed(5)
    layer = ShortConvolution(7, 4, causal=causal).double()
    x, mask = torch.randn(2, 11, 7, dtype=torch.float64), torch.arange(11) < torch.tensor([[11], [5]])
    expected = torch.zeros_like(x)
    for row, length in enumerate((11, 5)):
        for place in range(11):
            for tap in range(4):
                other = place + later - tap
                if 0 <= other < length:
                    expected[row, place] += layer.taps[:, 3 - tap] * x[row, other]
    torch.testing.assert_close(layer(x, mask), expected + layer.bias)


def test_a_causal_model_with_a_short_convolution_sees_no_later_token() -> None:
    changes = {"objective": "next_token", "causal": True, "classes": 17}
    model = tiny("model.short_conv=3", "attention=softmax", **changes)
    row = tokens(11)
    other = row.clone()
    other[0, 7] = row[0, 7] % 16 + 1
    before, after = model(row), model(other)
    assert torch.equal(before[0, :7], after[0, :7]) and not torch.equal(before[0, 7:10], after[0, 7:10])


def test_reading_the_first_position_of_a_causal_mixer_is_refused() -> None:
    class Forward(Softmax):
        causal = True

    def made(**changes: str) -> Model:
        values = settings(*TINY)["model"]
        return Model(partial(Forward, scale="head_dim"), spec(), Architecture(**{**values, **changes}))

    with pytest.raises(UserError, match="model.pooling=cls"):
        made()
    assert made(pooling="last")
