"""The yardstick: SimpleTRON and its Transformer as one writes them with the building blocks of PyTorch, no thought
given to speed.

Every example is padded to the full length, three projections and two products make the attention, the last block
computes every position, dropout is `nn.Dropout`, the optimiser is `torch.optim.AdamW` as it comes. The names of the
parameters are those of `lra.model.model.Model`, so both can hold the same weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class PlainAttention(nn.Module):
    """Projections and heads around `attend`."""

    def __init__(self, dim: int, heads: int, dropout: float, out_proj: bool, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim) if out_proj else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).reshape(batch, length, dim))


class PlainSimple(PlainAttention):
    """Q (K^T V), where padding is masked divided by the root of the number of real positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scale = self.scale
        if mask is not None:
            k = k * mask[:, None, :, None]
            scale = mask.sum(dim=1).to(q.dtype)[:, None, None, None] ** -0.5
        return q @ self.dropout(k.transpose(2, 3) @ v * scale)


class PlainSoftmax(PlainAttention):
    """softmax(Q K^T) V, with the weights formed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(2, 3) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.dropout(scores.softmax(dim=-1)) @ v


ATTENTIONS = {"simple": PlainSimple, "softmax": PlainSoftmax}


class PlainBlock(nn.Module):
    def __init__(self, mixer: PlainAttention, dim: int, hidden: int, dropout: float, skip: bool, eps: float) -> None:
        super().__init__()
        self.skip = skip
        self.mixer_norm = nn.LayerNorm(dim, eps)
        self.mixer = mixer
        self.feed_forward_norm = nn.LayerNorm(dim, eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        h = x + self.mixer(self.mixer_norm(x), mask)
        y = h + self.feed_forward(self.feed_forward_norm(h))
        return y + x if self.skip else y


class PlainEmbedding(nn.Module):
    def __init__(self, vocabulary: int, dim: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.cls = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(max_len, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        return torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)


class Straightforward(nn.Module):
    """forward(tokens [B * P, max_len]) -> logits [B, classes], with the paper's model and CLS pooling.

    `mixer` makes the attention of a block.
    """

    def __init__(
        self,
        mixer: Callable[[], PlainAttention],
        *,
        vocabulary: int,
        max_len: int,
        classes: int,
        documents: int,
        dim: int,
        depth: int,
        hidden: int,
        dropout: float,
        extra_skip: bool,
        norm_eps: float,
        final_norm: bool,
        mask: bool,
    ) -> None:
        super().__init__()
        self.documents, self.mask = documents, mask
        self.embedding = PlainEmbedding(vocabulary, dim, max_len)
        self.blocks = nn.ModuleList(
            PlainBlock(mixer(), dim, hidden, dropout, extra_skip, norm_eps) for _ in range(depth)
        )
        self.final_norm = nn.LayerNorm(dim, norm_eps) if final_norm else nn.Identity()
        if documents == 1:
            self.head = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, classes))
        else:
            half = hidden // 2
            layers = [nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, half), nn.ReLU()]
            self.head = nn.Sequential(*layers, nn.Linear(half, classes))

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.functional.pad(tokens != 0, (1, 0), value=True) if self.mask else None
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        pooled = self.final_norm(x)[:, 0]
        return self.head(pooled.reshape(-1, self.documents * pooled.shape[-1]))


def update(
    model: Straightforward,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    labels: Tensor,
    micro_batch: int,
    *,
    bf16: bool,
) -> float:
    """One training step on tokens [B * P, max_len] and labels [B], cut into micro-batches; returns its loss."""
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for start in range(0, len(labels), micro_batch):
        part = slice(start, start + micro_batch)
        rows = slice(start * model.documents, (start + micro_batch) * model.documents)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            logits = model(tokens[rows])
        loss = cross_entropy(logits, labels[part], reduction="sum") / len(labels)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
