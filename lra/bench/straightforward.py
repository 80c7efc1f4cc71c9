"""SimpleTRON and the Transformer of its paper in plain PyTorch: the reference of `lra-bench what=step` and of tests.

Every example is padded to the full length, the last block computes every position, dropout is `nn.Dropout`, and the
optimiser is `torch.optim.AdamW`. Parameters are named as in `lra.network.model.Model`, so that both models can load the
same weights.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lra.core.errors import UserError
from lra.datasets.task import TaskSpec

Values = Mapping[str, Any]
MODEL = {  # the only model settings that this implementation supports
    "norm": "pre", "attention_bias": True, "bias": True, "feed_forward_activation": "gelu", "dropout_over": "values",
    "short_conv": None, "mixer_dropout": False, "embedding_dropout": False,
    "positions": "learned", "position_std": 0.0, "cls_position": False, "pooling": "cls", "head_activation": "gelu",
    "pair_features": "concat",
}  # fmt: skip


class Attention(nn.Module):
    """Multi-head projections around the method `attend` of a subclass."""

    def __init__(self, model: Values, scale: float) -> None:
        super().__init__()
        dim, self.heads, self.scale = model["dim"], model["heads"], scale
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim) if model["out_proj"] else nn.Identity()
        self.dropout = nn.Dropout(model["dropout"])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs [B, N, D] of x [B, N, D]; mask [B, N] is True at real tokens."""
        # [B, N, D] -> [B, H, N, Dh]
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))  # type: ignore[operator]


class Simple(Attention):
    """Q (K^T V) * scale; where padding is masked, the scale is 1 / sqrt(number of real positions)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scale: Tensor | float = self.scale
        if mask is not None:
            k = k * mask[:, None, :, None]
            scale = mask.sum(dim=1).to(q.dtype)[:, None, None, None] ** -0.5
        return q @ self.dropout(k.transpose(2, 3) @ v * scale)


class Softmax(Attention):
    """softmax(Q K^T * scale) V, with explicit weights."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(2, 3) * self.scale  # [B, H, N, N]
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.dropout(scores.softmax(dim=-1)) @ v


class Block(nn.Module):
    def __init__(self, mixer: Attention, model: Values) -> None:
        super().__init__()
        dim, hidden, drop = model["dim"], model["mlp_dim"], model["dropout"]
        self.extra_skip, self.mixer = model["extra_skip"], mixer
        self.mixer_norm, self.feed_forward_norm = (nn.LayerNorm(dim, model["norm_eps"]) for _ in range(2))
        layers = [nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(drop), nn.Linear(hidden, dim), nn.Dropout(drop)]
        self.feed_forward = nn.Sequential(*layers)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        h = x + self.mixer(self.mixer_norm(x), mask)
        y = h + self.feed_forward(self.feed_forward_norm(h))
        return y + x if self.extra_skip else y


class Embedding(nn.Module):
    def __init__(self, dim: int, spec: TaskSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab_size, dim, padding_idx=0)
        self.cls = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(spec.max_len, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        return torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)


class Straightforward(nn.Module):
    """The paper's model with CLS pooling: tokens [B * P, max_len] -> logits [B, classes], P documents per example.

    Raises UserError if the configuration asks for another model.
    """

    def __init__(self, attention: Values, model: Values, spec: TaskSpec) -> None:
        super().__init__()
        if spec.objective != "classify":
            raise UserError(f"{spec.name}: the straightforward model is for classification only")
        expect("model", model, MODEL)
        dim, hidden = model["dim"], model["mlp_dim"]
        self.documents, self.key_mask = spec.documents, model["key_mask"]
        self.embedding = Embedding(dim, spec)
        mixers = (straightforward_attention(attention, model, spec.max_len + 1) for _ in range(model["depth"]))
        self.blocks = nn.ModuleList(Block(mixer, model) for mixer in mixers)
        self.final_norm = nn.LayerNorm(dim, model["norm_eps"]) if model["final_norm"] else nn.Identity()
        if spec.documents == 1:
            self.head = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, spec.classes))
        else:
            layers = [nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU()]
            self.head = nn.Sequential(*layers, nn.Linear(hidden // 2, spec.classes))

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.functional.pad(tokens != 0, (1, 0), value=True) if self.key_mask else None
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        pooled = self.final_norm(x)[:, 0]  # [B * P, D], at the CLS token
        return self.head(pooled.reshape(-1, self.documents * pooled.shape[-1]))  # [B, P * D] -> [B, classes]


def straightforward_attention(attention: Values, model: Values, positions: int) -> Attention:
    """Return a configured attention in plain PyTorch. Raises UserError if this module does not implement it."""
    expect("model", model, {"qkv_dim": model["dim"], "attention_bias": True})
    if attention["_target_"] == "lra.mixers.simple.Simple":
        expect("attention", attention, {"scale": "valid" if model["key_mask"] else "length", "dropout_on": "state"})
        return Simple(model, positions**-0.5)
    if attention["_target_"] == "lra.mixers.softmax.Softmax":
        whole = attention["scale"] == "qkv_dim"
        return Softmax(model, (model["dim"] if whole else model["dim"] // model["heads"]) ** -0.5)
    raise UserError("attention: only simple and softmax have a straightforward form")


def expect(group: str, values: Values, expected: Values) -> None:
    """Raise UserError if one of `values` differs from the expected one."""
    for key, value in expected.items():
        if values[key] != value:
            raise UserError(
                f"{group}.{key}={values[key]}: the straightforward step has {value}; use protocol=paper or strict"
            )


def update(
    model: Straightforward, optimizer: torch.optim.Optimizer, tokens: Tensor, labels: Tensor, size: int, *, bf16: bool
) -> float:
    """Train one step on tokens [B * P, max_len] and labels [B] in micro-batches of `size` examples; return the loss."""
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for part, targets in zip(tokens.split(size * model.documents), labels.split(size), strict=True):
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            logits = model(part)
        loss = cross_entropy(logits, targets, reduction="sum") / len(labels)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
