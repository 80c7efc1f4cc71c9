"""Attention by feature maps: linear, Performer, cosFormer; and retention, which shares their causal products."""

import math

import pytest
import torch
from support import mixer_of, noise
from torch import Tensor

from lra.attention import Mixer
from lra.attention.performer import log_features, projection
from lra.ops.kernel_attention import exponentials, product
from lra.ops.scan import CHUNK, causal_product

causal_or_not = pytest.mark.parametrize("causal", [False, True])
AROUND_CHUNKS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 3]


def heads(length: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of 2 examples and 3 heads of width 5."""
    return tuple(noise(2, 3, length, 5, seed=seed) * spread for seed in (1, 2, 3))


def weights_of(mixer: Mixer, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """The L x L weights that a linear mechanism implies: what it makes of unit vectors."""
    return mixer.attend(q, k, torch.eye(q.shape[-2], dtype=q.dtype).expand(*q.shape[:-2], -1, -1), mask)


def normalised(weights: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The quadratic order: keys that may be attended to, divided by their sum."""
    if mask is not None:
        weights = weights * mask[:, None, None, :]
    if causal:
        weights = weights.tril()
    return weights / weights.sum(dim=-1, keepdim=True)


def holes(length: int) -> Tensor:
    """A mask of padding in front, inside and at the end, and one of padding at the end."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, 0] = mask[0, length // 2] = mask[0, -1] = mask[1, -(length // 3) :] = False
    return mask


def real(weights: Tensor, mask: Tensor, causal: bool) -> Tensor:
    """The rows of queries that have something to attend to."""
    some = mask.cumsum(dim=1) > 0 if causal else mask.any(dim=1, keepdim=True).expand_as(mask)
    return weights.transpose(1, 2)[some]


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


def relu_plus_eps(x: Tensor) -> Tensor:
    return x * (x > 0) + 1e-3


# ---------------------------------------------------------------- products


def test_the_product_is_the_quadratic_order() -> None:
    q, k, v = heads(7)
    torch.testing.assert_close(product(q, k, v), (q @ k.mT) @ v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", AROUND_CHUNKS)
def test_the_causal_product_is_the_lower_triangle(length: int) -> None:
    q, k, _ = heads(length)
    v = noise(2, 3, length, 7, seed=4)
    torch.testing.assert_close(causal_product(q, k, v), (q @ k.mT).tril() @ v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", AROUND_CHUNKS)
def test_a_decay_acts_between_a_key_and_a_query(length: int) -> None:
    """Sums of log decays over j < l <= i by loops; one decay wipes out everything before it."""
    q, k, v = heads(length)
    decay = -noise(2, 3, length, seed=5).abs()
    decay[0, 1, length // 2] = -800
    between = torch.full((2, 3, length, length), -math.inf, dtype=torch.float64)
    for i in range(length):
        since = torch.zeros(2, 3, dtype=torch.float64)
        for j in reversed(range(i + 1)):
            between[:, :, i, j] = since
            since = since + decay[:, :, j]
    expected = ((q @ k.mT) * between.exp()) @ v
    torch.testing.assert_close(causal_product(q, k, v, decay), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decays", [False, True])
def test_gradients_of_the_causal_product(decays: bool) -> None:
    length = CHUNK + 3
    decay = -noise(2, 3, length, seed=5).abs() if decays else None
    cumulated = torch.zeros(2, 3, length) if decay is None else decay.cumsum(dim=-1)
    between = (cumulated.unsqueeze(-1) - cumulated.unsqueeze(-2)).exp().tril()
    inputs = [x.requires_grad_() for x in heads(length)]
    gradients = torch.autograd.grad(causal_product(*inputs, decay).square().sum(), inputs)
    q, k, v = inputs
    expected = torch.autograd.grad((((q @ k.mT) * between) @ v).square().sum(), inputs)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decays", [False, True])
def test_the_causal_product_rounds_without_regard_to_later_positions(decays: bool) -> None:
    """Not even the last bit tells of what comes later, however large it is."""
    length, place = 2 * CHUNK, CHUNK + 7
    q, k, v = heads(length)
    decay = -noise(2, 3, length, seed=5).abs() if decays else None
    before = causal_product(q, k, v, decay)
    k[:, :, place:] *= 1e9
    after = causal_product(q, k, v, decay)
    torch.testing.assert_close(after[:, :, :place], before[:, :, :place], rtol=0, atol=0)
    assert not torch.equal(after, before)


# ---------------------------------------------------------------- maps that have a closed form


def cosine(length: int, longest: int) -> Tensor:
    places = torch.arange(length, dtype=torch.float64)
    return (math.pi / 2 * (places[:, None] - places) / longest).cos()


@causal_or_not
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [7, CHUNK + 3])
@pytest.mark.parametrize(
    ("name", "extra", "phi"),
    [
        ("linear", [], elu_plus_one),
        ("performer", ["attention.kernel=relu"], relu_plus_eps),
        ("cosformer", [], torch.relu),
    ],
)
def test_the_weights_are_the_normalised_kernel(name, extra, phi, length, masked, causal) -> None:
    mixer = mixer_of(name, *extra, max_positions=71, causal=causal)
    q, k, v = heads(length)
    q, k = q + 1, k + 1  # so that every query meets a key
    mask = holes(length) if masked else None
    kernel = phi(q) @ phi(k).mT
    if name == "cosformer":
        kernel = kernel * cosine(length, 71)
    expected = normalised(kernel, mask, causal)
    weights = weights_of(mixer, q, k, mask)
    every = torch.ones(2, length, dtype=torch.bool) if mask is None else mask
    actual, sums = real(weights, every, causal), real(weights.sum(dim=-1), every, causal)
    torch.testing.assert_close(actual, real(expected, every, causal), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)
    assert (weights >= 0).all()
    if name == "linear":
        assert ((actual > 0) == (real(expected, every, causal) > 0)).all()
    torch.testing.assert_close(mixer.attend(q, k, v, mask), weights @ v, rtol=1e-10, atol=1e-10)


@causal_or_not
def test_linear_keeps_the_digits_of_very_negative_inputs(causal: bool) -> None:
    """In fp32 as in float64, values and gradients: elu + 1 is an exponential below zero, and overflows nowhere."""
    mixer = mixer_of("linear", "attention.eps=1e-30", max_positions=37, causal=causal).float()
    q, k, v = (part.float() for part in heads(37, spread=30))
    q[0, 0, 3, 0], k[0, 1, 5, 0] = 500, 500  # exp(500) is no number of fp32
    in_float64 = [part.double().requires_grad_() for part in (q, k, v)]
    phi_q, phi_k = map(elu_plus_one, in_float64[:2])
    expected = normalised(phi_q @ phi_k.mT, None, causal) @ in_float64[2]
    expected = [expected, *torch.autograd.grad(expected.square().sum(), in_float64)]
    in_float32 = [part.requires_grad_() for part in (q, k, v)]
    actual = mixer.attend(*in_float32, None)
    actual = [actual, *torch.autograd.grad(actual.square().sum(), in_float32)]
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    torch.testing.assert_close(mixer.features(q, k, None)[0].double(), phi_q, rtol=1e-6, atol=1e-37)


def test_cosformer_does_not_divide_by_less_than_eps() -> None:
    """Queries that meet no key: 0, not a value of chance."""
    q, k, v = heads(7)
    mixer = mixer_of("cosformer")
    assert not mixer.attend(-q.abs(), k, v, None).any()
    small = mixer.attend(1e-9 * q.abs(), k.abs(), v, None)
    kernel = 1e-9 * (q.abs() @ k.abs().mT) * cosine(7, 13)
    torch.testing.assert_close(small, kernel @ v / kernel.sum(dim=-1, keepdim=True).clamp(min=1e-6))


# ---------------------------------------------------------------- Performer


def draws(count: int, features: int, width: int, orthogonal: bool = True) -> Tensor:
    """[count, features, width]"""
    blocks = -(-features // width)
    rows = noise(count, blocks, width, width, seed=7)
    return torch.stack([projection(row, features, orthogonal) for row in rows])


def kernel_of(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """phi(q) . phi(k) of FAVOR+ by its definition; q, k [..., Dh], w [M, Dh]."""
    phi_q, phi_k = ((x @ w.mT - x.square().sum(dim=-1, keepdim=True) / 2).exp() for x in (q, k))
    return (phi_q * phi_k).mean(dim=-1)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_rows_of_a_projection(orthogonal: bool) -> None:
    """Blocks of orthogonal rows, whose norms are chi(Dh) and whose directions favour no side."""
    w = draws(3000, 7, 5, orthogonal)
    products = (w @ w.mT)[:, ~torch.eye(7, dtype=torch.bool)].abs().max()
    inside = torch.zeros(7, 7, dtype=torch.bool)
    inside[:5, :5] = inside[5:, 5:] = True
    inside.fill_diagonal_(False)
    assert ((w @ w.mT)[:, inside].abs().max() < 1e-12) == orthogonal
    assert products > 1
    squares = w.square().sum(dim=-1)
    error = math.sqrt(2 * 5 / 3000)
    torch.testing.assert_close(squares.mean(dim=0), torch.full((7,), 5.0, dtype=torch.float64), rtol=0, atol=4 * error)
    torch.testing.assert_close(squares.var(dim=0), torch.full((7,), 10.0, dtype=torch.float64), rtol=0.3, atol=0)
    assert w.mean(dim=0).abs().max() < 4 / math.sqrt(3000)
    torch.testing.assert_close(w.var(dim=0), torch.ones(7, 5, dtype=torch.float64), rtol=0.15, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_favor_is_unbiased(orthogonal: bool) -> None:
    """The mean over 20,000 draws of phi(q) . phi(k) is exp(q . k scale) within 3 standard errors, at |x| = 1."""
    q, k = (torch.nn.functional.normalize(noise(5, 5, seed=seed), dim=-1) for seed in (1, 2))
    scale = 5**-0.5
    w = draws(20_000, 7, 5, orthogonal).flatten(0, 1)
    log_q, log_k = (log_features(x[None, None] * scale**0.5, w, None)[0, 0] for x in (q, k))
    estimates = (log_q + log_k).exp().unflatten(-1, (-1, 7)).mean(dim=-1)  # [pairs, draws]
    error = estimates.std(dim=1) / math.sqrt(estimates.shape[1])
    assert ((estimates.mean(dim=1) - ((q * k).sum(dim=-1) * scale).exp()).abs() < 3 * error).all()
    assert (error < 0.005).all()


def test_more_features_come_closer_to_softmax() -> None:
    """Sixteen times the features, at least half of the error gone (a quarter is expected to remain)."""
    q, k = noise(29, 16, seed=1) / 4, noise(31, 16, seed=2) / 4
    expected = (q @ k.mT).exp()
    errors = []
    for features in (64, 1024):
        estimates = torch.stack([kernel_of(q.unsqueeze(1), k, w) for w in draws(8, features, 16)])
        errors.append(((estimates - expected) / expected).square().mean().sqrt())
    assert errors[1] / errors[0] < 0.5
    assert errors[1] < 0.2


def test_performer_with_many_features_is_softmax_attention() -> None:
    q, k, v = heads(11, 0.5)
    actual = mixer_of("performer", "attention.features=20000").attend(q, k, v, None)
    expected = mixer_of("softmax").attend(q, k, v, None)
    plain = v.mean(dim=-2, keepdim=True)
    assert (actual - expected).norm() < 0.02 * expected.norm()
    assert (expected - plain).norm() > 5 * (actual - expected).norm()  # and it is not just the mean


def favor_weights(mixer: Mixer, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The definition, in logarithms: log sum_m exp(w q' + w k' - |k'|^2 / 2), then a softmax over the keys."""
    w, root = mixer.projection, mixer.scale**0.5
    log_q, log_k = q @ w.mT * root, k @ w.mT * root - k.square().sum(dim=-1, keepdim=True) * mixer.scale / 2
    logits = (log_q.unsqueeze(-2) + log_k.unsqueeze(-3)).logsumexp(dim=-1)
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None, :], -1e300)
    if causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    return logits.softmax(dim=-1)


