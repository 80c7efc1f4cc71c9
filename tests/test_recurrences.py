"""Products and scans in chunks, and the mixers made of them, against loops over positions, written from the papers."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from support import mask_of, mixer_of, noise, same
from torch import Tensor
from torch.nn.functional import pad

from lra.mixers import Mixer
from lra.mixers.mlstm import gated_memory
from lra.mixers.s5 import hippo_n
from lra.ops import scan
from lra.ops.convolution import diagonal_scan, short_convolution, sum_of_shifted
from lra.ops.scan import CHUNK, SMALL_CHUNK, TILE, causal_product, decayed_product, delta_rule, dplr_delta_rule

LENGTHS = [1, 13, 2 * CHUNK + 3]


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [noise(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes, start=1)]


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor, corrects: bool = True) -> Tensor:
    """The outputs of a state that decays, and takes a share of each value, or of what its key does not yet find."""
    state, rows = torch.zeros(*v.shape[:2], q.shape[-1], v.shape[-1], dtype=torch.float64), []
    for i in range(q.shape[-2]):
        state = log_decay[:, :, i, None, None].exp() * state
        held = (k[:, :, i].unsqueeze(-1) * state).sum(dim=-2)
        state = state + outer(strength[:, :, i, None] * k[:, :, i], v[:, :, i] - held * corrects)
        rows.append((q[:, :, i].unsqueeze(-1) * state).sum(dim=-2))
    return torch.stack(rows, dim=2)


# ---------------------------------------------------------------- products and scans


@pytest.mark.parametrize("strength", [0.1, 30])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_product_with_a_decay_for_each_channel_is_its_loop(length: int, strength: float) -> None:
    """The decays of a chunk may multiply to far less than the smallest number of float64."""
    q, k, decay, v = inputs = drawn(*[(2, 3, length, 5)] * 3, (2, 3, length, 7))
    log_decay = -strength * decay.abs()
    state, expected = torch.zeros(2, 3, 5, 7, dtype=torch.float64), []
    for i in range(length):
        state = log_decay[:, :, i].exp().unsqueeze(-1) * state + outer(k[:, :, i], v[:, :, i])
        expected.append((q[:, :, i].unsqueeze(-1) * state).sum(dim=-2))
    same(decayed_product(q, k, v, log_decay), torch.stack(expected, dim=2), inputs)


def test_decays_beyond_the_least_number_are_finite() -> None:
    """Strong decay within a chunk in fp32, compared with float64."""
    shape = (2, 3, 2 * CHUNK + 3)
    q, k, v = (noise(*shape, 5, seed=seed) for seed in range(3))
    numbers = [-noise(*shape, seed=seed).abs() for seed in range(3, 6)]
    numbers[1] *= 30
    exact = gated_memory(q, k, v, *numbers)
    rounded = gated_memory(*(x.float() for x in (q, k, v, *numbers)))
    assert (rounded - exact).abs().max() <= 1e-4 * exact.abs().max()


@pytest.mark.parametrize("strength", [1, 20, 60])
def test_decays_that_forget_all_are_exact_in_fp32(strength: float) -> None:
    """Decays are tested that leave nothing of the state in fp32, and decays that leave some of it."""
    shape = (2, 3, 2 * SMALL_CHUNK + 3, 5)
    q, k, v, decay = (noise(*shape, seed=seed) for seed in range(4))
    log_decay = -strength * decay.abs()
    exact = decayed_product(q, k, v, log_decay)
    rounded = decayed_product(*(x.float() for x in (q, k, v, log_decay)))
    assert (rounded - exact).abs().max() <= 3e-6 * exact.abs().max()


def in_fp32_and_exactly(decays: Callable[[Tensor], Tensor], corrects: bool) -> list[tuple[Tensor, Tensor]]:
    """Outputs, and gradients by log decays, queries, keys and values: in fp32, and one by one in float64."""
    widths = [(), (5,), (5,), (7,), ()]
    g, q, k, v, strength = (noise(2, 3, 2 * CHUNK + 3, *w, seed=seed).float() for seed, w in enumerate(widths, start=1))
    k, strength = k / k.norm(dim=-1, keepdim=True), strength.sigmoid() if corrects else torch.ones_like(strength)
    inputs = [x.requires_grad_() for x in (decays(g), q, k, v)]
    copies = [x.detach().double().requires_grad_() for x in inputs]
    output = delta_rule(*inputs[1:], strength, inputs[0]) if corrects else causal_product(*inputs[1:], inputs[0])
    expected = one_by_one(*copies[1:], strength.double(), copies[0], corrects)
    weights = noise(*expected.shape, seed=9)
    mine = torch.autograd.grad((output * weights.float()).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), copies)
    return [(output, expected), *zip(mine, theirs, strict=True)]


@pytest.mark.parametrize("corrects", [False, True])
def test_gradients_by_strong_decays_are_exact(corrects: bool) -> None:
    """A position does not decay its own value: its rounding would exceed the gradients by strong decays."""
    _, (mine, theirs), *_ = in_fp32_and_exactly(lambda noise: -10 - noise.abs(), corrects)
    assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("reset", [-20, -2000])
@pytest.mark.parametrize("corrects", [False, True])
def test_weak_decays_behind_strong_ones_keep_their_digits(corrects: bool, reset: float) -> None:
    """Weak decays behind strong ones, which every fifth position has."""
    fifth = torch.arange(2 * CHUNK + 3) % 5 == 3
    for mine, theirs in in_fp32_and_exactly(lambda noise: (-1e-3 * noise.abs()).masked_fill(fifth, reset), corrects):
        assert (mine - theirs).abs().max() <= 2e-6 * theirs.abs().max()


@pytest.mark.parametrize("strength", [0.1, 30])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_dplr_delta_rule_is_its_loop(length: int, strength: float) -> None:
    """Each channel decays by itself before the state is read."""
    q, a, b, k, decay, v = inputs = drawn(*[(2, 3, length, 5)] * 5, (2, 3, length, 7))
    log_decay, a, b = -strength * decay.abs(), 0.3 * a, 0.3 * b
    state, expected = torch.zeros(2, 3, 5, 7, dtype=torch.float64), []
    for i in range(length):
        read = torch.einsum("bhmn,bhm->bhn", state, a[:, :, i])
        decayed = log_decay[:, :, i].exp().unsqueeze(-1) * state
        state = decayed + outer(b[:, :, i], read) + outer(k[:, :, i], v[:, :, i])
        expected.append(torch.einsum("bhmn,bhm->bhn", state, q[:, :, i]))
    same(dplr_delta_rule(q, a, b, v, log_decay, k), torch.stack(expected, dim=2), inputs)


@pytest.mark.parametrize("product", ["channels", "delta", "delta rule", "memory"])
def test_later_positions_change_no_bit(product: str) -> None:
    """Products that carry a state from chunk to chunk are equal to the last bit of fp32."""
    length, place = 3 * SMALL_CHUNK, SMALL_CHUNK + 7

    def output(seed: int) -> Tensor:
        q, k, v, decay, a = (noise(2, 3, length, 5, seed=each).float() for each in range(5))
        for each in (q, k, v, decay, a):
            each[..., place:, :] = noise(2, 3, length - place, 5, seed=seed).float()
        log_decay = -decay.abs()
        if product == "channels":
            return decayed_product(q, k, v, log_decay)
        if product == "delta":
            return dplr_delta_rule(q, 0.3 * a, 0.3 * k, v, log_decay, k)
        if product == "memory":
            return gated_memory(q, k, v, *(x[..., 0] for x in (-a.abs(), log_decay, log_decay)))
        return delta_rule(q, 0.3 * k, v, a[..., 0].sigmoid(), log_decay[..., 0])

    assert torch.equal(output(11)[..., :place, :], output(12)[..., :place, :])
    assert not torch.equal(output(11), output(12))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_scan_of_complex_modes(length: int, directions: int) -> None:
    u, decay, phase = inputs = drawn((2, length, 2, 5), (5,), (5,))
    rate = torch.complex(-decay.abs(), 3 * phase)

    def states(parts: tuple[Tensor, ...]) -> list[Tensor]:
        h, all_h = torch.zeros(2, 5, dtype=torch.complex128), []
        for part in parts:
            h = rate.exp() * h + torch.complex(part[:, 0], part[:, 1])
            all_h.append(torch.view_as_real(h).mT)
        return all_h

    parts = u.unbind(1)
    ways = [states(parts), states(parts[::-1])[::-1]][:directions]
    expected = torch.stack([torch.stack(way, dim=1) for way in ways], dim=2)
    same(diagonal_scan(u, rate, directions), expected, inputs)


# ---------------------------------------------------------------- mixers


def heads(x: Tensor, mixer: Mixer) -> Tensor:
    return x.unflatten(-1, (mixer.config.heads, -1))


def convolved(x: Tensor, taps: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """x [L, C], taps [C, l], and swish."""
    rows = []
    for i in range(len(x)):
        row = sum(taps[:, -1 - lag] * x[i - lag] for lag in range(min(i + 1, taps.shape[1])))
        rows.append(row + bias)
    y = torch.stack(rows)
    return y * y.sigmoid()


def gla(mixer: Mixer, x: Tensor) -> Tensor:
    q, k, v, a = (heads(part(x), mixer) for part in (mixer.query, mixer.key, mixer.value, mixer.decay))
    state, y = torch.zeros(3, 5, 5, dtype=x.dtype), []
    for i in range(len(x)):
        state = (a[i].sigmoid() ** (1 / mixer.tau)).unsqueeze(-1) * state + outer(k[i], v[i])
        y.append(torch.einsum("hmn,hm->hn", state, q[i]) / math.sqrt(5))
    return torch.stack(y)


def mamba2(mixer: Mixer, x: Tensor) -> Tensor:
    z = torch.cat([mixer.query(x), mixer.key(x), mixer.value(x)], dim=-1)
    c, b, u = convolved(z, mixer.taps, mixer.taps_bias).split([mixer.state, mixer.state, 15], dim=-1)
    dt = (1 + (mixer.steps.project(x) + mixer.steps.bias).exp()).log()
    u, a = heads(u, mixer), mixer.steps.log_a.exp()
    state, y = torch.zeros(3, mixer.state, 5, dtype=x.dtype), []
    for i in range(len(x)):
        decay = (-a * dt[i]).exp()[:, None, None]
        state = decay * state + dt[i][:, None, None] * outer(b[i].expand(3, -1), u[i])
        y.append(torch.einsum("hmn,m->hn", state, c[i]) + mixer.skip[:, None] * u[i])
    return torch.stack(y)


def gated_deltanet(mixer: Mixer, x: Tensor, most: float = 1.0) -> Tensor:
    """Compute the recurrence with the matrix a (1 - b k k^T), as the paper writes it; b is at most `most`."""
    z = torch.cat([mixer.query(x), mixer.key(x), mixer.value(x)], dim=-1)
    q, k, v = (heads(part, mixer) for part in convolved(z, mixer.taps).chunk(3, dim=-1))
    q, k = (part / part.square().sum(dim=-1, keepdim=True).sqrt() for part in (q, k))
    b, eye = most * mixer.strength(x).sigmoid(), torch.eye(5, dtype=x.dtype)
    a = torch.ones_like(b)
    if mixer.is_gated:
        a = (-mixer.steps.log_a.exp() * (1 + (mixer.steps.project(x) + mixer.steps.bias).exp()).log()).exp()
    state, y = torch.zeros(3, 5, 5, dtype=x.dtype), []
    for i in range(len(x)):
        strength = b[i][:, None, None]
        state = a[i][:, None, None] * (eye - strength * outer(k[i], k[i])) @ state + strength * outer(k[i], v[i])
        y.append(torch.einsum("hmn,hm->hn", state, q[i]) / math.sqrt(5))
    return torch.stack(y)


def mlstm(mixer: Mixer, x: Tensor) -> Tensor:
    """Compute the recurrence without a shift of the exponents."""
    q, k, v = (heads(part(x), mixer) for part in (mixer.query, mixer.key, mixer.value))
    log_in, forget = mixer.gates(x).chunk(2, dim=-1)
    write, keep = (log_in + mixer.input_bias).exp(), (forget + mixer.forget_bias).sigmoid()
    memory, normal, y = torch.zeros(3, 5, 5, dtype=x.dtype), torch.zeros(3, 5, dtype=x.dtype), []
    for i in range(len(x)):
        key = write[i][:, None] * k[i] / math.sqrt(5)
        memory = keep[i][:, None, None] * memory + outer(key, v[i])
        normal = keep[i][:, None] * normal + key
        mass = (normal * q[i]).sum(dim=-1, keepdim=True).abs().clamp(min=1)
        y.append(torch.einsum("hmn,hm->hn", memory, q[i]) / mass)
    return torch.stack(y)


def rwkv7(mixer: Mixer, x: Tensor) -> Tensor:
    """Compute the recurrence with the matrix diag(w) - k^T (a * k) of the paper on a state [values, keys]."""
    shifted = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    read, decay, key, value, rate, gate = (x + (shifted - x) * share for share in mixer.shares)
    w = (-math.exp(-0.5) * (mixer.decay_bias + mixer.decay(decay)).sigmoid()).exp()
    a, g = (mixer.rate_bias + mixer.rate(rate)).sigmoid(), mixer.reveal(gate)
    k, r, v = mixer.key(key), mixer.query(read), mixer.value(value)
    removed = heads(k * mixer.removal, mixer)
    removed = removed / removed.square().sum(dim=-1, keepdim=True).sqrt()
    k = k + k * (a - 1) * mixer.replacement
    w, k, r, v, a = (heads(part, mixer) for part in (w, k, r, v, a))
    weight, bias, bonus = (heads(part, mixer) for part in (mixer.norm_weight, mixer.norm_bias, mixer.bonus))
    state, y = torch.zeros(3, 5, 5, dtype=x.dtype), []
    for i in range(len(x)):
        state = state @ (torch.diag_embed(w[i]) - outer(removed[i], a[i] * removed[i])) + outer(v[i], k[i])
        out = torch.einsum("hnm,hm->hn", state, r[i])
        apart = out - out.mean(dim=-1, keepdim=True)
        out = apart / (apart.square().mean(dim=-1, keepdim=True) + mixer.norm_eps).sqrt() * weight + bias
        y.append(out + (r[i] * k[i] * bonus).sum(dim=-1, keepdim=True) * v[i])
    return torch.stack(y) * heads(g, mixer)


RECURRENCES: dict[tuple[str, ...], Callable[[Mixer, Tensor], Tensor]] = {
    ("gla",): gla,
    ("mamba2", "attention.state=7"): mamba2,
    ("gated_deltanet",): gated_deltanet,
    ("gated_deltanet", "attention.gated=false"): gated_deltanet,
    ("gated_deltanet", "attention.negative_eigenvalues=true"): partial(gated_deltanet, most=2.0),
    ("mlstm",): mlstm,
    ("rwkv7",): rwkv7,
}


def normed(mixer: Mixer, y: Tensor, gate: Tensor) -> Tensor:
    """y [L, H, N] and the gate's projection [L, H N], as `info` says."""

    def norm(y: Tensor) -> Tensor:
        return y / (y.square().mean(dim=-1, keepdim=True) + mixer.norm_eps).sqrt()

    formula, swish = mixer.info.formula, gate * gate.sigmoid()
    if formula.startswith("g ⊙ (norm(S r)"):  # in every pass by itself
        return y.flatten(1)
    if formula.startswith("norm(y ⊙ swish(U Wz))"):
        return norm(y.flatten(1) * swish)
    return norm(y).flatten(1) * (gate.sigmoid() if formula.startswith("σ(X Wo)") else swish)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [TILE, 1])
