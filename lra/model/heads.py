"""From what the last block gives to logits.

Legend: B examples, P documents per example, N positions, D width.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.data import TaskSpec
from lra.model.architecture import Architecture
from lra.model.embedding import sinusoids
from lra.model.feed_forward import ACTIVATIONS
from lra.ops.precision import at_least_float32


def head_of(facts: TaskSpec, architecture: Architecture) -> nn.Module:
    """To logits from vectors of positions [..., D] where these are predicted, from the last one where all are to be
    reconstructed, else from `pair_features` of pooled documents."""
    dim, interaction = architecture.dim, architecture.pair_features == "interaction"
    if interaction and facts.documents != 2:
        raise UserError(f"model.pair_features=interaction: expected a task of two documents, {facts.name} has one")
    if facts.objective == "reconstruct":
        return Reconstruction(facts, architecture)
    if facts.objective != "classify":
        return nn.Linear(dim, facts.classes, bias=architecture.bias)
    return document_head(dim * (4 if interaction else facts.documents), facts, architecture)


class Reconstruction(nn.Module):
    """What stood at each position, from one vector: to it the position's sinusoids are added, then a hidden layer.

    MAD's decoder (Poli et al. 2024), with one hidden layer of `mlp_dim` for its two of the width.
    """

    def __init__(self, facts: TaskSpec, architecture: Architecture) -> None:
        super().__init__()
        if architecture.dim % 2:
            raise UserError(f"model.dim={architecture.dim}: {facts.name} adds sinusoids, expected an even width")
        self.register_buffer("positions", sinusoids(facts.max_len, architecture.dim), persistent=False)
        self.decoder = document_head(architecture.dim, facts, architecture)

    def forward(self, x: Tensor, scored: Tensor | None) -> Tensor:
        """x [B, D] -> [B, L, classes], or [m, classes] of the scored places alone."""
        length = len(self.positions)
        if scored is None:
            return self.decoder(x[:, None] + self.positions)
        return self.decoder(x[scored // length] + self.positions[scored % length])


def document_head(features: int, facts: TaskSpec, architecture: Architecture) -> nn.Sequential:
    """Features of an example's documents [B, features] -> logits [B, classes].

    One document: Linear, activation, Linear. A pair: two hidden layers with ReLU (the paper's Table 3). Where the
    architecture says which hidden layers there are, these, with its activation.
    """
    hidden, between = architecture.head_hidden, ACTIVATIONS[architecture.head_activation]
    if hidden is None:
        hidden = [architecture.mlp_dim]
        if facts.documents == 2:
            hidden, between = [*hidden, architecture.mlp_dim // 2], nn.ReLU
    widths = [features, *hidden, facts.classes]
    layers = [nn.Linear(widths[0], widths[1], bias=architecture.bias)]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [between(), nn.Linear(inputs, outputs, bias=architecture.bias)]
    return nn.Sequential(*layers)


def pooled(x: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """[B P, N, D] -> [B P, D]; of the real positions, which `mask` [B P, N] says."""
    if pooling == "last":
        return x[:, -1] if mask is None else x[torch.arange(len(x), device=x.device), mask.sum(dim=1).clamp(min=1) - 1]
    if pooling == "max":
        return _largest(x, mask)
    if pooling != "mean":
        return x[:, 0]
    x = at_least_float32(x)  # so that tokens are not counted in bf16
    if mask is None:
        return x.mean(dim=1)
    real = mask.unsqueeze(-1)
    return x.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _largest(x: Tensor, mask: Tensor | None) -> Tensor:
    """The largest value of each feature; 0 where no position is real."""
    if mask is None:
        return x.amax(dim=1)
    largest = x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0)


def pair_features(documents: Tensor, interaction: bool) -> Tensor:
    """[B, P, D] -> [B, P D]; with `interaction` of two documents u and v, [u, v, u v, u - v]."""
    if not interaction:
        return documents.flatten(1)
    first, second = documents.unbind(1)
    return torch.cat([first, second, first * second, first - second], dim=-1)