@causal_or_not
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [0.5, 2, 8])
@pytest.mark.parametrize("length", [11, CHUNK + 3])
def test_nothing_flattens_performer(length: int, spread: float, masked: bool, causal: bool) -> None:
    """No eps is felt: the weights are those of the definition, whatever the norms."""
    mixer = mixer_of("performer", "attention.features=17", "attention.scale=head_dim", max_positions=71, causal=causal)
    q, k, _ = heads(length, spread)
    mask = holes(length) if masked else torch.ones(2, length, dtype=torch.bool)
    expected = favor_weights(mixer, q, k, mask, causal)
    actual = weights_of(mixer, q, k, mask if masked else None)
    torch.testing.assert_close(real(actual, mask, causal), real(expected, mask, causal), rtol=1e-9, atol=1e-12)
    single = weights_of(mixer.float(), q.float(), k.float(), mask if masked else None).double()
    torch.testing.assert_close(real(single, mask, causal), real(expected, mask, causal), rtol=1e-3, atol=1e-4)


def test_the_sum_of_the_weights_is_at_least_one_unless_causal() -> None:
    """In fp32, where one maximum over all features would leave nothing of most keys."""
    q, k, _ = (x.float() for x in heads(CHUNK + 3, 30))
    w = draws(1, 17, 5)[0].float()
    phi_q, phi_k = exponentials(q @ w.mT, log_features(k, w, holes(CHUNK + 3)), causal=False)
    assert (product(phi_q, phi_k, torch.ones_like(k[..., :1])) >= 1).all()
    assert max(phi_q.max(), phi_k.max()) == 1


