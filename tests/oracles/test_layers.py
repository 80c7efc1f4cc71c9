"""Whole layers, from the input through all weights to the output, against rwkv (the authors') and transformers."""

import inspect
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from support import mixer_of, noise
from torch import Tensor, nn

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
every_length = pytest.mark.parametrize("length", [77, 131, 257])  # one, two and four chunks, and some positions more
SHAPE = {"causal": True, "bias": False, "out_proj": True}
Layer = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]  # ours, theirs, and which part of theirs


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Their casts to float32 lead to float64."""
    before = torch.get_default_dtype()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    for name in ("float", "float32"):
        monkeypatch.setattr(torch, name, torch.float64)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    yield
    torch.set_default_dtype(before)


def off(actual: Tensor, expected: Tensor) -> float:
    assert actual.dtype == expected.dtype == torch.double
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def same(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], x: Tensor, pairs: Sequence[Pair]
) -> None:
    """Outputs, and the gradients of a weighted sum by the input and by all weights of `pairs`, which become equal."""
    with torch.no_grad():
        for seed, other in enumerate({id(pair[1]): pair[1] for pair in pairs}.values()):
            other.add_(0.3 * noise(*other.shape, seed=seed))
        for mine, other, part in pairs:
            mine.copy_(part(other))
    actual, expected, weights = ours(x), theirs(x), noise(*x.shape, seed=9)
    gradients = torch.autograd.grad((actual * weights).sum(), [x, *(pair[0] for pair in pairs)])
    wanted = torch.autograd.grad((expected * weights).sum(), [x, *(pair[1] for pair in pairs)])
    assert off(actual, expected) <= 1e-10
    assert off(gradients[0], wanted[0]) <= 1e-10
    for (_, _, part), mine, other in zip(pairs, gradients[1:], wanted[1:], strict=True):
        assert off(mine, part(other)) <= 1e-10


def whole(x: Tensor) -> Tensor:
    return x


def rows(start: int, count: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x[start : start + count]


def of_heads(heads: int, start: int, count: int) -> Callable[[Tensor], Tensor]:
    """Rows of every head of a weight that has all of one head side by side."""
    return lambda x: x.unflatten(0, (heads, -1))[:, start : start + count].flatten(0, 1)


@every_length
def test_mamba2(length: int) -> None:
    """Their projections are one, and the channels of their convolution x, B, C; ours C, B, x."""
    lib = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    ours = mixer_of("mamba2", "attention.state=7", **SHAPE)
    sizes = {"hidden_size": 15, "num_heads": 3, "head_dim": 5, "expand": 1, "state_size": 7, "n_groups": 1}
    rest = {"conv_kernel": ours.conv, "chunk_size": 16, "use_bias": False, "layer_norm_epsilon": ours.norm_eps}
    theirs = lib.Mamba2Mixer(lib.Mamba2Config(**sizes, **rest, num_hidden_layers=1), layer_idx=0).double().eval()
    inner, taps = theirs.in_proj.weight, theirs.conv1d

    def turned(x: Tensor) -> Tensor:
        x, b, c = x.split([15, 7, 7])
        return torch.cat([c, b, x])

    with torch.no_grad():
        theirs.dt_bias.sub_(1)  # so that something of a state is left after a chunk
    pairs = [
        (ours.gate.weight, inner, rows(0, 15)),
        (ours.value.weight, inner, rows(15, 15)),
        (ours.key.weight, inner, rows(30, 7)),
        (ours.query.weight, inner, rows(37, 7)),
        (ours.steps.project.weight, inner, rows(44, 3)),
        (ours.taps, taps.weight, lambda x: turned(x).squeeze(1)),
        (ours.taps_bias, taps.bias, turned),
        (ours.steps.log_a, theirs.A_log, whole),
        (ours.steps.bias, theirs.dt_bias, whole),
        (ours.skip, theirs.D, whole),
        (ours.out.weight, theirs.out_proj.weight, whole),
    ]
    same(ours, theirs, noise(2, length, 15).requires_grad_(), pairs)


@every_length
def test_gated_deltanet(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with their chunked code; the kernels of flash-linear-attention need an accelerator. They add 1e-6 to
    the squares of the lengths of q and k, which is 0 here."""
    lib = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    monkeypatch.setattr(lib, "torch_chunk_gated_delta_rule", inspect.unwrap(lib.torch_chunk_gated_delta_rule))
    unit = lib.l2norm
    monkeypatch.setattr(lib, "l2norm", lambda x, dim, eps: unit(x, dim=dim, eps=0.0))
    ours = mixer_of("gated_deltanet", **SHAPE)
    sizes = {"linear_num_value_heads": 3, "linear_num_key_heads": 3, "linear_key_head_dim": 5}
    rest = {"linear_value_head_dim": 5, "linear_conv_kernel_dim": ours.conv, "rms_norm_eps": ours.norm_eps}
    theirs = lib.Qwen3NextGatedDeltaNet(lib.Qwen3NextConfig(hidden_size=15, **sizes, **rest), layer_idx=0).double()
    with torch.no_grad():
        theirs.dt_bias.sub_(6)  # so that something of a state is left after a chunk
    inner, strengths = theirs.in_proj_qkvz.weight, theirs.in_proj_ba.weight
    pairs = [
        *((part.weight, inner, of_heads(3, 5 * n, 5)) for n, part in enumerate((ours.query, ours.key, ours.value))),
        (ours.gate.weight, inner, of_heads(3, 15, 5)),
        (ours.strength.weight, strengths, of_heads(3, 0, 1)),
        (ours.steps.project.weight, strengths, of_heads(3, 1, 1)),
        (ours.taps, theirs.conv1d.weight, lambda x: x.squeeze(1)),
        (ours.steps.log_a, theirs.A_log, whole),
        (ours.steps.bias, theirs.dt_bias, whole),
        (ours.out.weight, theirs.out_proj.weight, whole),
    ]
    same(ours, theirs, noise(2, length, 15).requires_grad_(), pairs)