@pytest.mark.parametrize("given", RECURRENCES, ids=",".join)
def test_a_recurrence_is_its_loop(
    given: tuple[str, ...], tile: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two documents, the shorter with a hole, which the loop never sees; gates far from where they begin.

    All chunks at once, or one after the other.
    """
    monkeypatch.setattr(scan, "TILE", tile)
    length = CHUNK + 3
    mixer = mixer_of(*given, max_positions=length, causal=causal, out_proj=True)
    with torch.no_grad():
        for seed, parameter in enumerate(mixer.parameters()):
            parameter += 0.5 * noise(*parameter.shape, seed=seed)
    x, mask = noise(2, length, 15).requires_grad_(), mask_of([length, 9], length)
    mask[1, 4] = given[0] not in ("gla", "mlstm")  # a hole changes no state; a convolution reads it as a zero
    expected = []
    for row, real in zip(x, mask, strict=True):
        z = row[real]
        y = RECURRENCES[given](mixer, z)
        if not causal:
            y = y + RECURRENCES[given](mixer, z.flip(0)).flip(0)
        expected.append(mixer.out(normed(mixer, y, mixer.gate(z))))
    same(mixer(x, mask)[mask], torch.cat(expected), [x, *mixer.parameters()])


def lru(mixer: Mixer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = (-mixer.nu.exp() + 1j * mixer.theta.exp()).exp()
    gamma = mixer.log_gamma.exp()[:, None]
    return value, gamma * torch.view_as_complex(mixer.b), torch.view_as_complex(mixer.c)


def s5(mixer: Mixer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = -mixer.log_decay.exp() + 1j * mixer.frequency
    value = (mixer.log_dt.exp() * a).exp()
    return value, ((value - 1) / a)[:, None] * torch.view_as_complex(mixer.b), 2 * torch.view_as_complex(mixer.c)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "system", "extra"), [("lru", lru, "state=7"), ("s5", s5, "state=8")])
def test_a_state_space_is_its_loop(name: str, system: Callable, extra: str, causal: bool) -> None:
    length = CHUNK + 3
    options = [f"attention.{extra}", *(["attention.blocks=2"] if name == "s5" else [])]
    mixer = mixer_of(name, *options, max_positions=length, causal=causal, out_proj=True)
    x = noise(2, length, 15).requires_grad_()
    value, b, c = system(mixer, x)

    def states(x: Tensor) -> Tensor:
        h, all_h = torch.zeros(2, len(value), dtype=torch.complex128), []
        for i in range(length):
            h = value * h + x[:, i].to(b.dtype) @ b.T
            all_h.append(h)
        return torch.stack(all_h, dim=1)

    h = states(x) if causal else torch.cat([states(x), states(x.flip(1)).flip(1)], dim=-1)
    y = (h @ c.T).real + mixer.skip * x
    expected = mixer.out(y * (1 + torch.erf(y / math.sqrt(2))) / 2)
    same(mixer(x), expected, [x, *mixer.parameters()])


def moving_average(mixer: Mixer, x: Tensor) -> Tensor:
    """X' of Mega, of x [B, L, 15], with 3 averages a channel."""

    def one_way(x: Tensor, way: int) -> Tensor:
        a, d = mixer.keep[way].sigmoid(), mixer.damp[way].sigmoid()
        h, y = torch.zeros(len(x), 15, 3, dtype=x.dtype), []
        for i in range(x.shape[1]):
            h = a * mixer.expand[way] * x[:, i, :, None] + (1 - a * d) * h
            y.append((h * mixer.reduce[way]).sum(dim=-1) / math.sqrt(3))
        return torch.stack(y, dim=1)

    return one_way(x, 0) if mixer.causal else one_way(x, 0) + one_way(x.flip(1), 1).flip(1)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_mega_is_its_loop(causal: bool, chunk: int | None) -> None:
    length = CHUNK + 3
    options = ("attention.averages=3", "attention.width=7", f"attention.chunk={chunk or 'null'}")
    mixer = mixer_of("mega", *options, max_positions=length, causal=causal)
    with torch.no_grad():
        for seed, parameter in enumerate(mixer.parameters()):
            parameter += 0.5 * noise(*parameter.shape, seed=seed)
    x = noise(2, length, 15).requires_grad_()

    def swish(x: Tensor) -> Tensor:
        return x * x.sigmoid()

    mean = moving_average(mixer, x)
    z, v = swish(mixer.shared(mean)), swish(mixer.value(x))
    (scale_q, scale_k), (shift_q, shift_k) = mixer.scales, mixer.shifts
    place, reach = torch.arange(length), len(mixer.bias) // 2
    distance = place[:, None] - place
    scores = (scale_q * z + shift_q) @ (scale_k * z + shift_k).mT / math.sqrt(7)
    scores = scores + mixer.bias[(distance + reach).clamp(0, 2 * reach)]
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if chunk:
        seen = seen & (place[:, None] // chunk == place // chunk)
    attended = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v
    hidden = swish(mixer.by_average(mean) + mixer.by_attention(swish(mixer.reset(mean)) * attended))
    same(mixer(x), mixer.update(mean).sigmoid() * (hidden - x), [x, *mixer.parameters()])


@pytest.mark.parametrize("causal", [True, False])
def test_an_average_that_keeps_nothing_is_finite_in_fp32(causal: bool) -> None:
    """Both sigmoids round to 1 from logits of 17 on, and the average is of the token alone; fp32 beside float64."""
    length = CHUNK + 3
    mixer = mixer_of("mega", "attention.averages=3", max_positions=length, causal=causal).float()
    with torch.no_grad():
        mixer.keep[:], mixer.damp[:] = (torch.tensor(logits) for logits in ([17.0, 40, 3], [19.0, 53, -2]))
    exact = deepcopy(mixer).double()
    inputs = noise(2, length, 15).float()
    outcomes = []
    for each, average in ((mixer, mixer.average), (exact, lambda x: moving_average(exact, x))):
        x = inputs.to(each.keep.dtype).requires_grad_()
        y = average(x)
        given = [x, each.keep, each.damp, each.expand, each.reduce]
        outcomes.append([y, *torch.autograd.grad(y.square().sum(), given)])
    for actual, expected in zip(*outcomes, strict=True):
        assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_initial_states_are_those_of_the_papers() -> None:
    """|lambda|^2 of the LRU is uniform, and gamma keeps the variance of white noise; those of S5 are HiPPO-N's."""
    mixer = mixer_of("lru", "attention.state=997", "attention.r_min=0.5", "attention.r_max=0.9")
    square = (-2 * mixer.nu.exp()).exp().detach()
    assert 0.25 <= square.min() < 0.26
    assert 0.80 < square.max() <= 0.81
    assert square.mean() == pytest.approx(0.53, abs=0.02)
    torch.testing.assert_close(mixer.log_gamma.exp().square(), 1 - square, rtol=1e-5, atol=1e-6)
    n = np.arange(6)
    legs = -np.tril(np.sqrt(np.outer(2 * n + 1, 2 * n + 1)), -1) - np.diag(n + 1)
    low_rank = np.sqrt(np.arange(6) + 0.5)
    values, vectors = hippo_n(6)
    normal = legs + np.outer(low_rank, low_rank)
    np.testing.assert_allclose(normal @ vectors, vectors * values, atol=1e-12)
    assert (values.imag > 0).all()


def shifted(x: Tensor, taps: Tensor) -> Tensor:
    """Compute the short convolution as on an accelerator."""
    return sum_of_shifted(pad(x, (0, 0, taps.shape[1] - 1, 0)), taps)


@pytest.mark.parametrize("form", [short_convolution, shifted])
def test_a_short_convolution_is_its_loop(form: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, taps = drawn((2, 11, 3), (3, 4))
    y = form(x, taps)
    expected = torch.stack([convolved(row, taps) for row in x])
    same(y * y.sigmoid(), expected, [x, taps])
