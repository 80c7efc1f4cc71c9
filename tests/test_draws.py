"""Distributions of random features by Kolmogorov-Smirnov tests, and their expected kernels by quadrature.

Seeds are fixed, so a p below LEAST is a wrong distribution and no accident of a run.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, chi, chisquare, kstest, norm
from support import mixer_of, noise
from torch import Tensor
from torch.nn.functional import normalize

from lra.mixers.spectral import FastFood, Generator

LEAST = 1e-3
DRAWS = 300


def agrees(values: Tensor, law) -> None:
    """Independent values have this distribution."""
    assert kstest(values.flatten().numpy(), law.cdf).pvalue > LEAST


def redrawn(name: str, buffer: str, *options: str) -> Tensor:
    """Return the buffer after `redraw` at the steps 0, 1, ..., [DRAWS, ...]."""
    mixer = mixer_of(name, "attention.redraw_every=1", *options)
    buffers = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        buffers.append(mixer.get_buffer(buffer).clone())
    return torch.stack(buffers)


@pytest.mark.parametrize("name", ["gmm_rks", "generative_rks"])
def test_noise_is_normal_and_every_step_has_its_own(name: str) -> None:
    drawn = redrawn(name, "spectrum.noise", "attention.samples=7")
    agrees(drawn, norm)
    products = drawn[1:] * drawn[:-1]
    assert products.mean().abs() < 4 * products.std() / math.sqrt(products.numel())


# ---------------------------------------------------------------- Performer


def test_rows_have_the_norms_and_directions_of_gaussian_ones() -> None:
    """Seven rows of width 5 in two blocks. A coordinate u of a uniform direction: (1 + u) / 2 is beta(2, 2)."""
    drawn = redrawn("performer", "projection", "attention.features=7")
    agrees(drawn.norm(dim=-1), chi(5))
    directions = normalize(drawn, dim=-1)
    for row in range(7):
        agrees((1 + directions[:, row, row % 5]) / 2, beta(2, 2))
        agrees(drawn[:, row] @ normalize(noise(5), dim=0), norm)
    cosines = (directions @ directions.mT).abs()
    inside = torch.block_diag(torch.ones(5, 5), torch.ones(2, 2)) - torch.eye(7)
    assert cosines[:, inside.bool()].max() < 1e-12
    agrees((1 + (directions[:, 0] * directions[:, 6]).sum(dim=-1)) / 2, beta(2, 2))  # of two blocks


# ---------------------------------------------------------------- FastFood


@pytest.mark.parametrize("width", [5, 8])
def test_every_row_of_a_classic_fastfood_is_gaussian(width: int) -> None:
    """S gives it the length of a Gaussian row, the signs and G a uniform direction; also of the columns that are kept
    where the width is no power of two."""
    rng, drawn, lengths = np.random.default_rng(5), [], []
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for _ in range(DRAWS):
            fastfood = FastFood(width, "classic").double()
            fastfood.draw(rng)
            drawn.append(fastfood.frequencies().detach().T)
            lengths.append(fastfood.s.detach() * fastfood.g.detach().norm())
    agrees(torch.stack(lengths), chi(8))
    along = torch.stack(drawn) @ normalize(noise(width), dim=0)
    for row in range(8):
        agrees(along[:, row], norm)
        agrees(torch.stack(drawn)[:, row, row % width], norm)


def test_permutations_of_fastfood_are_uniform() -> None:
    """Every place gets every column equally often; of 64 counts 49 are free."""
    drawn = redrawn("fastfood_rks", "spectrum.noise", "attention.init=classic")
    counts = torch.nn.functional.one_hot(drawn, 8).sum(dim=0)
    assert (counts.sum(dim=0) == DRAWS).all()
    assert chisquare(counts.flatten().numpy(), ddof=14).pvalue > LEAST


# ---------------------------------------------------------------- Generative


@pytest.mark.parametrize("kind", ["rks", "prf"])
def test_the_kernel_of_generated_frequencies(kind: str) -> None:
    """Without hidden layers, omega = tanh(w n + b) with one normal n, so Gauss-Hermite quadrature gives the mean."""
    sizes = ("attention.samples=11", "attention.noise_width=0.2", "attention.hidden_widths=[]")
    mixer = mixer_of(f"generative_{kind}", *sizes)
    generator: Generator = mixer.spectrum
    assert generator.layers[0].weight.shape == (5, 1)
    with torch.no_grad():
        generator.layers[0].weight.copy_(1.5 * noise(5, 1, seed=1))
        generator.layers[0].bias.copy_(noise(5, seed=2))
    weight, bias = generator.layers[0].weight.detach(), generator.layers[0].bias.detach()
    x, y = 0.6 * noise(2, 11, 5, seed=3)

    def kernel(omega: Tensor) -> Tensor:
        """[pairs, frequencies]"""
        if kind == "rks":
            return ((x - y) @ omega).cos()
        tails = x.square().sum(dim=-1, keepdim=True) + y.square().sum(dim=-1, keepdim=True)
        return ((x + y) @ omega - tails).exp()

    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(120))
    expected = kernel((weight * nodes + bias[:, None]).tanh()) @ shares / math.sqrt(2 * math.pi)
    estimates = []
    for step in range(DRAWS):
        mixer.redraw(1, step)
        if kind == "rks":
            mixer.smoothing = 0.0
            phi_x, phi_y = mixer.features(x * 5**0.25, y * 5**0.25, None)
            estimates.append((phi_x * phi_y).sum(dim=-1).detach())
        else:
            estimates.append(kernel(generator.frequencies().detach()).mean(dim=-1))
    drawn = torch.stack(estimates)
    error = drawn.std(dim=0) / math.sqrt(DRAWS)
    assert error.max() < 0.02
    assert ((drawn.mean(dim=0) - expected).abs() < 3.5 * error).all()
