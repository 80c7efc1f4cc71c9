"""Pool the positions of documents, and map vectors to logits by a head.

Legend: B examples, P documents per example, N positions, D width.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.datasets.task import TaskSpec
from lra.network.architecture import Architecture
from lra.network.embedding import sinusoids
from lra.network.layers import ACTIVATIONS
from lra.ops.device import at_least_float32


def head_of(spec: TaskSpec, architecture: Architecture) -> nn.Module:
    """Create the head that maps features to logits.

    The head reads `pair_features` of pooled documents if the objective is `classify`, the vector [B, D] of the last
    position if it is `reconstruct`, and otherwise the vectors [..., D] of positions.
    """
    dim, interaction = architecture.dim, architecture.pair_features == "interaction"
    if interaction and spec.documents != 2:
        raise UserError(f"model.pair_features=interaction: expected a task of two documents, {spec.name} has one")
    if spec.objective == "reconstruct":
        return Reconstruction(spec, architecture)
    if spec.objective != "classify":
        return nn.Linear(dim, spec.classes, bias=architecture.bias)
    return document_head(dim * (4 if interaction else spec.documents), spec, architecture)


class Reconstruction(nn.Module):
    """Head that predicts the token of each position from one vector plus the position's sinusoids.

    MAD (Poli et al. 2024) has the same head, but with two hidden layers of the model's width instead of those of
    `document_head`.
    """

    positions: Tensor  # [L, D]

    def __init__(self, spec: TaskSpec, architecture: Architecture) -> None:
        super().__init__()
        if architecture.dim % 2:
            raise UserError(f"model.dim={architecture.dim}: expected an even width, because {spec.name} adds sinusoids")
        self.register_buffer("positions", sinusoids(spec.max_len, architecture.dim), persistent=False)
        self.decoder = document_head(architecture.dim, spec, architecture)

    def forward(self, x: Tensor, scored: Tensor | None) -> Tensor:
        """Map x [B, D] to [B, L, classes], or to [m, classes] at the flat indices `scored` [m] into [B, L]."""
        length = len(self.positions)
        if scored is None:
            return self.decoder(x[:, None] + self.positions)  # [B, 1, D] + [L, D]
        # Split each index into example and position, and add their vectors: [m, D].
        return self.decoder(x[scored // length] + self.positions[scored % length])


def document_head(features: int, spec: TaskSpec, architecture: Architecture) -> nn.Sequential:
    """Create a head that maps vectors [..., features] to logits [..., classes] of the task.

    `head_hidden` lists the widths of the hidden layers. If it is None, there is one hidden layer of `mlp_dim`; for
    pairs of documents a second one of `mlp_dim // 2` follows, and the activation is ReLU (SimpleTRON, Table 3).
    """
    hidden, between = architecture.head_hidden, ACTIVATIONS[architecture.head_activation]
    if hidden is None:
        hidden = [architecture.mlp_dim]
        if spec.documents == 2:
            hidden, between = [*hidden, architecture.mlp_dim // 2], nn.ReLU
    widths = [features, *hidden, spec.classes]
    layers = [nn.Linear(widths[0], widths[1], bias=architecture.bias)]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [between(), nn.Linear(inputs, outputs, bias=architecture.bias)]
    return nn.Sequential(*layers)


def pooled(x: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Pool x [B P, N, D] to [B P, D], over the positions where `mask` [B P, N] is True, or over all if it is None."""
    if pooling == "last":
        # The clamp to 1 gives index 0 instead of -1 for a document without real positions.
        return x[:, -1] if mask is None else x[torch.arange(len(x), device=x.device), mask.sum(dim=1).clamp(min=1) - 1]
    if pooling in ("cls", "first"):
        return x[:, 0]
    if pooling == "mean":
        x = at_least_float32(x)  # bf16 would round the sums and the numbers of tokens
    if mask is None:
        return x.amax(dim=1) if pooling == "max" else x.mean(dim=1)
    real = mask.unsqueeze(-1)  # [B P, N, 1]
    if pooling == "max":  # the maximum of a document without real positions is set to 0
        return x.masked_fill(~real, -torch.inf).amax(dim=1).masked_fill(~real.any(dim=1), 0)
    return x.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def pair_features(documents: Tensor, interaction: bool) -> Tensor:
    """Join documents [B, P, D] to [B, P D]; with `interaction` join each pair u, v to [u, v, u v, u - v] [B, 4 D]."""
    if not interaction:
        return documents.flatten(1)
    first, second = documents.unbind(1)
    return torch.cat([first, second, first * second, first - second], dim=-1)
