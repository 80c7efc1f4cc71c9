"""The learned kernels of Chowdhury et al. 2022: GMM, FastFood and Generative, by RKS and by PRF."""

import math

import numpy as np
import pytest
import torch
from support import mixer_of, noise, same
from torch import Tensor

from lra.mixers.spectral import Generator, Spectral, log_prf, rks, scaled
from lra.ops.scan import CHUNK

PRF = ["gmm_prf", "fastfood_prf", "generative_prf"]
DRAWS = 500


def set_parameters(mixer: Spectral, **values: Tensor) -> None:
    with torch.no_grad():
        for name, value in values.items():
            getattr(mixer.spectrum, name).copy_(value)


def unscaled(x: Tensor) -> Tensor:
    """Undo the mixer's scaling of its input."""
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


# ---------------------------------------------------------------- the attention


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
@pytest.mark.parametrize("name", ["gmm_rks", "gmm_prf"])
def test_gmm_is_its_frequencies_one_by_one(name: str, causal: bool) -> None:
    """Values, and gradients of sigma and mu, too."""
    length = CHUNK + 3
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
    inputs = [q, k, v, mixer.spectrum.sigma, mixer.spectrum.mu]
    same(mixer.attend(q, k, v, mask), torch.stack(rows, dim=1), inputs, tolerance=1e-9)


@pytest.mark.parametrize("name", PRF)
def test_prf_keeps_its_weights_where_features_underflow(name: str) -> None:
    """In fp32 the norms are so large that no feature is above the smallest number."""
    mixer = mixer_of(name, dim=192, qkv_dim=192, max_positions=31).float()
    q, k = 6 * noise(2, 1, 3, 31, 64).float()
    v = noise(1, 3, 31, 64, seed=1).float()
    omega = mixer.spectrum.frequencies()
    assert not log_prf(scaled(k), omega).exp().any()
    expected = weights(mixer, q, k, torch.ones(31, 31, dtype=torch.bool)) @ v.double()
    torch.testing.assert_close(mixer.attend(q, k, v, None).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["generative_rks", "fastfood_rks"])
def test_a_layer_may_be_called_twice_before_its_backward_pass(name: str) -> None:
    """Each call draws its own frequencies; the gradient is the sum of the gradients of both calls."""
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
    layers = [layer for layer in generator.modules() if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(3, 10), (10, 20), (20, 5)]
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
