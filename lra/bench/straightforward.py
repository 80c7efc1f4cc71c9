"""The yardstick: SimpleTRON as one writes it with the building blocks of PyTorch, no thought given to speed.

Every example is padded to the full length, three projections and two products make the attention, the last block
computes every position, dropout is `nn.Dropout`, the optimiser is `torch.optim.AdamW` as it comes. The names of the
parameters are those of `lra.model.Model`, so both can hold the same weights.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, max_len: int, dropout: float, out_proj: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = max_len**-0.5
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim) if out_proj else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        scale = self.scale
        if mask is not None:
            k = k * mask[:, None, :, None]
            scale = mask.sum(dim=1)[:, None, None, None] ** -0.5
        state = self.dropout(k.transpose(2, 3) @ v * scale)
        return self.out((q @ state).transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(
        self, dim: int, heads: int, hidden: int, max_len: int, dropout: float, out_proj: bool, skip: bool, eps: float
    ) -> None:
        super().__init__()
        self.skip = skip
        self.mixer_norm = nn.LayerNorm(dim, eps)
        self.mixer = Attention(dim, heads, max_len, dropout, out_proj)
        self.feed_forward_norm = nn.LayerNorm(dim, eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        h = x + self.mixer(self.mixer_norm(x), mask)
        y = h + self.feed_forward(self.feed_forward_norm(h))
        return y + x if self.skip else y


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, dim: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.cls = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(max_len, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        return torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)


class Straightforward(nn.Module):
    """forward(tokens [B * P, max_len]) -> logits [B, classes], with the paper's model and CLS pooling."""

    def __init__(
        self,
        *,
        vocabulary: int,
        max_len: int,
        classes: int,
        documents: int,
        dim: int,
        heads: int,
        depth: int,
        hidden: int,
        dropout: float,
        out_proj: bool,
        extra_skip: bool,
        norm_eps: float,
        mask: bool,
    ) -> None:
        super().__init__()
        self.documents, self.mask = documents, mask
        self.embedding = Embedding(vocabulary, dim, max_len)
        sizes = (dim, heads, hidden, max_len + 1, dropout, out_proj, extra_skip, norm_eps)
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(depth))
        self.final_norm = nn.LayerNorm(dim, norm_eps)
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
        return self.head(pooled.view(-1, self.documents * pooled.shape[-1]))


def update(
    model: Straightforward, optimizer: torch.optim.Optimizer, tokens: Tensor, labels: Tensor, micro_batch: int
) -> float:
    """One training step on tokens [B * P, max_len] and labels [B], cut into micro-batches; returns its loss."""
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for start in range(0, len(labels), micro_batch):
        part = slice(start, start + micro_batch)
        rows = slice(start * model.documents, (start + micro_batch) * model.documents)
        loss = cross_entropy(model(tokens[rows]), labels[part], reduction="sum") / len(labels)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