@causal_or_not
def test_the_maxima_of_performer_carry_no_gradient_and_need_none(causal: bool) -> None:
    mixer = mixer_of("performer", "attention.features=17", max_positions=71, causal=causal)
    q, k, v = (x.requires_grad_() for x in heads(CHUNK + 3))
    mask = holes(CHUNK + 3)
    some = mask.cumsum(dim=1) > 0
    gradients = torch.autograd.grad(mixer.attend(q, k, v, mask).transpose(1, 2)[some].square().sum(), (q, k, v))
    reference = favor_weights(mixer, q, k, mask, causal) @ v
    expected = torch.autograd.grad(reference.transpose(1, 2)[some].square().sum(), (q, k, v))
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("place", [5, CHUNK + 7])
def test_causal_performer_does_not_feel_how_large_later_keys_are(place: int) -> None:
    mixer = mixer_of("performer", max_positions=2 * CHUNK, causal=True)
    q, k, v = heads(2 * CHUNK)
    k = k * 9  # small features
    before = mixer.attend(q, k, v, None)
    k[:, :, place:] = 0  # and towering ones
    after = mixer.attend(q, k, v, None)
    torch.testing.assert_close(after[:, :, :place], before[:, :, :place], rtol=0, atol=0)
    assert not torch.equal(after, before)


