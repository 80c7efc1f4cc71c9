"""First weights that attentions draw themselves, beside the formulas of their authors' code.

facebookresearch/mega aeaa4b4, lindermanlab/S5 3c18fdb, NX-AI/xlstm 032a6fb, BlinkDL/RWKV-LM 524481d.
"""

import math

import pytest
import torch
from support import facts, maker, model_of, shape
from torch import Tensor, nn

from lra.attention import Mixer
from lra.attention.s5 import hippo_n
from lra.ops.first_weights import draw_truncated

RELEASED = {"mega": "released", "mlstm": "released", "rwkv7": "released", "s5": "lecun_normal"}


def first(name: str, *overrides: str, **changes: object) -> Mixer:
    torch.manual_seed(1)
    return maker(name, *overrides)(shape(**changes))


def released(name: str, *overrides: str, **changes: object) -> Mixer:
    return first(name, f"attention.init={RELEASED[name]}", *overrides, **changes)


def is_normal(weights: Tensor, deviation: float, mean: float = 0.0) -> None:
    """To five standard errors of the mean and of the deviation, and with as many beyond two deviations."""
    count = weights.numel()
    assert count > 300
    assert weights.mean().item() == pytest.approx(mean, abs=5 * deviation / math.sqrt(count))
    assert weights.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * count))
    beyond = ((weights - mean).abs() > 2 * deviation).double().mean()
    assert beyond == pytest.approx(math.erfc(2**0.5), abs=5 * math.sqrt(0.0455 / count))


def biases(mixer: nn.Module) -> list[Tensor]:
    return [part.bias for part in mixer.modules() if isinstance(part, nn.Linear) and part.bias is not None]


@pytest.mark.parametrize("causal", [True, False])
def test_mega(causal: bool) -> None:
    """MultiHeadEMA and MovingAverageGatedAttention: beta +-1 + N(0, .02^2), gamma and projections N(0, .02^2)."""
    mixer = released("mega", "attention.averages=7", "attention.width=193", dim=127, causal=causal)
    sign = torch.tensor([1.0, -1, 1, -1, 1, -1, 1])
    assert mixer.expand.shape == (1 if causal else 2, 127, 7)
    is_normal((mixer.expand * sign).flatten(), 0.02, mean=1)
    is_normal(mixer.scales, 0.02)
    for layer in (mixer.shared, mixer.value, mixer.reset, mixer.update, mixer.by_average, mixer.by_attention):
        is_normal(layer.weight, 0.02)
    assert len(biases(mixer)) == 5
    assert not any(bias.any() for bias in biases(mixer))
    assert not mixer.shifts.any()
    is_normal(mixer.keep.flatten(), 0.2)
    is_normal(mixer.reduce.flatten(), 1)


def test_mlstm() -> None:
    """small_init_init_, wang_init_ and the cell's reset_parameters."""
    mixer = released("mlstm", dim=129, qkv_dim=129, layers=7)
    for layer in (mixer.query, mixer.key, mixer.value, mixer.gate):
        is_normal(layer.weight, math.sqrt(2 / (5 * 129)))
    is_normal(mixer.out.weight, 2 / 7 / math.sqrt(129))
    assert not mixer.gates.weight.any()
    assert not any(bias.any() for bias in biases(mixer))
    assert mixer.forget_bias.tolist() == [3, 4.5, 6]
    assert isinstance(released("mlstm", out_proj=False).out, nn.Identity)


