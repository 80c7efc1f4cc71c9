"""Against flash-linear-attention, transformers, lru-pytorch, s5-pytorch and mega-pytorch, pinned in pyproject.toml."""

from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature

import pytest
import torch
from support import mask_of, mixer_of, noise, same
from torch import Tensor

from lra.mixers import _backend
from lra.mixers._backend import Scan, function

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
every_length = pytest.mark.parametrize("length", [77, 131, 257])  # one, two and four chunks, and some positions more


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Their casts to float32 lead to float64, and what they make is of that type."""
    before = torch.get_default_dtype()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [noise(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes, start=1)]


def swapped(*inputs: Tensor) -> list[Tensor]:
    """[B, H, L, ...] and [B, L, H, ...]."""
    return [x.transpose(1, 2) for x in inputs]


@every_length
def test_gla(length: int) -> None:
    lib = pytest.importorskip("fla.ops.gla.naive")
    mixer = mixer_of("gla", causal=True)
    q, k, v, decay = inputs = drawn(*[(2, length, 15)] * 4)
    decay = torch.nn.functional.logsigmoid(decay) / 16
    actual = mixer.recurrence((q * 5**-0.5, k, v, decay), torch.ones(2, length, 1))
    expected, _ = lib.naive_recurrent_gla(*(x.unflatten(-1, (3, 5)) for x in (q, k, v, decay)))
    same(actual, expected.transpose(1, 2), inputs)


CALLED = {  # as the kernels are, by what they are made to compute: (B, L, H) in front, and a scale
    "simple_gla": ("simple_gla", "naive_recurrent_simple_gla"),
    "gla": ("gla", "naive_recurrent_gla"),
    "gated_delta_rule": ("gated_delta_rule", "naive_recurrent_gated_delta_rule"),
    "generalized_delta_rule": ("generalized_delta_rule.dplr", "dplr_recurrence"),
}


def reference(kernel: str) -> Callable[..., tuple[Tensor, None]]:
    """The naive form in place of a kernel, which must be able to take the same call."""
    real, (place, name) = function(kernel), CALLED[kernel]
    naive = getattr(import_module(f"fla.ops.{place}.naive"), name)

    def call(*, scale: float, **given: Tensor) -> tuple[Tensor, None]:
        signature(real).bind(scale=scale, **given)
        given["q"] = given["q"] * scale * given["q"].shape[-1] ** 0.5  # their own scale undone
        if kernel == "generalized_delta_rule":  # [B, H, L, .]
            order = ("q", "k", "v", "a", "b", "gk")
            return naive(*swapped(*(given[name] for name in order)))[0].transpose(1, 2), None
        if kernel == "gla":
            given["gk"] = given.pop("g")
        return naive(**given)[0], None

    return call


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        ("gla",),
        ("mamba2", "attention.state=7"),
        ("retention",),
        ("gated_deltanet",),
        ("gated_deltanet", "attention.gated=false"),
        ("gated_deltanet", "attention.negative_eigenvalues=true"),
        ("rwkv7",),
    ],
    ids=",".join,
)
def test_the_calls_of_kernels(given: tuple[str, ...], causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare whole layers, with padding, causal and bidirectional."""
    pytest.importorskip("fla.ops")
    monkeypatch.setattr(torch, "float32", torch.float64)
    mixer = mixer_of(*given, max_positions=71, causal=causal)
    with torch.no_grad():
        for seed, parameter in enumerate(mixer.parameters()):
            parameter += 0.5 * noise(*parameter.shape, seed=seed)
    x, mask = noise(2, 71, 15).requires_grad_(), mask_of([71, 29], 71)
    inputs = [x, *(weight for name, weight in mixer.named_parameters() if not name.startswith("out."))]
    expected = mixer(x, mask)
    calls = []
    monkeypatch.setattr(Scan, "on", lambda *_: "fla")
    monkeypatch.setattr(_backend, "function", lambda kernel: calls.append(kernel) or reference(kernel))
    same(mixer(x, mask), expected, inputs)
    assert calls


@every_length
def test_based(length: int) -> None:
    lib = pytest.importorskip("fla.ops.based.naive")
    mixer = mixer_of("based", "attention.width=7", causal=True, max_positions=length)
    q, k, v = inputs = drawn(*[(2, 3, length, 7)] * 2, (2, 3, length, 5))
    same(mixer.attend(q, k, v, None), lib.naive_parallel_based(q, k, v), inputs)


