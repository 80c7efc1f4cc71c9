"""Compute convolutions over positions, and recurrences s_i = exp(rate) s_{i-1} + u_i with a constant decay.

A mode is one complex state s with its rate, Re rate < 0. The causal forms are exactly causal. A Fourier transform over
all positions would not be, because its rounding errors would carry later inputs into earlier outputs.
Legend: B batch, L positions, D or C channels, N modes; from and to: positions of an input and an output in a chunk.
In shapes such as [N, from 2, to], `from 2` is one axis of size 2 * from.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, pad

from lra.ops.device import at_least_float32, autocast_dtype, full_precision
from lra.ops.scan import CHUNK

PIECE = 256  # number of positions summed at a time in the weight gradient of a short convolution
SHORT = 16  # number of positions in a chunk of `diagonal_scan`


def short_convolution(x: Tensor, weight: Tensor, later: int = 0) -> Tensor:
    """Compute y_i = sum_l weight[:, -1 - l] x_{i + later - l} in each channel.

    x [B, L, C], weight [C, taps] -> y [B, L, C]. Outside of its L positions x is read as zero. `later`: number of later
    positions that an output reads.
    """
    if x.device.type == "cuda":  # cuDNN's deterministic kernels for depthwise convolutions take seconds
        return sum_of_shifted(pad(x, (0, 0, weight.shape[1] - 1 - later, later)), weight)
    dtype = autocast_dtype(x)
    return _ShortConvolution.apply(x.to(dtype), weight.to(dtype), later)


class _ShortConvolution(torch.autograd.Function):
    """Function of `short_convolution` on a CPU. It saves only its inputs and avoids oneDNN's slow weight gradient.

    Without this class a training step of one layer takes 1.4 times as long for Hyena and 1.2 times as long for Gated
    DeltaNet (L = 2,000, width 256, one thread).
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, later: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.later = later
        return _each_channel(x, weight, later)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        earlier = weight.shape[1] - 1 - ctx.later
        by_tap = [_shifted_product(x, grad, tap - earlier) for tap in range(weight.shape[1])]
        with full_precision(grad.device):
            by_x = _each_channel(grad, weight.flip(-1), earlier)  # the transposed convolution
        return by_x, torch.stack(by_tap, dim=-1).to(weight.dtype), None


def _each_channel(x: Tensor, weight: Tensor, later: int) -> Tensor:
    """Compute `short_convolution` by `conv2d`: x [B, L, C] -> y [B, L, C].

    x is viewed as images [B, C, 1, L] in the channels-last layout, which is oneDNN's fastest and needs no copy.
    """
    rows = x.contiguous().transpose(1, 2).unsqueeze(2)  # [B, C, 1, L]
    y = conv2d(rows, weight[:, None, None], groups=len(weight), padding=(0, weight.shape[1] - 1))
    # Index t of y [B, C, 1, L + taps - 1] reads inputs up to x_t. Output i reads inputs up to x_{i + later}.
    return y.squeeze(2).transpose(1, 2)[:, later : later + x.shape[1]]


def _shifted_product(x: Tensor, y: Tensor, shift: int) -> Tensor:
    """Return the sum of x_{i + shift} y_i over documents and positions i: x and y [B, L, C] -> [C].

    The sum is computed in pieces of `PIECE` positions, which stay in the cache.
    """
    length = x.shape[1]
    x, y = x[:, max(0, shift) : max(0, length + min(0, shift))], y[:, max(0, -shift) : max(0, length - max(0, shift))]
    parts = [(x, y)] if length <= PIECE else zip(x.split(PIECE, dim=1), y.split(PIECE, dim=1), strict=True)
    return sum((at_least_float32(first) * other).sum(dim=(0, 1)) for first, other in parts)  # type: ignore[return-value]


def sum_of_shifted(x: Tensor, weight: Tensor) -> Tensor:
    """Compute sum_t weight[:, t] x_{i + t}; x [B, L + taps - 1, C], weight [C, taps] -> [B, L, C]."""
    taps = weight.shape[1]
    length = x.shape[1] - taps + 1
    y = x[:, :length] * weight[:, 0]
    for tap in range(1, taps):
        y = torch.addcmul(y, x[:, tap : tap + length], weight[:, tap])
    return y


def convolve_both(x: Tensor, earlier: Tensor, later: Tensor) -> Tensor:
    """Compute y_i = sum_{j <= i} K_{i-j} x_j + sum_{j > i} K'_{j-i-1} x_j by FFT.

    x [B, L, D], K = `earlier` and K' = `later` [D, L] -> y [B, L, D].
    """
    length = x.shape[1]
    size = 1 << (2 * length - 2).bit_length()  # at least 2 L - 1, so that the circular convolution does not wrap around
    # A circular convolution reads lag l >= 0 at index l, and lag -l at index size - l. So `both` begins with K and ends
    # with K' reversed.
    both = torch.cat([pad(earlier, (0, size - 2 * length + 1)), later[:, : length - 1].flip(-1)], dim=-1)  # [D, size]
    y = torch.fft.irfft(torch.fft.rfft(x.transpose(1, 2), size) * torch.fft.rfft(both), size)  # [B, D, size]
    return y[..., :length].transpose(1, 2)