@pytest.mark.parametrize(("layer", "layers"), [(0, 1), (0, 5), (3, 5), (4, 5)])
def test_rwkv7(layer: int, layers: int) -> None:
    """RWKV_Tmix_x070 and generate_init_weight, channel by channel."""
    dim, heads, width = 21, 3, 33
    mixer = released("rwkv7", dim=dim, heads=heads, qkv_dim=width, layer=layer, layers=layers)
    depth, rest = (layer / (layers - 1) if layers > 1 else 0), 1 - layer / layers
    for row, exponent in zip(mixer.shares, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):  # r, w, k, v, a, g
        expected = [1 - (n / dim) ** (exponent * rest) for n in range(dim)]
        torch.testing.assert_close(row, torch.tensor(expected))
    size = width // heads
    for n in range(width):
        zigzag = (n % size - (size - 1) / 2) / ((size - 1) / 2)
        zigzag, linear = zigzag * abs(zigzag), n / (width - 1) - 0.5
        decay = -6 + 6 * (n / (width - 1)) ** (1 + depth**0.3)
        assert mixer.decay_bias[n].item() == pytest.approx(decay + 0.5 + 2.5 * zigzag, abs=1e-5)
        assert mixer.rate_bias[n].item() == pytest.approx(-0.19 + 0.3 * zigzag + 0.4 * linear, abs=1e-5)
        assert mixer.removal[n].item() == pytest.approx(0.71 - 0.1 * linear, abs=1e-6)
    for part, value in ((mixer.replacement, 1.02), (mixer.bonus, -0.04), (mixer.norm_bias, 0)):
        assert torch.equal(part, torch.full((width,), value))
    torch.testing.assert_close(mixer.norm_weight, torch.full((width,), ((layer + 1) / layers) ** 0.7))
    for projection, gain in ((mixer.query, 1), (mixer.value, 1), (mixer.key, 0.1)):
        gram = projection.weight.T @ projection.weight / gain**2
        torch.testing.assert_close(gram, torch.eye(dim), rtol=0, atol=1e-5)
    for net, rank in ((mixer.decay, 32), (mixer.rate, 32), (mixer.reveal, 64)):
        assert not net[0].weight.any()
        gain = 0.1 * math.sqrt(max(1, rank / width))
        columns = net[-1].weight.T if rank <= width else net[-1].weight
        torch.testing.assert_close(columns @ columns.T / gain**2, torch.eye(min(rank, width)), rtol=0, atol=1e-5)
    assert not mixer.out.weight.any()
    assert not any(bias.any() for bias in biases(mixer))


@pytest.mark.parametrize(
    ("init", "deviation"),
    [("trunc_standard_normal", 22**-0.5), ("lecun_normal", (22 * 127) ** -0.5), ("complex_normal", 0.5**0.5)],
)
@pytest.mark.parametrize("causal", [True, False])
def test_s5(init: str, deviation: float, causal: bool) -> None:
    """init_VinvB, init_CV and the three C_init, of 127 channels and a state of 22 in one block."""
    options = ("attention.state=22", "attention.blocks=1", f"attention.init={init}")
    mixer = first("s5", *options, dim=127, causal=causal)
    _, vectors = hippo_n(22)
    vectors = torch.tensor(vectors, dtype=torch.complex64)
    b, c = torch.view_as_complex(mixer.b.detach()), torch.view_as_complex(mixer.c.detach())
    assert (b.shape, c.shape) == ((11, 127), (127, 11 if causal else 22))
    real = 2 * (vectors @ b).real  # the columns and their conjugates are a unitary matrix
    assert real.std().item() == pytest.approx(22**-0.5, rel=0.1)
    assert real.abs().max() <= 2 / 0.8796 * 22**-0.5 + 1e-6
    for part in (c.real, c.imag):  # columns of V have length 1, so C V has the deviation of C
        assert part.std().item() == pytest.approx(deviation, rel=0.1)
    assert (c.real * c.imag).mean().abs() <= 5 * deviation**2 / math.sqrt(c.numel())


def test_a_truncated_normal_has_the_deviation_asked_for() -> None:
    torch.manual_seed(1)
    weights = draw_truncated(torch.empty(199, 211), 0.3)
    assert weights.std().item() == pytest.approx(0.3, rel=0.01)
    assert 0.99 < weights.abs().max() / (2 * 0.3 / 0.87962566) <= 1


@pytest.mark.parametrize("name", ["mega", "mlstm", "rwkv7"])
def test_the_model_leaves_them_alone(name: str) -> None:
    """Also under protocol=lra, which draws all other linear layers by Xavier's formula; every layer knows its place."""
    chosen = ("protocol=lra", f"attention={name}", f"attention.init={RELEASED[name]}", "model.depth=3")
    torch.manual_seed(1)
    model = model_of(*chosen, task=facts())
    for layer, block in enumerate(model.blocks):
        mixer, shape = block.mixer, block.mixer.shape
        assert (shape.layer, shape.layers) == (layer, 3)
        assert not any(bias.any() for bias in biases(mixer))
        if name == "mega":
            is_normal(mixer.value.weight, 0.02)
        elif name == "mlstm":
            is_normal(mixer.out.weight, 2 / 3 / math.sqrt(shape.dim))
        else:
            assert not mixer.out.weight.any()
        inner = block.feed_forward[0].weight
        assert inner.abs().max().item() == pytest.approx(math.sqrt(6 / sum(inner.shape)), rel=0.01)