@every_length
def test_mlstm(length: int) -> None:
    """The library with a cap too high to matter, no eps in the denominator, and our norm in place of its own."""
    lib = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    ours = mixer_of("mlstm", **SHAPE)
    sizes = {"hidden_size": 15, "num_heads": 3, "qk_dim_factor": 1.0, "v_dim_factor": 1.0, "chunk_size": 16}
    rest = {"gate_soft_cap": 1e7, "eps": 0.0, "mode": "inference", "weight_mode": "fused"}
    theirs = lib.xLSTMLayer(lib.xLSTMConfig(**sizes, **rest)).double()
    theirs.multihead_norm = nn.RMSNorm(5, eps=ours.norm_eps, elementwise_affine=False)
    inner, gates = theirs.qkv_opreact.weight, theirs.ifgate_preact
    pairs = [
        *((part.weight, inner, rows(15 * n, 15)) for n, part in enumerate((ours.query, ours.key, ours.value))),
        (ours.gate.weight, inner, rows(45, 15)),
        (ours.gates.weight, gates.weight, whole),
        (ours.input_bias, gates.bias, rows(0, 3)),
        (ours.forget_bias, gates.bias, rows(3, 3)),
        (ours.out.weight, theirs.out_proj.weight, whole),
    ]
    same(ours, lambda x: theirs(x)[0], noise(2, length, 15).requires_grad_(), pairs)


@every_length
@pytest.mark.parametrize("causal", [True, False])
def test_rotary(length: int, causal: bool) -> None:
    lib = pytest.importorskip("transformers.models.llama.modeling_llama")
    ours = mixer_of("rotary", "protocol=strict", **{**SHAPE, "dim": 12, "qkv_dim": 12, "causal": causal})
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4}
    config = lib.LlamaConfig(**sizes, attention_bias=False)
    config._attn_implementation = "eager"
    theirs, turns = lib.LlamaAttention(config, layer_idx=0).double(), lib.LlamaRotaryEmbedding(config)
    names = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "o_proj"))
    pairs = [(getattr(ours, mine).weight, getattr(theirs, other).weight, whole) for mine, other in names]
    x = noise(2, length, 12).requires_grad_()
    angles = turns(x, torch.arange(length)[None])
    later = torch.full((length, length), -torch.inf).triu(1)[None, None] if causal else None
    same(ours, lambda x: theirs(x, position_embeddings=angles, attention_mask=later)[0], x, pairs)


@every_length
def test_rwkv7(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Position by position, with the weights themselves. They write exp(-1/2) as 0.606531."""
    monkeypatch.setenv("RWKV_V7_ON", "1")
    monkeypatch.setattr(torch.jit, "script", whole)
    lib = pytest.importorskip("rwkv.model")
    ours = mixer_of("rwkv7", "attention.norm_eps=64e-5", **SHAPE)
    with torch.no_grad():
        for seed, parameter in enumerate(ours.parameters()):
            parameter += 0.3 * noise(*parameter.shape, seed=seed)
    x = noise(2, length, 15).requires_grad_()
    low = [part.weight.T for net in (ours.decay, ours.rate, ours.reveal) for part in net if hasattr(part, "weight")]
    w1, w2, a1, a2, g1, g2 = low
    of_first_layer = (None, None, None)  # what mixes values with those of the first layer
    weights = (ours.decay_bias, w1, w2, ours.rate_bias, a1, a2, *of_first_layer, g1, g2)
    by_key = (ours.removal, ours.replacement, ours.bonus)
    squares = (part.weight.T for part in (ours.query, ours.key, ours.value, ours.out))
    given = (*ours.shares, *weights, *by_key, *squares, ours.norm_weight, ours.norm_bias)
    expected = []
    for row in x:
        before, state, y = torch.zeros(15), torch.zeros(3, 5, 5), []
        for token in row:
            out, before, state, _ = lib.RWKV_x070_TMix_one(0, 3, 5, token, before, None, state, *given)
            y.append(out)
        expected.append(torch.stack(y))
    actual, expected = ours(x), torch.stack(expected)
    inputs, shares = [x, *ours.parameters()], noise(2, length, 15, seed=9)
    gradients, wanted = (torch.autograd.grad((y * shares).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip((actual, *gradients), (expected, *wanted), strict=True):
        assert off(mine, theirs) <= 3e-6