def test_performer_takes_the_protocols_scale() -> None:
    assert mixer_of("performer", "protocol=paper").scale == pytest.approx(15**-0.5)
    assert mixer_of("performer", "protocol=strict").scale == pytest.approx(5**-0.5)


def test_performer_draws_at_its_schedule_and_only_there() -> None:
    mixer = mixer_of("performer", "attention.redraw_every=3", "attention.features=7")
    seen = [mixer.projection.clone()]
    for step in range(9):
        mixer.redraw(11, step)
        mixer.eval()(noise(2, 7, 15))
        mixer.train()(noise(2, 7, 15))
        seen.append(mixer.projection.clone())
    changed = [not torch.equal(before, after) for before, after in zip(seen[:-1], seen[1:], strict=True)]
    assert changed == [True, False, False, True, False, False, True, False, False]


def test_a_draw_is_a_function_of_seed_step_and_layer() -> None:
    def drawn(seed: int, *steps: int, layer: int = 0) -> Tensor:
        mixer = mixer_of("performer", "attention.redraw_every=3", "attention.features=7", layer=layer)
        for step in steps:
            mixer.redraw(seed, step)
        return mixer.projection

    first = drawn(1, *range(5))
    assert torch.equal(drawn(1, 4), first)  # as a run that goes on after an interruption
    assert torch.equal(drawn(1, 9, 3), first)
    for other in (drawn(2, 4), drawn(1, 2), drawn(1, 4, layer=1)):
        assert not torch.allclose(other, first)
    mixer = mixer_of("performer")
    state = torch.get_rng_state()
    mixer.redraw(1, 0)
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------- retention


