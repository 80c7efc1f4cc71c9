"""Mixers against float64 references written from the formulas that they state.

Padding and causality need no reference of their own: by the checks in test_attention.py padding changes nothing, and a
causal output is that of the document that ends there.
"""

import math
import re
from collections.abc import Callable
from itertools import product

import pytest
import torch
from support import every_setting, mixer_of, noise, protocols_of, shape
from torch import Tensor
from torch.nn.functional import elu, gelu, relu, rms_norm

from lra.mixers import Mixer, merge_heads, split_heads
from lra.mixers.nystromformer import pseudo_inverse

MAX_LEN = 13
SHAPE = shape()


@every_setting
def test_the_stated_formula_is_what_is_computed(name: str, extra: list[str]) -> None:
    for protocol in protocols_of(name):
        agrees(mixer_of(name, *extra, f"protocol={protocol}"), name)


CAUSAL = {
    **dict.fromkeys(("simple", "softmax", "linear", "performer", "cosformer", "based", "rotary", "differential"), ()),
    **dict.fromkeys(("retention", "synthesizer", "gmm_rks", "gmm_prf", "fastfood_rks", "fastfood_prf"), ()),
    **dict.fromkeys(("generative_rks", "generative_prf"), ()),
    "local": ("attention.kind=sliding", "attention.window=3"),
    "longformer": ("attention.window=4",),
    "sparse": ("attention.stride=3", "attention.summary=2"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_output_is_the_last_of_the_document_up_to_it(name: str) -> None:
    causal, two_sided = (mixer_of(name, *CAUSAL[name], causal=each) for each in (True, False))
    two_sided.load_state_dict(causal.state_dict())
    x = noise(2, MAX_LEN, 15)
    for end in (1, 7):
        torch.testing.assert_close(causal(x)[:, end - 1], two_sided(x[:, :end])[:, -1])


def agrees(mixer: Mixer, name: str) -> None:
    assert all([mixer.info.paper, mixer.info.complexity, mixer.info.reference])
    formula, scale = mixer.info.formula, mixer.info.scale
    assert "{" not in formula.replace("{j: ", "")
    assert ("√(H Dh)" in formula) == (scale == 15**-0.5)
    assert ("√Dh" in formula) == (scale == 5**-0.5)
    disclosed = any("the vanilla Transformer alone" in text for text in mixer.info.deviations)
    assert disclosed == ("√(H Dh)" in formula and name != "softmax")
    [reference] = {value for start, value in REFERENCES.items() if formula.startswith(start)}
    if reference is None:
        return
    x = noise(2, 11, 15)
    torch.testing.assert_close(mixer(x), reference(mixer, x), rtol=1e-8, atol=1e-10)


def heads(mixer: Mixer, x: Tensor, *names: str) -> list[Tensor]:
    return [split_heads(getattr(mixer, name)(x), SHAPE.heads) for name in names or ("query", "key", "value")]


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if seen is None else scores.masked_fill(~seen, -math.inf)).softmax(dim=-1) @ v


def softmax(mixer: Mixer, x: Tensor) -> Tensor:
    return merge_heads(attend(*heads(mixer, x), mixer.info.scale))


def pattern(mixer: Mixer, x: Tensor) -> Tensor:
    """The set of the formula, as it stands there, of each i; BigBird's random blocks are those that were drawn."""
    stated = mixer.info.formula.split("S = ")[1]
    length = x.shape[1]
    if stated.startswith("own block"):
        block, random = map(int, re.findall(r"(?:own block of|random:) (\d+)", stated))
        assert mixer.table.shape[-1] <= random
        last = (MAX_LEN - 1) // block
        seen = torch.zeros(SHAPE.heads, length, length, dtype=torch.bool)
        for head, i, j in product(range(SHAPE.heads), range(length), range(length)):
            row, column = i // block, j // block
            drawn = column in mixer.table[head, row].tolist()
            seen[head, i, j] = abs(row - column) <= 1 or drawn or {row, column} & {0, last} != set()
    else:
        rule = stated.removeprefix("{j: ").removesuffix("}")
        rule = re.sub(r"\|(.+?)\|", r"abs(\1)", rule).replace("−", "-").replace("≤", "<=").replace("≥", ">=")
        rule = re.sub(r"⌊(\w)/(\d+)⌋", r"(\1 // \2)", rule).replace(" mod ", " % ")
        rule = re.sub(r"(?<![<>=])=(?!=)", "==", rule)
        seen = torch.tensor([[eval(rule, {"i": i, "j": j}) for j in range(length)] for i in range(length)])
    y = attend(*heads(mixer, x), mixer.info.scale, seen)
    return merge_heads(y)


def linformer(mixer: Mixer, x: Tensor) -> Tensor:
    q, k, v = heads(mixer, x)
    columns = int(re.search(r"(\d+) columns", mixer.info.formula)[1])
    e = mixer.project_keys[:, : x.shape[1]].mT
    assert e.shape[1] == columns
    return merge_heads(attend(q, e @ k, e @ v, mixer.info.scale))


def nystromformer(mixer: Mixer, x: Tensor) -> Tensor:
    """Landmark r is the mean of the tokens n with floor(n m / L) = r."""
    q, k, v = heads(mixer, x)
    length, scale = x.shape[1], mixer.info.scale
    count = min(int(re.search(r"(\d+) landmarks", mixer.info.formula)[1]), length)
    groups = [[n for n in range(length) if n * count // length == r] for r in range(count)]
    q_mean, k_mean = (torch.stack([part[:, :, group].mean(dim=2) for group in groups], dim=2) for part in (q, k))
    eye = torch.eye(count, dtype=x.dtype)
    inverse = pseudo_inverse(attend(q_mean, k_mean, eye, scale), mixer.iterations)
    y = attend(q, k_mean, inverse @ attend(q_mean, k, v, scale), scale)
    return merge_heads(y + mixer.conv(v) if "conv(V)" in mixer.info.formula else y)


def luna(mixer: Mixer, x: Tensor, memory: Tensor | None = None) -> Tensor:
    memory = mixer.norm(mixer.memory.expand(len(x), -1, -1) if memory is None else memory)
    assert f"{memory.shape[1]} rows" in mixer.info.formula
    return merge_heads(attend(*luna_heads(mixer, x, packed(mixer, x, memory)), mixer.info.scale))


def packed(mixer: Mixer, x: Tensor, memory: Tensor) -> Tensor:
    """Return P', the packed memory, from the normed memory."""
    return merge_heads(attend(*heads(mixer, memory, "pack_query"), *2 * heads(mixer, x, "pack_key"), mixer.info.scale))


def luna_heads(mixer: Mixer, x: Tensor, memory: Tensor) -> list[Tensor]:
    return [*heads(mixer, x, "query"), *2 * heads(mixer, memory, "key")]


def test_the_second_layer_of_luna_reads_the_sum_of_memories() -> None:
    """P + P', once: a memory that was kept would keep the graph of its pass alive."""
    first, second = (mixer_of("luna", "attention.memory=2", layer=layer) for layer in (0, 1))
    second.follow(first)
    x, z = noise(2, 7, 15), noise(2, 7, 15, seed=1)
    first(x)
    memory = first.norm(first.memory.expand(2, -1, -1))
    torch.testing.assert_close(second(z), luna(second, z, memory + packed(first, x, memory)))
    with pytest.raises(RuntimeError, match="layer 1 has no memory of the layer before"):
        second(z)


def test_pseudo_inverse() -> None:
    matrices = (3 * noise(5, 3, 4, 4)).softmax(dim=-1)
    torch.testing.assert_close(pseudo_inverse(matrices, 40), torch.linalg.pinv(matrices), rtol=1e-7, atol=1e-7)
    blank = torch.zeros(4, 4, dtype=torch.float64)
    blank[:2, :2] = matrices[0, 0, :2, :2].softmax(dim=-1)
    torch.testing.assert_close(pseudo_inverse(blank, 40)[:2, :2], torch.linalg.inv(blank[:2, :2]))
    assert not pseudo_inverse(blank, 40)[2:].any()


def synthesizer(mixer: Mixer, x: Tensor) -> Tensor:
    length = x.shape[1]
    synthetic, *mixture = mixer.info.formula.removeprefix("softmax(").removesuffix(") V").split(" + ")
    if synthetic == "A Bᵀ":
        scores = mixer.rows[:, :length] @ mixer.columns[:, :length].transpose(-2, -1)
    elif synthetic == "R":
        scores = mixer.table[:, :length, :length]
    else:
        scores = mixer.synthesise(heads(mixer, x, "hidden")[0].relu())[..., :length]
    if mixture:
        q, k = heads(mixer, x, "query", "key")
        scores = scores + q @ k.transpose(-2, -1) * mixer.info.scale
    return merge_heads(scores.softmax(dim=-1) @ heads(mixer, x, "value")[0])


def kernel(mixer: Mixer, x: Tensor) -> Tensor:
    """Form all weights with the feature map that the formula states."""
    q, k, v = heads(mixer, x)
    stated = mixer.info.formula.split("φ = ")[1].removesuffix(", x' = x / Dh^¼")
    weights = phi(mixer, stated, q) @ phi(mixer, stated, k).transpose(-2, -1)
    mass = weights.sum(dim=-1, keepdim=True)
    return merge_heads(weights @ v / (mass.clamp(min=mixer.eps) if "⊗ [cos" in stated else mass + mixer.eps))


def phi(mixer: Mixer, stated: str, x: Tensor) -> Tensor:
    if stated == "elu + 1":
        return elu(x) + 1
    if stated.startswith("[1, x', x' ⊗ x' / √2]"):
        x = x * x.shape[-1] ** -0.25
        return torch.cat(
            [torch.ones_like(x[..., :1]), x, (x[..., None] * x[..., None, :]).flatten(-2) / 2**0.5], dim=-1
        )
    if stated.startswith("relu(x) + "):
        return relu(x) + float(stated.removeprefix("relu(x) + "))
    if stated == "relu ⊗ [cos, sin](πi / 2M)":
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * math.pi / 2 / MAX_LEN
        return torch.cat([relu(x) * angle.cos(), relu(x) * angle.sin()], dim=-1)
    if stated.startswith("exp(W x' − ½|x'|²), x' = x / √√"):
        x = x * mixer.info.scale**0.5
        return (x @ mixer.projection.T - x.square().sum(dim=-1, keepdim=True) / 2).exp()
    x = x * 5**-0.25
    angles = x @ frequencies(mixer, stated)
    if stated.startswith("exp("):
        return (angles - x.square().sum(dim=-1, keepdim=True)).exp()
    samples, constant = re.fullmatch(r"\[\[cos, sin\]\(.*\) / √(\d+), ([\d.]+)\]", stated).groups()
    waves = torch.cat([angles.cos(), angles.sin()], dim=-1) * int(samples) ** -0.5
    return torch.cat([waves, torch.full_like(waves[..., :1], float(constant))], dim=-1)


def frequencies(mixer: Mixer, stated: str) -> Tensor:
    """Return the frequencies that the formula multiplies with x', [Dh, m]."""
    spectrum = mixer.spectrum
    fast_food = re.search(r"SHGPHB x' / √(\d+)", stated)
    if fast_food:
        s, g, b = (torch.diag(part) for part in (spectrum.s, spectrum.g, spectrum.b))
        h, p = spectrum.hadamard.to(s), torch.eye(spectrum.size, dtype=s.dtype)[spectrum.noise]
        return (s @ h @ g @ p @ h @ b * int(fast_food[1]) ** -0.5)[:, : SHAPE.head_dim].T
    if "G(noise)" in stated:
        return spectrum.layers(spectrum.noise).T
    return spectrum.frequencies()


def simple(mixer: Mixer, x: Tensor) -> Tensor:
    q, k, v = heads(mixer, x)
    divisor = mixer.info.formula.removeprefix("Q (Kᵀ V)").removeprefix(" / √")
    number = {"n, n real positions": x.shape[1], "(n Dh), n real positions": 5 * x.shape[1], "": 1}
    positions = re.fullmatch(r"L, L = (\d+) positions", divisor)
    count = int(positions[1]) if positions else number[divisor]
    assert mixer.info.scale in (None, count**-0.5)
    return merge_heads(q @ (k.transpose(-2, -1) @ v) * count**-0.5)


def rotary(mixer: Mixer, x: Tensor) -> Tensor:
    """The pairs as complex numbers, turned."""
    q, k, v = heads(mixer, x)
    base = float(re.search(r"by i / ([\d.e+]+)\^", mixer.info.formula)[1])

    def turned(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * base ** (-2 * torch.arange(2, dtype=x.dtype) / 5)
        pairs = torch.complex(x[..., :2], x[..., 2:4]) * torch.exp(1j * angles)
        return torch.cat([pairs.real, pairs.imag, x[..., 4:]], dim=-1)

    return merge_heads(attend(turned(q), turned(k), v, mixer.info.scale))


def differential(mixer: Mixer, x: Tensor) -> Tensor:
    """The first layer has lambda_0 = 0.2; its halves have 3 and 2 columns."""
    q, k, v = heads(mixer, x)
    first = attend(q[..., :3], k[..., :3], v, 3**-0.5)
    second = attend(q[..., 3:], k[..., 3:], v, 2**-0.5)
    u, w = mixer.by_query, mixer.by_key
    share = (u[:3] @ w[:3]).exp() - (u[3:] @ w[3:]).exp() + 0.2
    return merge_heads(0.8 * rms_norm(first - share * second, [5], eps=mixer.norm_eps))


def fnet(mixer: Mixer, x: Tensor) -> Tensor:
    return torch.fft.fft(torch.fft.fft(x, dim=2), dim=1).real


def token_mixing(mixer: Mixer, x: Tensor) -> Tensor:
    """Missing positions count as zeros."""
    padded = torch.cat([x, x.new_zeros(len(x), MAX_LEN - x.shape[1], x.shape[2])], dim=1)
    return mixer.out(gelu(mixer.hidden(padded.transpose(1, 2)))).transpose(1, 2)[:, : x.shape[1]]


def conv(mixer: Mixer, x: Tensor) -> Tensor:
    width, length = len(mixer.taps), x.shape[1]
    near = torch.nn.functional.conv1d(
        x.transpose(1, 2), mixer.taps.T.unsqueeze(1), mixer.shift, padding=width // 2, groups=x.shape[2]
    )
    return mixer.gate(x) * near.transpose(1, 2)[:, :length]


REFERENCES: dict[str, Callable[[Mixer, Tensor], Tensor] | None] = {
    "softmax(Q Kᵀ / √": softmax,
    "softmax(qᵢ Kₛᵀ / √": pattern,
    "softmax(Q (Eᵀ K)ᵀ / √": linformer,
    "softmax(Q K̃ᵀ / √": nystromformer,
    "P′ = softmax(P Kᵀ / √": luna,
    "softmax(Qₙ [Kₙ; Σₘ Pₙₘ Kₘ]ᵀ / √": None,  # in tests/test_sorting.py
    "softmax(Q K̂ᵀ": None,
    "softmax(A Bᵀ": synthesizer,
    "softmax(R": synthesizer,
    "softmax(W₂ relu(W₁ X)": synthesizer,
    "φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = ": kernel,
    "softmax(T(Q) T(K)ᵀ / √": rotary,
    "Q (Kᵀ V)": simple,
    "swish(X Wg) ⊙ norm((Q Kᵀ ⊙ γ^|i-j|) V / √Dh)": None,  # in tests/test_kernels.py
    "Re(FFT over L (FFT over D (X)))": fnet,
    "W₂ gelu(W₁ X), over positions": token_mixing,
    "(X Wg) ⊙ (h ∗ X + b) W, h of ": conv,
    "((x W_adj) ∘ e) W_opt": None,  # in tests/test_extractor.py, without a scale
    "e W_opt": None,
    "GELU(K ∗ x + D x) W": None,  # in tests/test_s4d.py, likewise
    # in tests/test_recurrences.py, likewise
    "swish(X Wg) ⊙ norm(y), yᵢ = ": None,
    "norm(y ⊙ swish(U Wz)), yᵢ = ": None,
    "σ(X Wo) ⊙ norm(h), hᵢ = ": None,
    "GELU(Re(C h) + D x) W": None,
    "GELU(2 Re(C h) + D x) W": None,
    "σ(X′ Wᵤ) ⊙ (H − X)": None,
    "g ⊙ (norm(S r) + (r · (ρ ⊙ k)) v)": None,
    "(X₀ ⊙ (h ∗ Z + d Z)) W": None,  # in tests/test_hyena.py, likewise
    "(1 − λ₀) norm((softmax(Q₁ K₁ᵀ": differential,
}
