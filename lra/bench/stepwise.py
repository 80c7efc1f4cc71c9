"""The recurrences of `lra.attention` position by position: what their forms in chunks are measured beside.

Legend: as in `lra.ops.scan`; a state is [..., M, N].
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from inspect import isfunction
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lra.core.errors import UserError
from lra.ops import convolution, scan
from lra.ops import delta_rule as rule
from lra.ops import gated_memory as memory
from lra.ops.backend import scan_of
from lra.ops.mixer import Mixer


def causal_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """S_i = exp(g_i) S_{i-1} + k_i v_i^T, y_i = q_i^T S_i; log_decay g [..., L]."""
    decay = torch.zeros_like(k[..., :1]) if log_decay is None else log_decay.unsqueeze(-1)
    return channel_product(q, k, v, decay)


def channel_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """The same with a decay for every channel of the keys, [..., L, M]."""
    rows = []
    state = torch.zeros_like(k[..., 0, :, None] * v[..., 0, None, :])
    for read, key, value, kept in zip(*map(_positions, (q, k, v, log_decay.exp())), strict=True):
        state = kept.unsqueeze(-1) * state + key.unsqueeze(-1) * value.unsqueeze(-2)
        rows.append((read.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, dim=-2)


def dplr_delta_rule(
    q: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, k: Tensor, least: float | None = None
) -> Tensor:
    """`lra.ops.scan.dplr_delta_rule`: the state reads itself by a before it decays; a loop over positions needs no
    bound `least`."""
    rows = []
    state = torch.zeros_like(b[..., 0, :, None] * v[..., 0, None, :])
    for read, looks, writes, value, kept, key in zip(*map(_positions, (q, a, b, v, log_decay.exp(), k)), strict=True):
        seen = looks.unsqueeze(-2) @ state
        state = kept.unsqueeze(-1) * state + writes.unsqueeze(-1) * seen + key.unsqueeze(-1) * value.unsqueeze(-2)
        rows.append((read.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, dim=-2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor) -> Tensor:
    """`lra.ops.delta_rule.delta_rule`: what is written is a value less what its key finds; strength and log_decay
    [..., L]."""
    rows = []
    state = torch.zeros_like(k[..., 0, :, None] * v[..., 0, None, :])
    numbers = (strength[..., None, None], log_decay.exp()[..., None, None])
    for read, key, value, weight, kept in zip(
        *map(_positions, (q, k, v)), *(x.unbind(-3) for x in numbers), strict=True
    ):
        state = kept * state
        error = value.unsqueeze(-2) - key.unsqueeze(-2) @ state
        state = state + weight * key.unsqueeze(-1) * error
        rows.append((read.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, dim=-2)


def gated_memory(
    q: Tensor, k: Tensor, v: Tensor, log_in: Tensor, log_decay: Tensor, log_least: Tensor, _chunk: int
) -> Tensor:
    """`lra.ops.gated_memory.gated_memory`; numbers [..., L, W]."""
    ways = []
    for turned, (arrives, kept, least) in enumerate(
        zip(*(x.unbind(dim=-1) for x in (log_in, log_decay, log_least)), strict=True)
    ):
        inputs = (q, k * arrives.exp().unsqueeze(-1), pad(v, (0, 1), value=1.0), kept.unsqueeze(-1))
        products = channel_product(*(x.flip(-2) if turned else x for x in inputs))
        products = products.flip(-2) if turned else products
        ways.append(products[..., :-1] / torch.maximum(products[..., -1].abs(), least.exp()).unsqueeze(-1))
    return torch.stack(ways).sum(dim=0)


def diagonal_scan(u: Tensor, rate: Tensor, directions: int) -> Tensor:
    """h_i = exp(rate) h_{i-1} + u_i, and with two directions h_i = exp(rate) h_{i+1} + u_i; u [B, L, 2, N]."""
    kept, directed = rate.exp(), []
    for way in range(directions):
        rows = []
        parts = torch.complex(*u.unbind(dim=2)).unbind(dim=1)
        state = torch.zeros_like(parts[0])
        for fresh in parts[:: -1 if way else 1]:
            state = kept * state + fresh
            rows.append(torch.stack([state.real, state.imag], dim=1))
        directed.append(torch.stack(rows[:: -1 if way else 1], dim=1))
    return torch.stack(directed, dim=2)


def _positions(x: Tensor) -> tuple[Tensor, ...]:
    return x.unbind(dim=-2)


IN_CHUNKS = {
    scan.causal_product: causal_product,
    scan.channel_product: channel_product,
    scan.dplr_delta_rule: dplr_delta_rule,
    rule.delta_rule: delta_rule,
    memory.gated_memory: gated_memory,
    convolution.diagonal_scan: diagonal_scan,
}


class Stepwise(nn.Module):
    """A mixer whose recurrences go position by position. UserError: it has none that it uses."""

    def __init__(self, mixer: Mixer, title: str) -> None:
        super().__init__()
        self.mixer = mixer
        if scan_of(mixer) is not None:
            mixer.scan = replace(mixer.scan, backend="torch")
        dtype = next(mixer.parameters()).dtype
        with replaced() as calls, torch.no_grad():
            mixer.eval()(torch.zeros(1, 2, mixer.shape.dim, dtype=dtype))
        if not calls:
            raise UserError(f"subjects: {title!r}: its layer has no recurrence over positions")

    def forward(self, x: Tensor) -> Tensor:
        with replaced():
            return self.mixer(x)


@contextmanager
def replaced() -> Iterator[list[str]]:
    """The loops stand where mixers call the forms in chunks; gives the names of those that were called."""
    calls: list[str] = []

    def counted(loop: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(loop)
        def call(*inputs: Tensor | None, **bounds: float) -> Tensor:
            calls.append(loop.__name__)
            return loop(*inputs, **bounds)

        return call

    loops = {chunked: counted(loop) for chunked, loop in IN_CHUNKS.items()}
    with ExitStack() as stack:
        for name in [name for name in sys.modules if name.startswith(("lra.attention.", "lra.ops."))]:
            for attribute, value in [*vars(sys.modules[name]).items()]:
                if isfunction(value) and value in loops and value.__module__ != name:
                    stack.enter_context(patch.object(sys.modules[name], attribute, loops[value]))
        yield calls
