"""Embed tokens as the input of the first block.

Legend: B documents, L tokens, D width, R rows of a packed batch.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from lra.core.errors import UserError
from lra.datasets.task import OF_INPUTS, PADDING, TaskSpec
from lra.network.architecture import Architecture
from lra.ops.dropout import Dropout
from lra.ops.packing import Packed

GREYS = 256  # number of grey values


class Embedding(nn.Module):
    """Sum of token and position vectors, with a CLS vector in front if `cls`, then an optional norm and dropout.

    Token vectors are drawn from N(0, 1), and the vector of padding is zero. If the architecture has `pixels`, tokens
    are grey values, which a linear layer projects.
    """

    def __init__(self, spec: TaskSpec, architecture: Architecture, *, cls: bool) -> None:
        super().__init__()
        dim = architecture.dim
        if architecture.pixels is None:
            self.tokens = nn.Embedding(spec.vocab_size, dim, padding_idx=PADDING)
        else:
            self.tokens = Pixels(spec, architecture)
        self.cls = nn.Parameter(torch.zeros(dim)) if cls else None
        self.cls_position = cls and architecture.cls_position
        length = spec.max_len + self.cls_position
        if architecture.positions == "learned":
            self.positions: Tensor | None = nn.Parameter(torch.zeros(length, dim))
            if architecture.position_std > 0:
                nn.init.normal_(self.positions, std=architecture.position_std)
        elif architecture.positions == "none":
            self.positions = None
        else:
            # Not saved, because the vectors are a function of length and width.
            self.register_buffer("positions", sinusoids(length, dim), persistent=False)
        self.norm = nn.LayerNorm(dim, architecture.norm_eps) if architecture.embedding_norm else nn.Identity()
        self.dropout = Dropout(architecture.dropout if architecture.embedding_dropout else 0.0)

    def forward(self, tokens: Tensor, packed: Packed | None = None) -> Tensor:
        """Return the embeddings of tokens [B, L]: [B, L, D], [B, 1 + L, D] with a CLS, or rows [R, D] if packed."""
        has_cls = self.cls is not None
        if packed is None:
            x = self.tokens(tokens)  # [B, L, D]
            if self.cls_position:
                x = self._prepend_cls(x)
            if self.positions is not None:
                x = x + self.positions[: x.shape[1]]
            if has_cls and not self.cls_position:
                x = self._prepend_cls(x)
            return self.dropout(self.norm(x))
        is_cls = packed.position.unsqueeze(1) == 0  # [R, 1]; position 0 is the CLS if there is one
        # [R, D]; the pad token in front reserves the row of the CLS.
        x = self.tokens(packed.unpad(pad(tokens, (int(has_cls), 0))))
        if self.cls_position:
            x = torch.where(is_cls, self.cls, x)
        if self.positions is not None:
            # If the CLS has no position vector, the first token has that of position 0.
            shift = int(has_cls and not self.cls_position)
            x = x + embedding((packed.position - shift).clamp(0, len(self.positions) - 1), self.positions)
        if has_cls and not self.cls_position:
            x = torch.where(is_cls, self.cls, x)
        return self.dropout(self.norm(x), packed)

    def _prepend_cls(self, x: Tensor) -> Tensor:
        assert self.cls is not None
        return torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)  # [B, 1 + L, D]


class Pixels(nn.Linear):
    """Linear projection of the normalised grey value (value / 255 - mean) / deviation, as in the S4 family.

    Grey values 0 to 255 have the ids 1 to 256. For a masked pixel (id 257) the normalised value is 0, and a learned
    vector is added to the projection, as in Never Train from Scratch's masked data set (src/dataloaders/base.py).
    """

    def __init__(self, spec: TaskSpec, architecture: Architecture) -> None:
        super().__init__(1, architecture.dim)
        hides = spec.objective in OF_INPUTS and not spec.causal
        if spec.vocab_size != GREYS + 1 + hides:
            raise UserError(
                f"model.pixels={architecture.pixels}: expected a task of {GREYS} grey values, {spec.name} has "
                f"{spec.vocab_size - 1 - hides} ids; use model.pixels=null"
            )
        assert architecture.pixels is not None
        self.mean, self.deviation = architecture.pixels
        self.hidden = nn.Parameter(torch.empty(architecture.dim).uniform_(-1, 1)) if hides else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Project tokens [B, L] to [B, L, D]."""
        grey = (tokens - 1).to(self.weight.dtype) / (GREYS - 1)
        scaled = ((grey - self.mean) / self.deviation).unsqueeze(-1)  # [B, L, 1]
        if self.hidden is None:
            return super().forward(scaled)
        hidden = (tokens > GREYS).unsqueeze(-1)
        return super().forward(scaled.masked_fill(hidden, 0)) + hidden * self.hidden


def sinusoids(length: int, dim: int) -> Tensor:
    """Return Long Range Arena's fixed position vectors [length, dim]: sines, then cosines."""
    half = dim // 2
    rates = torch.exp(torch.arange(half) * (-math.log(10_000.0) / max(half - 1, 1)))  # [D / 2], from 1 to 1 / 10,000
    angles = torch.arange(length)[:, None] * rates  # [length, D / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
