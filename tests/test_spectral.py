"""The learned kernels of Chowdhury et al. 2022: GMM, FastFood and Generative, by RKS and by PRF."""

import math

import numpy as np
import pytest
import torch
from support import mixer_of, noise
from torch import Tensor

from lra.ops.random_features import FastFood, Generator, Spectral, hadamard, log_prf, rks, scaled
from lra.ops.scan import CHUNK

RKS, PRF = ["gmm_rks", "fastfood_rks", "generative_rks"], ["gmm_prf", "fastfood_prf", "generative_prf"]
DRAWS = 500


def set_parameters(mixer: Spectral, **values: Tensor) -> None:
    with torch.no_grad():
        for name, value in values.items():
            getattr(mixer.spectrum, name).copy_(value)


def unscaled(x: Tensor) -> Tensor:
    """What the mixer scales to x."""
    return x * x.shape[-1] ** 0.25


def agrees(kernels: list[Tensor], expected: Tensor) -> None:
    """The mean over the draws is the expected one, within 3 standard errors; and those are small."""
    drawn = torch.stack(kernels)
    error = drawn.std(dim=0) / math.sqrt(len(drawn))
    assert (error < 0.05 * expected.abs().clamp(min=0.5)).all()
    assert ((drawn.mean(dim=0) - expected).abs() < 3 * error).all()