def convolve_few(x: Tensor, earlier: Tensor, later: Tensor, count: int) -> Tensor:
    """Compute the first `count` outputs [B, count, D] of `convolve_both` directly, in time O(L D) per output."""
    length = x.shape[1]
    outputs = []
    for position in range(min(count, length)):
        # [D, L], weight of every input.
        kernel = torch.cat([earlier[:, : position + 1].flip(-1), later[:, : length - position - 1]], dim=-1)
        outputs.append((x * kernel.T).sum(dim=1))
    return torch.stack(outputs, dim=1)


def causal_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute y_i = sum_{j <= i} K_{i-j} x_j in each channel, exactly causal, in time O(L D (CHUNK + log(L)^2)).

    Blocks of `CHUNK` positions are convolved directly. Then, for pairs of neighbouring blocks of CHUNK, 2 CHUNK,
    4 CHUNK, ... positions, an FFT adds the contribution of the first block's inputs to the second block's outputs.

    x [B, L, D], kernel K [D, L] -> y [B, L, D].
    """
    length = x.shape[1]
    x = x.transpose(1, 2)  # [B, D, L]
    size = min(CHUNK, 1 << (length - 1).bit_length())
    lags = torch.arange(size, device=x.device)
    matrix = pad(kernel[:, :size], (size - 1, size - 1))[:, lags - lags.unsqueeze(-1) + size - 1]  # [D, from, to]
    blocks = pad(x, (0, -length % size)).unflatten(-1, (-1, size)).transpose(0, 1)  # [D, B, blocks, size]
    # [D, B blocks, size] @ [D, from, to], then back to [B, D, L].
    y = (blocks.flatten(1, 2) @ matrix).unflatten(1, blocks.shape[1:3]).transpose(0, 1).flatten(2)[..., :length]
    while size < length:
        first = pad(x, (0, -length % (2 * size))).unflatten(-1, (-1, 2, size)).unbind(-2)[0]  # [B, D, pairs, size]
        reach = torch.fft.rfft(kernel[:, : 2 * size], 2 * size).unsqueeze(1)  # [D, 1, size + 1]
        # The outputs of the second block, [B, D, pairs, size]; only these are free of wrapped-around terms.
        read = torch.fft.irfft(torch.fft.rfft(first, 2 * size) * reach, 2 * size)[..., size:]
        # Zeros for the first block of each pair: [B, D, pairs, 2 size] -> [B, D, L].
        y = y + pad(read, (size, 0)).flatten(2)[..., :length]
        size *= 2
    return y.transpose(1, 2)


def mode_kernel(rate: Tensor, c: Tensor, length: int, step: int) -> Tensor:
    """Compute the kernels 2 Re sum_n c_n exp(rate_n l) for l < length.

    With l = a * step + b, exp(rate_n l) is exp(rate_n * a * step) times exp(rate_n * b). Each of these factors is read
    from a short table, so that no tensor [D, N, length] is formed.

    rate [D, N] and c [directions, D, N], complex -> [directions, D, length]; `step`: number of values of b; a
    step near the square root of the length is fastest.
    """
    steps = torch.arange(-(-length // step), device=c.device)
    coarse = powers(rate, steps * step) * c.unsqueeze(-1)  # [directions, D, N, a]
    fine = powers(rate, torch.arange(step, device=c.device))  # [D, N, b]
    # [directions, D, a, b] -> [directions, D, length]
    return 2 * real_product(coarse.transpose(-2, -1), fine).flatten(-2)[..., :length]


def convolve_modes(x: Tensor, rate: Tensor, c: Tensor) -> Tensor:
    """Compute y_i = 2 Re sum_n c_n sum_{j <= i} exp(rate_n (i - j)) x_j in each channel, as a recurrence over chunks.

    x [B, L, D], rate and c [D, N], complex -> y [B, L, D].
    """
    batch, length, dim = x.shape
    width = min(CHUNK, length)
    # [D, B chunks, width]
    chunks = pad(x, (0, 0, 0, -length % width)).flatten(0, 1).T.contiguous().view(dim, -1, width)
    lags = torch.arange(width, device=x.device)
    mode = powers(rate, lags)  # [D, N, width]
    # K at lags -(width - 1) to width - 1, [D, 2 width - 1]; zero at negative lags, which would read later inputs.
    kernel = pad(2 * (c.unsqueeze(-1) * mode).real.sum(dim=1), (width - 1, 0))
    inside = kernel[:, lags - lags.unsqueeze(-1) + width - 1]  # [D, from, to]
    if length == width:
        y = chunks @ inside
    else:
        # [D, from, N 2]: decay from an input to the chunk's end.
        last = torch.view_as_real(mode.flip(-1).transpose(-2, -1)).flatten(2)
        y, states = (chunks @ torch.cat([inside, last], dim=-1)).split([width, last.shape[-1]], dim=-1)
        # [D, B, chunks, N]
        states = torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous()).unflatten(1, (batch, -1))
        # `before` [D, B chunks, N] holds, for each chunk, the states at the end of the previous chunk.
        before = accumulate(pad(states[:, :, :-1], (0, 0, 1, 0)), rate * width).flatten(1, 2)
        read = (2 * c * rate.exp()).unsqueeze(-1) * mode  # [D, N, to]: 2 c times decay since the previous chunk's end
        y = y + real_product(before, read)
    return y.flatten(1).T.contiguous().view(batch, -1, dim)[:, :length]  # [D, B chunks width] -> [B, L, D]


def diagonal_scan(u: Tensor, rate: Tensor, directions: int) -> Tensor:
    """Compute h_i = exp(rate) h_{i-1} + u_i for every mode; with two directions also h_i = exp(rate) h_{i+1} + u_i.

    For each mode, the outputs of a chunk are one real product: the chunk's inputs and the states that enter it, times a
    matrix. Time O(L N SHORT).

    u [B, L, 2, N], complex rate [N] -> h [B, L, directions, 2, N]; the axis before N has the real and imaginary part.
    """
    batch, length, _, modes = u.shape
    rows = pad(u, (0, 0, 0, 0, 0, -length % SHORT)).flatten(0, 2)  # [B chunks SHORT 2, N]
    chunks = rows.T.contiguous().view(modes, batch, -1, SHORT, 2)  # [N, B, chunks, SHORT, 2]
    lags = torch.arange(SHORT + 1, device=u.device)
    decay = powers(rate, lags)  # [N, SHORT + 1]
    # Write a complex factor a + i b as a real matrix: [Re z, Im z] @ [[a, b], [-b, a]] is [Re, Im] of z (a + i b).
    factors = torch.stack([torch.view_as_real(decay), torch.view_as_real(1j * decay)], dim=-2)  # [N, SHORT + 1, 2, 2]
    # Convert lags [from, to] to indices into `factors` with SHORT - 1 zeros in front, which negative lags read.
    lags = lags[:SHORT] - lags[:SHORT].unsqueeze(-1) + SHORT - 1
    by_lag = pad(factors[:, :SHORT], (0, 0, 0, 0, SHORT - 1, 0))[:, lags]  # [N, from, to, 2, 2]
    inside, from_state, states = [], [], []
    for backward in range(directions):
        inside.append(_flipped(backward, by_lag, 1, 2))  # in the backward direction, outputs read later inputs
        # `added` is the contribution of each chunk to the state at its end or, in the backward direction, at its start.
        to_end = _flipped(not backward, factors[:, :SHORT], 1).flatten(1, 2)  # [N, SHORT 2, 2]
        added = torch.view_as_complex(chunks.flatten(3).flatten(1, 2) @ to_end).unflatten(1, (batch, -1))
        entering = pad(_flipped(backward, added, 2)[..., :-1], (1, 0)).unsqueeze(-1)  # [N, B, chunks, 1]
        entering = accumulate(entering, rate.unsqueeze(-1) * SHORT).squeeze(-1)
        states.append(torch.view_as_real(_flipped(backward, entering, 2)))  # [N, B, chunks, 2]
        since = _flipped(backward, factors[:, 1:], 1).unsqueeze(3)  # [N, to, 2, 1, 2]
        # The state of a direction contributes only to the outputs of this direction.
        since = pad(since, (0, 0, backward, directions - 1 - backward))
        from_state.append(since.transpose(1, 2).flatten(2))  # [N, 2, to directions 2]
    from_input = torch.stack(inside, dim=-2).transpose(2, 3).flatten(3).flatten(1, 2)  # [N, from 2, to directions 2]
    matrix = torch.cat([from_input, *from_state], dim=1)
    h = torch.cat([chunks.flatten(3), *states], dim=-1).flatten(1, 2) @ matrix  # [N, B chunks, SHORT directions 2]
    return h.flatten(1).T.contiguous().view(batch, -1, directions, 2, modes)[:, :length]


def _flipped(flip: bool | int, x: Tensor, *dims: int) -> Tensor:
    """Return x reversed along `dims` if `flip`, else x."""
    return x.flip(dims) if flip else x


def powers(rate: Tensor, lags: Tensor) -> Tensor:
    """Return exp(rate lag) for every rate [...] and lag [lags], as a tensor [..., lags]."""
    return torch.exp(rate.unsqueeze(-1) * lags)


def real_product(a: Tensor, b: Tensor) -> Tensor:
    """Return Re(a @ b) for complex a and b, computed as one real product."""
    return torch.cat([a.real, -a.imag], dim=-1) @ torch.cat([b.real, b.imag], dim=-2)


def accumulate(states: Tensor, rate: Tensor) -> Tensor:
    """Compute s_m + exp(rate) s_{m-1} + exp(2 rate) s_{m-2} + ... for every chunk m, in log2(chunks) steps.

    states s [D, B, chunks, N], rate [D, N] -> [D, B, chunks, N].
    """
    reach = 1
    while reach < states.shape[2]:
        earlier = pad(states[:, :, :-reach], (0, 0, reach, 0))
        states = states + (rate * reach).exp()[:, None, None] * earlier
        reach *= 2
    return states
