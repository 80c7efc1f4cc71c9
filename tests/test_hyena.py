"""Hyena and its convolutions against sums over pairs of positions, the filters lag by lag."""

import math

import pytest
import torch
from support import mask_of, mixer_of, noise, same
from torch import Tensor

from lra.mixers import Mixer
from lra.ops.convolution import causal_convolution
from lra.ops.scan import CHUNK

LONG = 4 * CHUNK + 3  # three lengths of blocks meet there


@pytest.mark.parametrize("length", [1, CHUNK, LONG])
def test_a_causal_convolution_is_its_sum(length: int) -> None:
    x, kernel = noise(2, length, 3).requires_grad_(), noise(3, length, seed=1).requires_grad_()
    lag = torch.arange(length)[:, None] - torch.arange(length)
    matrix = kernel[:, lag.clamp(min=0)] * (lag >= 0)
    same(causal_convolution(x, kernel), torch.einsum("dij,bjd->bid", matrix, x), [x, kernel])


def test_a_causal_convolution_reads_nothing_later() -> None:
    """Outputs and gradients do not depend on later positions, not even in their rounding errors."""
    x, kernel = noise(1, LONG, 3).float(), noise(3, LONG, seed=1).float()
    changed = x.clone()
    changed[:, 150:] += 1e6
    assert torch.equal(causal_convolution(x, kernel)[:, :150], causal_convolution(changed, kernel)[:, :150])
    x.requires_grad_()
    causal_convolution(x, kernel)[:, 150].sum().backward()
    assert x.grad[:, 150].all()
    assert not x.grad[:, 151:].any()


def filters(mixer: Mixer, lag: int) -> Tensor:
    """[directions, D] at one lag, as the paper has it: features, the net, the window."""
    longest = mixer.config.max_positions
    time = lag / (longest - 1)
    bands = [1e-4 + (mixer.bands - 1 - 1e-4) * band / (mixer.bands - 1) for band in range(mixer.bands)]
    angles = [2 * math.pi * lag / longest * band for band in bands]
    x = torch.tensor([time, *map(math.cos, angles), *map(math.sin, angles)], dtype=torch.float64)
    for layer in mixer.hidden:
        x = torch.sin(mixer.frequency * (layer.weight @ x + layer.bias))
    dim = mixer.config.dim
    slowest, fastest = math.log(100) / mixer.slow, math.log(100) / mixer.fast
    window = [math.exp(-time * (slowest + (fastest - slowest) * d / (dim - 1))) for d in range(dim)]
    return (mixer.filters.weight @ x).view(-1, dim) * torch.tensor(window, dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
def test_hyena_is_its_sums(causal: bool) -> None:
    """Two documents; a masked position in the shorter one is zero before and after the short convolutions."""
    length = CHUNK + 3
    mixer = mixer_of("hyena", max_positions=length + 2, causal=causal, out_proj=True)
    x, mask = noise(2, length, 15).requires_grad_(), mask_of([length, 9], length)
    mask[1, 4] = False
    shift, taps = (0 if causal else 1), mixer.taps.shape[1]
    h, expected = [filters(mixer, lag) for lag in range(length)], []
    for row, real in zip(x, mask, strict=True):
        u = mixer.inner(row) * real[:, None]
        short = []
        for i in range(length):
            reads = [(tap, i + shift - lag) for lag, tap in enumerate(reversed(mixer.taps.unbind(1)))]
            short.append(sum(tap * u[j] for tap, j in reads if 0 <= j < length) + mixer.taps_bias)
        assert len(reads) == taps
        gate, key, value = torch.stack(short).chunk(3, dim=-1)
        z = key * value * real[:, None]
        seen = [[j for j in range(length) if j <= i or not causal] for i in range(length)]
        long = [sum(h[abs(i - j)][int(j > i)] * z[j] for j in seen[i]) for i in range(length)]
        expected.append(mixer.out(gate * (torch.stack(long) + mixer.skip * z))[real])
    same(mixer(x, mask)[mask], torch.cat(expected), [x, *mixer.parameters()])
