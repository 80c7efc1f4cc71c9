"""S4D against scipy's zero-order hold, the recurrence, and the double sum."""

import math

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from support import mixer_of, noise, same

from lra.mixers.s4d import S4D
from lra.ops.scan import CHUNK

SIZES = {"dim": 5, "qkv_dim": 11, "heads": 1, "max_positions": 211, "out_proj": True}


def s4d(*options: str, **shape: object) -> S4D:
    keys = [f"attention.{option}" for option in ("state=6", "dt_min=0.01", *options)]
    return mixer_of("s4d", *keys, **{**SIZES, **shape})


def modes_of(mixer: S4D) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dt [D], A [D, N/2] and C [directions, D, N/2] from the parameters."""
    values = {name: value.detach().numpy() for name, value in mixer.named_parameters()}
    c = values["c"][..., 0] + 1j * values["c"][..., 1]
    return np.exp(values["log_dt"]), -np.exp(values["log_decay"]) + 1j * values["frequency"], c


def test_the_causal_form_is_what_scipy_simulates() -> None:
    """scipy discretises and simulates the real system of size N; it reads the output before the update."""
    mixer, x = s4d(causal=True), noise(1, 151, 5)
    dt, a, c = modes_of(mixer)
    output = mixer.convolve_causally(x)[0]
    for channel in range(5):
        blocks = [[[z.real, -z.imag], [z.imag, z.real]] for z in a[channel]]
        system = torch.block_diag(*[torch.tensor(block, dtype=torch.float64) for block in blocks]).numpy()
        put = np.tile([[1.0], [0.0]], (3, 1))
        read = np.stack([2 * c[0, channel].real, -2 * c[0, channel].imag], axis=1).reshape(1, 6)
        discrete = cont2discrete((system, put, read, np.zeros((1, 1))), dt[channel], method="zoh")
        _, y, _ = dlsim(discrete, np.append(x[0, :, channel].numpy(), 0))
        np.testing.assert_allclose(output[:, channel].detach().numpy(), y[1:, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, CHUNK + 1])
@pytest.mark.parametrize("causal", [True, False])
def test_the_convolution_is_the_double_sum(causal: bool, length: int) -> None:
    mixer, x = s4d(causal=causal), noise(2, length, 5).requires_grad_()
    kernel = mixer.kernel(length)
    expected = []
    for i in range(length):
        earlier = sum(kernel[0, :, i - j] * x[:, j] for j in range(i + 1))
        later = 0 if causal else sum(kernel[1, :, j - i - 1] * x[:, j] for j in range(i + 1, length))
        expected.append(earlier + later)
    expected = torch.stack(expected, dim=1)
    actual = mixer.convolve_causally(x) if causal else mixer.convolve(x)
    same(actual, expected, [x, mixer.c, mixer.log_dt, mixer.log_decay, mixer.frequency])


@pytest.mark.parametrize("output", ["null", "glu"])
def test_skip_gelu_and_projection_follow(output: str) -> None:
    mixer, x = s4d(f"output={output}"), noise(2, 13, 5)
    y = mixer.convolve(x) + x * mixer.skip
    expected = (y * (1 + torch.erf(y / math.sqrt(2))) / 2) @ mixer.out.weight.t() + mixer.out.bias
    if output == "glu":
        value, gate = expected.chunk(2, dim=-1)
        expected = value / (1 + torch.exp(-gate))
    torch.testing.assert_close(mixer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("b", ["ones", "normal"])
@pytest.mark.parametrize("copies", [2, 6])
def test_a_trained_b_multiplies_c_and_copies_serve_channels_side_by_side(b: str, copies: int) -> None:
    """Compare with a layer of B = 1 and one A for each channel, whose C is B C."""
    tied, free = s4d(f"b={b}", f"copies={copies}", dim=6), s4d(dim=6)
    each, b_there = 6 // copies, torch.view_as_complex(tied.b.detach())
    assert (b_there == 1).all() == (b == "ones")
    values = {name: value.detach().clone() for name, value in tied.named_parameters() if name != "b"}
    for name in ("log_decay", "frequency"):
        values[name] = torch.stack([values[name][channel // each] for channel in range(6)])
    by_channel = torch.stack([b_there[channel // each] for channel in range(6)])
    values["c"] = torch.view_as_real(torch.view_as_complex(values["c"]) * by_channel)
    free.load_state_dict(values)
    torch.testing.assert_close(tied.kernel(17), free.kernel(17), rtol=1e-12, atol=1e-12)


def test_modes_begin_where_the_paper_says() -> None:
    """N = 4: pi n, and N/pi (N / (2n + 1) - 1)."""
    for init, expected in {"lin": [0, math.pi], "inv": [12 / math.pi, 4 / (3 * math.pi)]}.items():
        dt, a, _ = modes_of(s4d("state=4", f"init={init}", dim=997))
        np.testing.assert_allclose(a.real, -0.5, rtol=1e-6)
        np.testing.assert_allclose(a.imag, np.tile(expected, (997, 1)), rtol=1e-6)
        assert 0.01 <= dt.min() < 0.011
        assert 0.09 < dt.max() <= 0.1
        assert np.median(dt) == pytest.approx(math.sqrt(0.01 * 0.1), rel=0.15)  # log-uniform
