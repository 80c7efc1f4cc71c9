"""The model: golden parameter counts, block equations, positions, pooling, heads."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from support import composed, facts, model_of, noise, options
from torch import nn

from lra.attention.softmax import Softmax
from lra.config import configure
from lra.core.errors import UserError
from lra.model.architecture import Architecture
from lra.model.block import Block, ShortConvolution
from lra.model.embedding import sinusoids
from lra.model.heads import pooled
from lra.model.model import Model

PAPER = {
    "listops": (
        {"vocab_size": 17, "max_len": 2000, "classes": 10},
        {"dim": 512, "heads": 8, "depth": 6, "mlp_dim": 2048},
    ),
    "matching": (
        {"vocab_size": 257, "max_len": 4000, "classes": 2, "documents": 2},
        {"dim": 128, "heads": 4, "depth": 4, "mlp_dim": 512, "final_norm": "false"},
    ),
    "text": ({"vocab_size": 257, "max_len": 4000, "classes": 2}, {"dim": 256, "heads": 4, "depth": 4, "mlp_dim": 1024}),
}
GOLDEN = [
    ("listops", "transformer", 21_019_658),
    ("listops", "simple", 19_443_722),
    ("matching", "transformer", 1_601_538),
    ("matching", "simple", 1_535_490),
    ("text", "transformer", 4_514_818),
    ("text", "simple", 4_251_650),
]
TINY = ("model.dim=6", "model.heads=3", "model.depth=2", "model.mlp_dim=10", "model.dropout=0")


def tiny(*overrides: str, **changes: object) -> nn.Module:
    torch.manual_seed(3)
    return model_of(*TINY, *overrides, task=facts(**changes)).double().eval()


def tokens(*lengths: int, width: int = 11, seed: int = 0) -> torch.Tensor:
    rows = torch.randint(1, 17, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    return rows * (torch.arange(width) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize(("task", "system", "count"), GOLDEN)
def test_golden_parameter_counts(task: str, system: str, count: int) -> None:
    """Printed by the authors' notebooks (text: by the same formula)."""
    known, sizes = PAPER[task]
    with torch.device("meta"):
        model = model_of(
            f"system={system}", *(f"model.{key}={value}" for key, value in sizes.items()), task=facts(**known)
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("variant", options("variant"))
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equations(variant: str, norm: str) -> None:
    """With silent sub-layers a pre-norm block is y = x, with the extra skip y = 2x; post-norm adds its norms."""
    model = tiny(f"variant={variant}", f"model.norm={norm}", "attention=softmax")
    block: Block = model.blocks[0]
    nn.init.zeros_(block.mixer.value.weight), nn.init.zeros_(block.mixer.value.bias)
    nn.init.zeros_(block.feed_forward[3].weight), nn.init.zeros_(block.feed_forward[3].bias)
    if isinstance(block.mixer.out, nn.Linear):
        nn.init.zeros_(block.mixer.out.bias)
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    skip = variant in ("simple_res", "simple_resl")
    if norm == "pre":
        expected = 2 * x if skip else x
    else:
        h = nn.functional.layer_norm(x, (6,), eps=1e-6)
        expected = nn.functional.layer_norm(h + x if skip else h, (6,), eps=1e-6)
    torch.testing.assert_close(block(x, None), expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_by_hand(norm: str) -> None:
    model = tiny("system=simple_resl", f"model.norm={norm}")
    block: Block = model.blocks[0]
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    n1, n2, mix, net = block.mixer_norm, block.feed_forward_norm, block.mixer, block.feed_forward
    if norm == "pre":
        h = x + mix(n1(x))
        expected = h + net(n2(h)) + x
    else:
        h = n1(x + mix(x))
        expected = n2(h + net(h) + x)
    torch.testing.assert_close(block(x, None), expected)


def test_embedding_starts_as_the_authors() -> None:
    embedding = tiny().embedding
    assert embedding.positions.shape == (11, 6)
    assert not embedding.positions.any()
    assert not embedding.cls.any()
    assert not embedding.tokens.weight[0].any()
    nn.init.normal_(embedding.positions), nn.init.normal_(embedding.cls)
    row = tokens(11)
    out = embedding(row)
    torch.testing.assert_close(out[0, 0], embedding.cls)  # no position on the CLS
    torch.testing.assert_close(out[0, 1:], embedding.tokens(row)[0] + embedding.positions)


def test_cls_with_a_position() -> None:
    embedding = tiny("model.cls_position=true").embedding
    nn.init.normal_(embedding.positions), nn.init.normal_(embedding.cls)
    row = tokens(11)
    out = embedding(row)
    assert embedding.positions.shape == (12, 6)
    torch.testing.assert_close(out[0, 0], embedding.cls + embedding.positions[0])
    torch.testing.assert_close(out[0, 1:], embedding.tokens(row)[0] + embedding.positions[1:])


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


def test_pooling_by_hand() -> None:
    batch = tokens(11, 4)
    for pooling, pick in (
        ("first", lambda x: x[:, 0]),
        ("mean", lambda x: torch.stack([x[0].mean(0), x[1, :4].mean(0)])),
        ("max", lambda x: torch.stack([x[0].max(0).values, x[1, :4].max(0).values])),
    ):
        model = tiny("attention=softmax", "protocol=strict", f"model.pooling={pooling}")
        seen = {}
        model.final_norm.register_forward_hook(lambda module, inputs, output, seen=seen: seen.update(x=output))
        logits = model(batch)
        torch.testing.assert_close(logits, model.head(pick(seen["x"])))


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


def test_lra_protocol_model() -> None:
    model = tiny("system=transformer", "protocol=lra")
    block = model.blocks[0]
    assert block.mixer.query.bias is None
    assert block.mixer.out.bias is None
    assert block.feed_forward[0].bias is not None
    assert isinstance(model.head[1], nn.ReLU)
    assert not model.embedding.positions.requires_grad
    bound = (6 / (6 + 10)) ** 0.5
    assert block.feed_forward[0].weight.abs().max() <= bound


def test_every_protocol_passes_dropout_where_it_says() -> None:
    def rates(*overrides: str) -> tuple[float, float, float]:
        model = model_of(*TINY[:-1], "model.dropout=0.25", *overrides, task=facts())
        block = model.blocks[0]
        return model.embedding.dropout.p, block.mixer_dropout.p, block.mixer.dropout.p

    assert rates("protocol=paper") == (0, 0, 0.25)
    assert rates("protocol=lra") == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.heads=4",), "model.heads=4 does not divide model.qkv_dim=6"),
        (("model.qkv_dim=12", "variant=simple"), "model.qkv_dim=12 differs from model.dim=6"),
        (("model.qkv_dim=12", "variant=simple_res"), "model.qkv_dim=12 differs from model.dim=6"),
        (("model.dim=9", "model.positions=sinusoidal"), "expected an even model.dim, got 9"),
        (("model.pair_features=interaction",), "expected a task of two documents"),
    ],
)
def test_widths_that_do_not_fit_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(*overrides)