def retained(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, rotary: bool, causal: bool) -> Tensor:
    """By loops over heads, queries and keys; pairs of columns as complex numbers."""
    rows, count, length, width = q.shape
    half = width // 2
    y = torch.zeros_like(v)

    def turned(x: Tensor, place: int) -> list[complex]:
        angles = [place / 10000 ** (m / (half - 1)) if rotary else 0 for m in range(half)]
        pairs = [complex(x[m], x[m + half]) for m in range(half)]
        return [pair * complex(math.cos(a), math.sin(a)) for pair, a in zip(pairs, angles, strict=True)]

    for row in range(rows):
        for head in range(count):
            gamma = 1 - 2 ** (-5 - head)
            turned_q = [turned(q[row, head, i], i) for i in range(length)]
            turned_k = [turned(k[row, head, j], j) for j in range(length)]
            for i in range(length):
                for j in range(i + 1 if causal else length):
                    if mask is not None and not mask[row, j]:
                        continue
                    score = sum((a * b.conjugate()).real for a, b in zip(turned_q[i], turned_k[j], strict=True))
                    score += float(q[row, head, i, 2 * half :] @ k[row, head, j, 2 * half :])
                    y[row, head, i] += gamma ** abs(i - j) * score / math.sqrt(width) * v[row, head, j]
    return y / (y.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


@causal_or_not
@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_retention_by_loops(masked: bool, rotary: bool, causal: bool) -> None:
    q, k, v = heads(13)
    mask = holes(13) if masked else None
    actual = mixer_of("retention", f"attention.rotary={rotary}", causal=causal).attend(q, k, v, mask)
    torch.testing.assert_close(actual, retained(q, k, v, mask, rotary=rotary, causal=causal), rtol=1e-9, atol=1e-9)


@causal_or_not
@pytest.mark.parametrize("length", AROUND_CHUNKS)
def test_retention_in_chunks(length: int, causal: bool) -> None:
    q, k, v = heads(length)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    decay = (1 - 2.0 ** -torch.arange(5.0, 8.0, dtype=torch.float64))[:, None, None] ** distance
    scores = (q @ k.mT) * (decay.tril() if causal else decay)
    actual = mixer_of("retention", max_positions=length, causal=causal).retain(q, k, v)
    torch.testing.assert_close(actual, scores @ v, rtol=1e-11, atol=1e-11)


@causal_or_not
def test_retention_is_stable_in_fp32_at_full_length(causal: bool) -> None:
    """gamma^-4000 of the first head is e^127, which fp32 does not hold."""
    mixer = mixer_of("retention", max_positions=4001, causal=causal)
    inputs = [noise(1, 3, 4001, 5, seed=seed) for seed in range(3)]
    expected = mixer.retain(*inputs)
    actual = mixer.float().retain(*(x.float() for x in inputs))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


def test_the_turn_of_retention_knows_only_distances() -> None:
    """The same q and k at all positions: the weights are constant along the diagonals."""
    q, k = (noise(1, 3, 1, 5, seed=seed).expand(-1, -1, 11, -1) for seed in (1, 2))
    mixer = mixer_of("retention")
    weights = weights_of(mixer, q, k)
    weights = weights / weights.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # the norm is per row
    torch.testing.assert_close(weights[..., 1:, 1:], weights[..., :-1, :-1])
    assert not torch.allclose(weights, weights.mT)


def test_the_gate_of_retention() -> None:
    mixer, bare, x = mixer_of("retention"), mixer_of("retention", "attention.gate=false"), noise(2, 11, 15)
    bare.load_state_dict({key: value for key, value in mixer.state_dict().items() if not key.startswith("gate.")})
    gate = mixer.gate(x)
    torch.testing.assert_close(mixer(x), bare(x) * gate / (1 + (-gate).exp()))
    squares = bare(x).unflatten(-1, (3, 5)).square().mean(dim=-1)
    torch.testing.assert_close(squares, torch.ones_like(squares), rtol=1e-3, atol=0)