def weights(mixer: Spectral, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """The normalised L x L weights of a PRF, by logarithms in float64; `seen` [B, 1, L, L]."""
    omega = mixer.spectrum.frequencies().double()
    log_q, log_k = (log_prf(scaled(x.double()), omega) for x in (q, k))
    scores = (log_q.unsqueeze(-2) + log_k.unsqueeze(-3)).logsumexp(dim=-1)
    return scores.masked_fill(~seen, -math.inf).softmax(dim=-1)


# ---------------------------------------------------------------- kernels in closed form


def test_rks_features_by_hand_and_their_gradient() -> None:
    """One angle of pi / 6, m = 4 in the factor 1 / 2; and the gradient by differences."""
    x, omega = torch.tensor([[math.pi / 6]]).double(), torch.ones(1, 1).double()
    assert torch.allclose(rks(x, omega, 4, 0.6), torch.tensor([[3**0.5 / 4, 0.25, 0.6]]).double())
    x, omega = noise(2, 3, 5, seed=1).requires_grad_(), noise(5, 7, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, omega: rks(x, omega, 11, 0.6), (x, omega))


def test_gmm_rks_kernel() -> None:
    """2 exp(-|Sigma d|^2 / 2) cos(mu . d) + s^2, by the released code's normalisation."""
    mixer = mixer_of("gmm_rks", "attention.samples=7", "attention.smoothing=0.6")
    sigma, mu = 0.5 * noise(3, 5, 5, seed=1), noise(3, 5, seed=2)
    set_parameters(mixer, sigma=sigma, mu=mu)
    x, y = 0.5 * noise(2, 3, 1, 5, seed=3)
    kernels = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        phi_x, phi_y = mixer.features(unscaled(x)[None], unscaled(y)[None], None)
        kernels.append((phi_x * phi_y).sum(dim=-1).flatten())
    expected = []
    for head in range(3):
        d = (x - y)[head, 0]
        stretched = (sigma[head] @ d).square().sum()
        expected.append(2 * math.exp(-stretched / 2) * math.cos(mu[head] @ d) + 0.36)
    agrees(kernels, torch.tensor(expected))


def test_gmm_rks_is_the_gaussian_kernel_for_the_standard_normal() -> None:
    mixer = mixer_of("gmm_rks", "attention.samples=7", "attention.smoothing=0")
    set_parameters(mixer, sigma=torch.eye(5).expand(3, 5, 5), mu=torch.zeros(3, 5))
    x, y = 0.5 * noise(2, 11, 5)
    kernels = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        omega = mixer.spectrum.frequencies()[0]
        kernels.append((rks(x, omega, 7, 0) * rks(y, omega, 7, 0)).sum(dim=-1) / 2)
    agrees(kernels, (-(x - y).square().sum(dim=-1) / 2).exp())


def test_gmm_prf_kernel() -> None:
    """exp(mu . t + |exp(sigma / 2) t|^2 / 2 - |x|^2 - |y|^2), t = x + y."""
    mixer = mixer_of("gmm_prf", "attention.samples=31")
    sigma, mu = 0.3 * noise(3, 5, seed=1), 0.3 * noise(3, 5, seed=2)
    set_parameters(mixer, sigma=sigma, mu=mu)
    x, y = 0.3 * noise(2, 3, 7, 5, seed=3)
    kernels = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        omega = mixer.spectrum.frequencies()
        kernels.append((log_prf(x, omega).exp() * log_prf(y, omega).exp()).sum(dim=-1))
    t = x + y
    spread = (sigma.exp()[:, None] * t.square()).sum(dim=-1) / 2
    agrees(kernels, (t @ mu[:, :, None]).squeeze(-1).add(spread).exp() * gaussian_tails(x, y))


def gaussian_tails(x: Tensor, y: Tensor) -> Tensor:
    return (-x.square().sum(dim=-1) - y.square().sum(dim=-1)).exp()


def test_gmm_prf_is_the_gaussian_kernel_for_the_standard_normal() -> None:
    mixer = mixer_of("gmm_prf", "attention.samples=31")
    set_parameters(mixer, sigma=torch.zeros(3, 5), mu=torch.zeros(3, 5))
    x, y = 0.4 * noise(2, 11, 5)
    kernels = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        omega = mixer.spectrum.frequencies()[2]
        kernels.append((log_prf(x, omega).exp() * log_prf(y, omega).exp()).sum(dim=-1))
    agrees(kernels, (-(x - y).square().sum(dim=-1) / 2).exp())


@pytest.mark.parametrize("kind", ["rks", "prf"])
@pytest.mark.parametrize("width", [5, 8])
def test_classic_fastfood_is_the_gaussian_kernel(kind: str, width: int) -> None:
    """Over draws of S, G, B and P: also for a width that is no power of two."""
    x, y = 0.25 * noise(2, 11, width)
    kernels = []
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for step in range(DRAWS):
            fastfood = FastFood(width, "classic").double()
            fastfood.draw(np.random.default_rng(step))
            omega = fastfood.frequencies().detach()
            if kind == "rks":
                kernels.append((rks(x, omega, 8, 0) * rks(y, omega, 8, 0)).sum(dim=-1))
            else:
                kernels.append((log_prf(x, omega).exp() * log_prf(y, omega).exp()).sum(dim=-1))
    agrees(kernels, (-(x - y).square().sum(dim=-1) / 2).exp())


def test_released_fastfood_starts_with_a_constant_kernel() -> None:
    x = scaled(noise(101, 64))
    angles = {init: x @ FastFood(64, init).double().frequencies().detach() for init in ("released", "classic")}
    assert angles["released"].std() < 0.01
    assert 2 < angles["classic"].std() < 4


@pytest.mark.parametrize("name", RKS)
def test_rks_kernels_are_bounded_even_and_invariant_to_shifts(name: str) -> None:
    """|k| <= s^2 + 1, twice that for GMM, which counts both signs of mu."""
    mixer, s, bound = mixer_of(name, "attention.smoothing=0.7"), 0.49, 2 if name == "gmm_rks" else 1
    if name == "gmm_rks":
        set_parameters(mixer, sigma=noise(3, 5, 5, seed=1), mu=noise(3, 5, seed=2))
    x, y, shift = 2 * noise(3, 2, 3, 7, 5, seed=3)

    def kernel(q: Tensor, k: Tensor) -> Tensor:
        phi_q, phi_k = mixer.features(q, k, None)
        return phi_q @ phi_k.transpose(-2, -1)

    values = kernel(x, y)
    assert ((values - s).abs() <= bound + 1e-12).all()
    torch.testing.assert_close(kernel(x, x).diagonal(dim1=-2, dim2=-1), torch.full((2, 3, 7), bound + s).double())
    constant = shift[..., :1, :]
    torch.testing.assert_close(kernel(x + constant, y + constant), values)
    torch.testing.assert_close(kernel(-x, -y), values)
    assert not torch.allclose(kernel(x, y + constant), values)


def test_gmm_rks_is_even_in_mu() -> None:
    mixer, q, k = mixer_of("gmm_rks"), noise(1, 3, 7, 5, seed=1), noise(1, 3, 7, 5, seed=2)
    mu = noise(3, 5, seed=3)
    kernels = []
    for value in (mu, -mu, 2 * mu):
        set_parameters(mixer, mu=value)
        phi_q, phi_k = mixer.features(q, k, None)
        kernels.append(phi_q @ phi_k.transpose(-2, -1))
    torch.testing.assert_close(kernels[0], kernels[1])
    assert not torch.allclose(kernels[0], kernels[2])


# ---------------------------------------------------------------- the attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", RKS)
def test_rks_is_the_dense_weights(name: str, causal: bool) -> None:
    mixer, mask = mixer_of(name, causal=causal), torch.arange(13) < torch.tensor([[13], [7]])
    q, k, v = noise(3, 2, 3, 13, 5)
    kernel = torch.zeros(2, 3, 13, 13, dtype=torch.float64)
    omega = mixer.spectrum.frequencies().detach().expand(3, 5, -1)
    for head in range(3):
        for column in omega[head].T:  # cos(a) cos(b) + sin(a) sin(b) = cos(a - b)
            angles = (scaled(q[:, head]) @ column)[:, :, None] - (scaled(k[:, head]) @ column)[:, None, :]
            kernel[:, head] += angles.cos() / mixer.spectrum.samples
    kernel = (kernel + mixer.smoothing**2) * mask[:, None, None, :]
    if causal:
        kernel = kernel.tril()
    expected = kernel @ v / (kernel.sum(dim=-1, keepdim=True) + mixer.eps)
    torch.testing.assert_close(mixer.attend(q, k, v, mask), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PRF)
def test_prf_is_the_dense_weights(name: str, causal: bool) -> None:
    mixer, mask = mixer_of(name, causal=causal), torch.arange(13) < torch.tensor([[13], [7]])
    q, k, v = noise(3, 2, 3, 13, 5)
    seen = mask[:, None, None, :].expand(2, 1, 13, 13)
    dense = weights(mixer, q, k, seen.tril() if causal else seen)
    torch.testing.assert_close(dense.sum(dim=-1), torch.ones(2, 3, 13).double())
    torch.testing.assert_close(mixer.attend(q, k, v, mask), dense @ v)


def gmm_kernel(mixer: Spectral, q: Tensor, k: Tensor, head: int) -> Tensor:
    """k(q', k') of one head [B, L, L] by the docstrings of the two files, frequency by frequency."""
    sigma, mu, drawn = mixer.spectrum.sigma[head], mixer.spectrum.mu[head], mixer.spectrum.noise
    x, y = (part[:, head] / 5**0.25 for part in (q, k))
    kernel = 0.0
    for w in drawn.T:
        if sigma.dim() == 1:
            omega = torch.stack([(sigma[i] / 2).exp() * w[i] + mu[i] for i in range(5)])
            exponents = [(part @ omega - (part * part).sum(dim=-1)) for part in (x, y)]
            kernel = kernel + (exponents[0][:, :, None] + exponents[1][:, None, :]).exp()
        else:
            centred = sum(w[i] * sigma[i] for i in range(5))
            for omega in (centred + mu, centred - mu):
                kernel = kernel + ((x @ omega)[:, :, None] - (y @ omega)[:, None, :]).cos()
    return kernel / drawn.shape[1] + (0.0 if sigma.dim() == 1 else mixer.smoothing**2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [13, CHUNK + 3])
@pytest.mark.parametrize("name", ["gmm_rks", "gmm_prf"])
def test_gmm_is_its_frequencies_one_by_one(name: str, length: int, causal: bool) -> None:
    """Values, and gradients of sigma and mu, too."""
    mixer = mixer_of(name, "attention.samples=3", causal=causal)
    if name == "gmm_rks":
        mixer.smoothing = 2.0  # more than the kernel can fall below zero
    set_parameters(mixer, sigma=0.5 * noise(*mixer.spectrum.sigma.shape, seed=1), mu=noise(3, 5, seed=2))
    q, k, v = (noise(2, 3, length, 5, seed=seed).requires_grad_() for seed in (3, 4, 5))
    mask = torch.arange(length) < torch.tensor([[length], [7]])
    rows = []
    for head in range(3):
        kernel = gmm_kernel(mixer, q, k, head) * mask[:, None, :]
        kernel = kernel.tril() if causal else kernel
        rows.append(kernel @ v[:, head] / (kernel.sum(dim=-1, keepdim=True) + mixer.eps))
    inputs, weights = [q, k, v, mixer.spectrum.sigma, mixer.spectrum.mu], noise(2, 3, length, 5, seed=6)
    actual, expected = mixer.attend(q, k, v, mask), torch.stack(rows, dim=1)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    slopes = torch.autograd.grad((expected * weights).sum(), inputs)
    for slope, expected_slope in zip(torch.autograd.grad((actual * weights).sum(), inputs), slopes, strict=True):
        assert (slope - expected_slope).abs().max() <= 1e-9 * expected_slope.abs().max()


@pytest.mark.parametrize("name", PRF)
def test_prf_keeps_its_weights_where_features_underflow(name: str) -> None:
    """In fp32, and at norms where no feature is above the smallest number."""
    mixer = mixer_of(name, dim=192, qkv_dim=192, max_positions=31).float()
    q, k = 6 * noise(2, 1, 3, 31, 64).float()
    v = noise(1, 3, 31, 64, seed=1).float()
    omega = mixer.spectrum.frequencies()
    assert not log_prf(scaled(k), omega).exp().any()
    expected = weights(mixer, q, k, torch.ones(31, 31, dtype=torch.bool)) @ v.double()
    torch.testing.assert_close(mixer.attend(q, k, v, None).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", PRF)
def test_causal_prf_does_not_tell_of_a_key_that_towers_later(name: str) -> None:
    mixer = mixer_of(name, causal=True).float()
    q, k, v = 3 * noise(3, 1, 3, 13, 5).float()
    k[..., 7:, :] = 0  # |k'|^2 is 0 there, and far above it before
    torch.testing.assert_close(
        mixer.attend(q, k, v, None)[..., :7, :], mixer.attend(*(x[..., :7, :] for x in (q, k, v)), None)
    )


@pytest.mark.parametrize("name", RKS)
@pytest.mark.parametrize("spread", [1, 10])
def test_rks_is_finite_where_a_sum_of_weights_may_be_negative(name: str, spread: int) -> None:
    """Without the constant there is nothing that keeps the sums positive."""
    mixer = mixer_of(name, "attention.smoothing=0", max_positions=101).float()
    q, k, v = (spread * noise(3, 2, 3, 101, 5).float()).requires_grad_()
    y = mixer.attend(q, k, v, None)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.spectrum.parameters())


@pytest.mark.parametrize("name", ["fastfood_rks", "generative_rks"])
def test_the_constant_makes_the_weights_positive(name: str) -> None:
    """s = 1 and |k| <= 1."""
    phi_q, phi_k = mixer_of(name).features(*(5 * noise(2, 2, 3, 101, 5)), None)
    assert (phi_q @ phi_k.transpose(-2, -1) > -1e-12).all()


# ---------------------------------------------------------------- FastFood


def test_hadamard() -> None:
    h = hadamard(16)
    for i in range(16):
        for j in range(16):
            assert h[i, j] == (-1) ** (i & j).bit_count()
    torch.testing.assert_close(h @ h.T, 16 * torch.eye(16))


@pytest.mark.parametrize("width", [1, 5, 8, 13])
@pytest.mark.parametrize("init", ["classic", "released"])
def test_fastfood_is_the_product_of_its_matrices(width: int, init: str) -> None:
    fastfood = FastFood(width, init).double()
    fastfood.draw(np.random.default_rng(1))
    size, x = fastfood.size, noise(7, width)
    assert width <= size < 2 * width
    permute = torch.zeros(size, size, dtype=torch.float64)
    for row, column in enumerate(fastfood.noise.tolist()):
        permute[row, column] = 1
    assert torch.equal(permute.sum(dim=0), torch.ones(size).double())
    s, g, b = (torch.diag(values.detach()) for values in (fastfood.s, fastfood.g, fastfood.b))
    h = hadamard(size).double()
    v = s @ h @ g @ permute @ h @ b / math.sqrt(size)
    padded = torch.cat([x, torch.zeros(7, size - width).double()], dim=1)
    torch.testing.assert_close(x @ fastfood.frequencies(), padded @ v.T)


def test_the_rows_of_a_classic_fastfood_have_the_lengths_of_gaussian_ones() -> None:
    """|v_i| = S_ii |G|, which is drawn as the length of a Gaussian vector of 64 values."""
    fastfood = FastFood(64, "classic").double()
    rows = fastfood.frequencies().norm(dim=0)
    torch.testing.assert_close(rows, fastfood.s * fastfood.g.norm())
    assert abs(rows.mean() - 8) < 0.5


# ---------------------------------------------------------------- Generative


@pytest.mark.parametrize(
    "name", ["generative_rks", "generative_prf", "gmm_rks", "gmm_prf", "fastfood_rks", "fastfood_prf"]
)
def test_a_layer_may_be_called_twice_before_its_backward_pass(name: str) -> None:
    """Every call has frequencies of its own, and gradients are those of both."""
    mixer, x = mixer_of(name).train(), noise(2, 7, 15)
    total, grads = 0.0, []
    for draw in (1, 2):
        mixer.draw(np.random.default_rng(draw))
        total = total + mixer(x).square().sum()
    total.backward()
    together = [parameter.grad.clone() for parameter in mixer.parameters()]
    mixer.zero_grad()
    for draw in (1, 2):
        mixer.draw(np.random.default_rng(draw))
        mixer(x).square().sum().backward()
        grads = [parameter.grad for parameter in mixer.parameters()]
    for actual, expected in zip(together, grads, strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_generator_layer_by_layer() -> None:
    generator = Generator(5, samples=17, noise_width=0.6, hidden_widths=[2.0, 4.0]).double()
    assert generator.widths == [3, 10, 20, 5]
    for parameter in generator.parameters():
        torch.nn.init.normal_(parameter)
    values = {name: value.detach() for name, value in generator.named_parameters()}
    x = generator.noise
    for layer in (0, 1):
        x = x @ values[f"layers.{layer}.linear.weight"].T + values[f"layers.{layer}.linear.bias"]
        x = (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + 1e-5).sqrt()
        x = x * values[f"layers.{layer}.norm.weight"] + values[f"layers.{layer}.norm.bias"]
        x = torch.where(x > 0, x, 0.01 * x)
    expected = (x @ values["layers.2.weight"].T + values["layers.2.bias"]).tanh().T
    torch.testing.assert_close(generator.frequencies(), expected)


@pytest.mark.parametrize("name", ["generative_rks", "generative_prf"])
def test_generated_frequencies_are_bounded_learned_and_the_same_in_evaluation(name: str) -> None:
    mixer, x = mixer_of(name), noise(2, 7, 15)
    mixer.redraw(1, 0)
    assert (mixer.spectrum.frequencies().abs() < 1).all()
    assert mixer.spectrum.frequencies().std() > 0.1
    torch.testing.assert_close(mixer.train()(x), mixer.eval()(x), rtol=0, atol=0)
    mixer(x).square().sum().backward()
    learned = [parameter for key, parameter in mixer.spectrum.named_parameters() if key.endswith("weight")]
    assert learned
    assert all(parameter.grad.any() for parameter in learned)


# ---------------------------------------------------------------- draws and settings


@pytest.mark.parametrize("name", RKS + PRF)
def test_redraws(name: str) -> None:
    """A function of (seed, step // redraw_every, layer), in a buffer that is kept with the weights."""

    def drawn(seed: int, step: int, layer: int = 0) -> Tensor:
        mixer = mixer_of(name, "attention.redraw_every=3", layer=layer)
        mixer.redraw(seed, step)
        return mixer.state_dict()["spectrum.noise"]

    first = drawn(1, 0)
    assert torch.equal(drawn(1, 2), first)
    for other in (drawn(1, 3), drawn(2, 0), drawn(1, 0, layer=1)):
        assert other.shape == first.shape
        assert not torch.equal(other, first)