@every_length
def test_linear(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our mixer gets the eps of the library."""
    lib = pytest.importorskip("fla.ops.linear_attn.naive")
    monkeypatch.setattr(torch, "float32", torch.float64)
    mixer = mixer_of("linear", causal=True)
    mixer.eps = 1e-10
    q, k, v = inputs = drawn(*[(2, 3, length, 7)] * 2, (2, 3, length, 5))
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    expected, _ = lib.naive_recurrent_linear_attn(*swapped(phi_q, phi_k, v), scale=1.0, normalize=True)
    same(mixer.attend(q, k, v, None), expected.transpose(1, 2), inputs)


@every_length
def test_retention(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is without rotation, norm and gate."""
    lib = pytest.importorskip("fla.ops.retention.naive")
    monkeypatch.setattr(torch, "float", torch.float64)
    mixer = mixer_of("retention", causal=True)
    q, k, v = inputs = drawn(*[(2, 3, length, 7)] * 2, (2, 3, length, 5))
    same(mixer.retain(q * 7**-0.5, k, v), lib.naive_retention(q, k, v), inputs)


@every_length
def test_differential(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads of width 6, whose halves they keep as four heads of 3: first halves first."""
    lib = pytest.importorskip("transformers")
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

    sizes = {"hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 3}
    config = lib.DiffLlamaConfig(**sizes, attention_bias=False, attention_dropout=0.0, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    monkeypatch.setattr(torch, "float32", torch.float64)
    theirs = DiffLlamaAttention(config, layer_idx=2).double()
    shape = {"dim": 12, "qkv_dim": 12, "heads": 2, "bias": False, "out_proj": True, "causal": True, "layer": 2}
    mixer = mixer_of("differential", max_positions=length, **shape)
    order = torch.arange(12).view(2, 2, 3).transpose(0, 1).flatten()  # [half, head, column] -> [head, half, column]
    pairs = (("query", "q_proj", order), ("key", "k_proj", order), ("value", "v_proj", order))
    with torch.no_grad():
        for mine, other, columns in pairs:
            getattr(mixer, mine).weight.copy_(getattr(theirs, other).weight[columns])
        mixer.out.weight.copy_(theirs.o_proj.weight)
        mixer.by_query.copy_(torch.cat([theirs.lambda_q1, theirs.lambda_q2]))
        mixer.by_key.copy_(torch.cat([theirs.lambda_k1, theirs.lambda_k2]))
    (x,) = inputs = drawn((2, length, 12))
    still = torch.ones(1, length, 3), torch.zeros(1, length, 3)
    later = torch.full((length, length), -torch.inf).triu(1)[None, None]
    same(mixer(x), theirs(x, position_embeddings=still, attention_mask=later)[0], inputs)


@every_length
def test_lru(length: int) -> None:
    """Their D is a matrix; ours is its diagonal. Without GELU and projection."""
    lib = pytest.importorskip("LRU_pytorch.LRU")
    mixer = mixer_of("lru", "attention.state=7", causal=True)
    theirs = lib.LRU(15, 15, 7)
    with torch.no_grad():
        for mine, other in ((mixer.nu, "nu_log"), (mixer.theta, "theta_log"), (mixer.log_gamma, "gamma_log")):
            getattr(theirs, other).copy_(mine)
        theirs.B.copy_(torch.view_as_complex(mixer.b))
        theirs.C.copy_(torch.view_as_complex(mixer.c))
        theirs.D.copy_(torch.diag(mixer.skip))
    (x,) = inputs = drawn((2, length, 15))
    same(mixer.read(x) + mixer.skip * x, theirs(x), inputs)


@every_length
@pytest.mark.parametrize("causal", [True, False])
def test_s5(length: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU and projection are left out. The library does not double C for conjugate pairs."""
    lib = pytest.importorskip("s5.s5_model")
    monkeypatch.setattr(lib, "as_complex", torch.view_as_complex)
    mixer = mixer_of("s5", "attention.state=16", causal=causal)
    theirs = lib.S5(15, 8, bidir=not causal).seq
    with torch.no_grad():
        theirs.Lambda.data = torch.complex(-mixer.log_decay.exp(), mixer.frequency)
        theirs.B.data = mixer.b.clone()
        theirs.C.data = 2 * torch.view_as_complex(mixer.c)
        theirs.D.copy_(mixer.skip)
        theirs.log_step.data = mixer.log_dt.view_as(theirs.log_step).clone()
    (x,) = inputs = drawn((length, 15))
    same((mixer.read(x[None]) + mixer.skip * x)[0], theirs(x), inputs)


@every_length
@pytest.mark.parametrize("causal", [True, False])
def test_mega(length: int, causal: bool) -> None:
    """Their averages decay by (1 - alpha) delta, in common to all channels, and read alpha x. Ours do so where a and d
    are the root of what a step takes away. The distances' biases are their buckets'. They divide scores by the root
    of the model's width, and add the residual."""
    lib = pytest.importorskip("mega_pytorch.mega_pytorch")
    theirs = lib.MegaLayer(dim=15, ema_heads=3, attn_dim_qk=7, attn_dim_value=15, causal=causal).double()
    ema, attention = theirs.multi_headed_ema, theirs.single_headed_attn
    sizes = {"causal": causal, "max_positions": length}
    mixer = mixer_of("mega", "attention.averages=3", "attention.width=7", **sizes)
    ways = ("", "reverse_")[: mixer.directions]
    alpha, delta = (
        torch.stack([getattr(ema, way + name).sigmoid() for way in ways])[:, None]
        for name in ("alphas", "dampen_factors")
    )
    root = (1 - (1 - alpha) * delta).sqrt()
    with torch.no_grad():
        mixer.keep.copy_(root.logit().expand(-1, 15, -1))
        mixer.damp.copy_(mixer.keep)
        mixer.expand.copy_(ema.expansion.view(len(ways), 3, 15).mT * alpha / root)
        mixer.reduce.copy_(ema.reduction.view(len(ways), 3, 15).mT * 3**0.5)
        for mine, other in (
            (mixer.shared, attention.to_qk[0]),
            (mixer.value, attention.to_v[0]),
            (mixer.reset, theirs.to_reset_gate[0]),
            (mixer.update, theirs.to_update_gate[0]),
        ):
            mine.load_state_dict(other.state_dict())
        mixer.scales.copy_(attention.offsetscale.gamma)
        mixer.shifts.copy_(attention.offsetscale.beta)
        mixer.scales[0] *= (7 / 15) ** 0.5
        mixer.shifts[0] *= (7 / 15) ** 0.5
        mixer.by_average.weight.copy_(theirs.Wh.T)
        mixer.by_average.bias.copy_(theirs.bh)
        mixer.by_attention.weight.copy_(theirs.Uh.T)
        bias = attention.rel_pos_bias(torch.zeros(length, length))
        mixer.bias.copy_(torch.cat([bias[0].flip(0), bias[1:, 0]]))
    (x,) = inputs = drawn((2, length, 15))
    same(mixer(x) + x, theirs(x), inputs)