def test_a_wider_attention_fits_with_an_output_projection() -> None:
    assert tiny("model.qkv_dim=12", "variant=simple_resl")(tokens(11)).shape == (1, 5)


def test_a_mixer_that_cannot_mask_is_refused() -> None:

    class Blind(Softmax):
        maskable = False

    values = configure.plain(composed(*TINY, "protocol=strict"))["model"]
    with pytest.raises(UserError, match="Blind cannot mask padding: use model.key_mask=false"):
        Model(partial(Blind, scale="head_dim"), facts(), Architecture(**values))


def test_reading_one_end_of_a_causal_mixer_is_refused() -> None:
    """The CLS stands first, where a causal mixer sees nothing else."""

    class Forward(Softmax):
        causal = True

    def made(**changes: str) -> Model:
        values = configure.plain(composed(*TINY))["model"]
        return Model(partial(Forward, scale="head_dim"), facts(), Architecture(**{**values, **changes}))

    with pytest.raises(UserError, match="Forward as configured sees no later position.*use model.pooling=mean or"):
        made()
    assert made(pooling="last")


@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_pooling_last_reads_the_last_real_position(protocol: str) -> None:
    model = tiny(f"protocol={protocol}", "model.pooling=last")
    x, tokens = torch.randn(3, 7, 6, dtype=torch.float64), torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [0] * 7])
    last = pooled(x, model._mask(tokens) if protocol == "strict" else None, "last")
    ends = [6, 4, 0] if protocol == "strict" else [6, 6, 6]
    torch.testing.assert_close(last, torch.stack([row[end] for row, end in zip(x, ends, strict=True)]))


def test_the_largest_value_is_of_real_positions() -> None:
    x = -1 - torch.rand(2, 7, 3, dtype=torch.float64)
    mask = torch.tensor([[True] * 5 + [False] * 2, [False] * 7])
    expected = torch.stack([x[0, :5].max(dim=0).values, torch.zeros(3, dtype=torch.float64)])
    torch.testing.assert_close(pooled(x, mask, "max"), expected)
    torch.testing.assert_close(pooled(x, None, "max"), x.max(dim=1).values)


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
    """Broadcasting would add these silently."""
    sizes = ("model.dim=15", "model.heads=3", "model.depth=2", "model.mlp_dim=7")
    model = model_of("attention=softmax", *sizes, task=facts()).eval()
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


def test_a_short_convolution_is_read_by_the_mixer_and_counted() -> None:
    """In every block, also where norms come after; no later position and no padding is read."""
    plain = sum(parameter.numel() for parameter in tiny().parameters())
    for norm in ("pre", "post"):
        model = tiny("model.short_conv=3", f"model.norm={norm}", "model.key_mask=true", "attention=softmax")
        assert (
            sum(parameter.numel() for name, parameter in model.named_parameters() if "short_conv" in name) == 2 * 6 * 4
        )
        longer = torch.cat([tokens(5, width=5), torch.zeros(1, 4, dtype=torch.long)], dim=1)
        torch.testing.assert_close(model(longer), model(tokens(5, width=5)), rtol=1e-12, atol=1e-12)
    assert sum(parameter.numel() for parameter in tiny("model.short_conv=3").parameters()) == plain + 2 * 6 * 4


def test_a_causal_model_with_a_short_convolution_sees_no_later_token() -> None:
    changes = {"objective": "next_token", "causal": True, "classes": 17}
    model = tiny("model.short_conv=3", "attention=softmax", **changes)
    row = tokens(11)
    other = row.clone()
    other[0, 7] = row[0, 7] % 16 + 1
    before, after = model(row), model(other)
    assert torch.equal(before[0, :7], after[0, :7]) and not torch.equal(before[0, 7:10], after[0, 7:10])


def test_a_short_convolution_reads_no_further_than_its_mixer() -> None:
    """A mixer that reads no later positions, of a task that is not causal."""
    model = tiny("model.short_conv=3", "attention=extractor", "attention.one_sided=true", "model.pooling=last")
    x = noise(1, 11, 6).requires_grad_()
    (read,) = torch.autograd.grad(model.blocks[0](x, None)[0, 7].sum(), x)
    assert (read[0] != 0).any(dim=-1).tolist() == [True] * 8 + [False] * 3
