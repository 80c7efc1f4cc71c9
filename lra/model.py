"""The encoder and its heads: the only place that knows the block equations.

Legend: B examples, P documents per example, L tokens, N positions (L, and the CLS if there is one), D width.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.attention import Mixer, Shape, at_least_float32, autocast_dtype
from lra.dropout import Dropout
from lra.errors import UserError
from lra.feed_forward import ACTIVATIONS, FeedForward
from lra.groups import GROUPS, Group, belongs
from lra.tasks import PADDING, Facts


class Block(nn.Module):
    """One encoder block around a mixer A and a feed-forward net F.

    Pre-norm:  h = x + A(n1(x));  y = h + F(n2(h)) [+ x].  Post-norm:  h = n1(x + A(x));  y = n2(h + F(h) [+ x]).
    Without norms, n1 and n2 are nothing. The bracket is the extra skip of SimpleTRON's Simple-Res and Simple-ResL
    (section 5.2): from the input of the block to its output.
    """

    def __init__(
        self,
        mixer: Mixer,
        feed_forward: nn.Module,
        *,
        dim: int,
        norm: str,
        norm_eps: float,
        extra_skip: bool,
        mixer_dropout: float,
    ) -> None:
        super().__init__()
        self.post_norm = norm == "post"
        self.extra_skip = extra_skip
        self.mixer_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim, norm_eps)
        self.mixer = mixer
        self.mixer_dropout = Dropout(mixer_dropout)
        self.feed_forward_norm = nn.Identity() if norm == "none" else nn.LayerNorm(dim, norm_eps)
        self.feed_forward = feed_forward

    def forward(
        self, x: Tensor, key_mask: Tensor | None, memory: Tensor | None, reads: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, N, D], and the memory that some mixers hand from block to block; `reads`: only so many outputs."""
        if self.post_norm:
            mixed, memory = self.mixer.mix(self.mixer_input(x), key_mask, memory, reads)
            x = x[:, :reads]
            _check_output(self.mixer, mixed, x)
            h = self.mixer_norm(x + self.mixer_dropout(mixed))
            y = h + self.feed_forward(h)
            return self.feed_forward_norm(y + x if self.extra_skip else y), memory
        mixed, memory = self.mixer.mix(self.mixer_input(x), key_mask, memory, reads)
        x = x[:, :reads]
        _check_output(self.mixer, mixed, x)
        h = x + self.mixer_dropout(mixed)
        y = h + self.feed_forward(self.feed_forward_norm(h))
        return y + x if self.extra_skip else y, memory

    def mixer_input(self, x: Tensor) -> Tensor:
        """What the mixer reads where x enters the block."""
        return x if self.post_norm else self.mixer_norm(x)


class Embedding(nn.Module):
    """Token vectors N(0, 1) with a zero row for padding, positions, and a CLS vector in front; then the norm."""

    def __init__(
        self,
        facts: Facts,
        *,
        dim: int,
        positions: str,
        cls: bool,
        cls_position: bool,
        norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(facts.vocab_size, dim, padding_idx=PADDING)
        self.cls = nn.Parameter(torch.zeros(dim)) if cls else None
        self.cls_position = cls and cls_position
        length = facts.max_len + self.cls_position
        if positions == "learned":
            self.positions = nn.Parameter(torch.zeros(length, dim))
        else:
            self.register_buffer("positions", sinusoids(length, dim), persistent=False)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.cls_position:
            x = self._prepend_cls(x)
        x = x + self.positions[: x.shape[1]]
        if self.cls is not None and not self.cls_position:
            x = self._prepend_cls(x)
        return self.dropout(self.norm(x))

    def _prepend_cls(self, x: Tensor) -> Tensor:
        return torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)


def document_head(features: int, hidden: int, facts: Facts, activation: str, bias: bool) -> nn.Sequential:
    """Pooled documents [B, P D] (or features of a pair) -> logits [B, classes].

    One document: Linear, activation, Linear. A pair: two hidden layers with ReLU (the paper's Table 3).
    """
    if facts.documents == 1:
        widths, between = [features, hidden, facts.classes], ACTIVATIONS[activation]
    else:
        widths, between = [features, hidden, hidden // 2, facts.classes], nn.ReLU
    layers = [nn.Linear(widths[0], widths[1], bias=bias)]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [between(), nn.Linear(inputs, outputs, bias=bias)]
    return nn.Sequential(*layers)


class Model(nn.Module):
    """forward(tokens [B * P, L]) -> logits [B, classes], or [B, L, classes] where every next token is predicted.

    The keywords are the keys of `model` in the configuration. With `key_mask` padded positions are masked and the
    batch may be padded to any length up to `max_len`; without it, as in the papers, padding takes part, and every
    batch must be padded to `max_len`.
    """

    def __init__(
        self,
        attention: Callable[[Shape], Mixer],
        facts: Facts,
        *,
        dim: PositiveInt,
        qkv_dim: PositiveInt,
        heads: PositiveInt,
        depth: Annotated[int, Field(gt=0, le=1000)],
        mlp_dim: Annotated[int, Field(ge=2)],
        dropout: Annotated[float, Field(ge=0, lt=1)],
        out_proj: bool,
        extra_skip: bool,
        norm: Literal["pre", "post", "none"],
        norm_eps: PositiveFloat,
        final_norm: bool,
        key_mask: bool,
        attention_bias: bool,
        bias: bool,
        feed_forward_activation: Literal["gelu", "relu"],
        mixer_dropout: bool,
        embedding_dropout: bool,
        embedding_norm: bool,
        feed_forward_output_gelu: bool,
        positions: Literal["learned", "sinusoidal"],
        cls_position: bool,
        pooling: Literal["cls", "mean", "first", "last"],
        head_activation: Literal["gelu", "relu"],
        pair_features: Literal["concat", "interaction"],
        weight_init: Literal["torch", "xavier"],
    ) -> None:
        super().__init__()
        _check_widths(dim=dim, qkv_dim=qkv_dim, heads=heads, out_proj=out_proj, positions=positions)
        self.max_len = facts.max_len
        self.documents = facts.documents
        self.key_mask = key_mask
        self.pooling = pooling if facts.objective == "classify" else "none"
        self.interaction = pair_features == "interaction"
        cls = self.pooling == "cls"
        self.embedding = Embedding(
            facts,
            dim=dim,
            positions=positions,
            cls=cls,
            cls_position=cls_position,
            norm=nn.LayerNorm(dim, norm_eps) if embedding_norm else nn.Identity(),
            dropout=dropout if embedding_dropout else 0.0,
        )
        shape = Shape(
            dim=dim,
            qkv_dim=qkv_dim,
            heads=heads,
            max_len=facts.max_len + cls,
            bias=attention_bias,
            out_proj=out_proj,
            dropout=dropout,
            causal=facts.objective == "next_token",
            layer=0,
        )
        self.blocks = nn.ModuleList(
            Block(
                attention(replace(shape, layer=layer)),
                FeedForward(
                    dim,
                    mlp_dim,
                    dropout,
                    activation=feed_forward_activation,
                    output_gelu=feed_forward_output_gelu,
                    bias=bias,
                ),
                dim=dim,
                norm=norm,
                norm_eps=norm_eps,
                extra_skip=extra_skip,
                mixer_dropout=dropout if mixer_dropout else 0.0,
            )
            for layer in range(depth)
        )
        _check_mixer(self.blocks[0].mixer, key_mask=key_mask, pooling=self.pooling)
        if self.interaction and facts.documents != 2:
            raise UserError(f"model.pair_features=interaction: expected a task of two documents, {facts.name} has one")
        self.final_norm = nn.LayerNorm(dim, norm_eps) if final_norm else nn.Identity()
        if self.pooling == "none":
            self.head: nn.Module = nn.Linear(dim, facts.classes, bias=bias)
        else:
            features = dim * (4 if self.interaction else facts.documents)
            self.head = document_head(features, mlp_dim, facts, head_activation, bias)
        if weight_init == "xavier":
            self.apply(_xavier)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = self._mask(tokens) if self.key_mask and self.pooling != "none" else None
        x, memory = self.embedding(tokens), None
        if mask is not None:  # mixers want finite numbers there, whatever the row of padding holds
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        for block in self.blocks[:-1]:
            x, memory = block(x, mask, memory)
        x, _ = self.blocks[-1](x, mask, memory, 1 if self.pooling in ("cls", "first") else None)
        x = self.final_norm(x)
        if self.pooling == "none":
            return self.head(x)
        pooled = self._pool(x, mask).unflatten(0, (-1, self.documents))
        if self.interaction:
            one, two = pooled.unbind(1)
            return self.head(torch.cat([one, two, one * two, one - two], dim=-1))
        return self.head(pooled.flatten(1))

    def freeze(self, groups: Iterable[Group]) -> None:
        """Weights of these groups are not trained."""
        for group in groups:
            frozen = [parameter for name, parameter in self.named_parameters() if belongs(name, [group])]
            if not frozen:
                raise UserError(f"train.freeze: this model has no weights of the group {group}: {GROUPS[group]}")
            for parameter in frozen:
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError("train.freeze: nothing is left to train")

    def redraw(self, seed: int, step: int) -> None:
        """Let mixers with random features draw those of this training step."""
        for block in self.blocks:
            block.mixer.redraw(seed, step)

    def _mask(self, tokens: Tensor) -> Tensor:
        """[B * P, N], True at the CLS and at real tokens."""
        real = tokens != PADDING
        return nn.functional.pad(real, (1, 0), value=True) if self.pooling == "cls" else real

    def _pool(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.pooling == "last":
            return x[:, -1] if mask is None else x[torch.arange(len(x)), mask.sum(dim=1).clamp(min=1) - 1]
        if self.pooling != "mean":
            return x[:, 0]
        x = at_least_float32(x)  # so that tokens are not counted in bf16
        if mask is None:
            return x.mean(dim=1)
        real = mask.unsqueeze(-1)
        return x.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def sinusoids(length: int, dim: int) -> Tensor:
    """Fixed positions [length, dim] of Long Range Arena: sines in the first half of the width, cosines in the second,
    wavelengths from 2 pi to 20000 pi in geometric progression."""
    half = dim // 2
    rates = torch.exp(torch.arange(half) * (-math.log(10_000.0) / max(half - 1, 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_widths(*, dim: int, qkv_dim: int, heads: int, out_proj: bool, positions: str) -> None:
    if qkv_dim % heads:
        raise UserError(f"model.heads={heads} does not divide model.qkv_dim={qkv_dim}")
    if not out_proj and qkv_dim != dim:
        raise UserError(
            f"model.qkv_dim={qkv_dim} differs from model.dim={dim}: a variant without output projection "
            "(simple, simple_res) adds the heads to the residual stream, so they must be equal"
        )
    if positions == "sinusoidal" and dim % 2:
        raise UserError(f"model.positions=sinusoidal: expected an even model.dim, got {dim}")


def _check_output(mixer: Mixer, mixed: Tensor, x: Tensor) -> None:
    """What a mixer gives must be like x, to which it is added: a 1 in its shape would spread it without a word."""
    if mixed.shape != x.shape or mixed.dtype not in (x.dtype, autocast_dtype(x)):
        given, wanted = (f"{list(one.shape)} in {str(one.dtype).removeprefix('torch.')}" for one in (mixed, x))
        raise UserError(f"{type(mixer).__name__} gives {given}, expected {wanted} (documents, positions, model.dim)")


def _check_mixer(mixer: Mixer, *, key_mask: bool, pooling: str) -> None:
    name = type(mixer).__name__
    if mixer.shape.causal and not mixer.can_be_causal:
        raise UserError(f"{name} has no causal form, which predicting the next token needs: choose another attention")
    if key_mask and pooling != "none" and not mixer.maskable:
        raise UserError(f"{name} cannot mask padding: use model.key_mask=false (protocol=paper) or another attention")
    if mixer.causal and pooling in ("cls", "first"):
        raise UserError(
            f"{name} as configured sees no later position, so model.pooling={pooling} would read the first position "
            "alone: use model.pooling=mean or model.pooling=last"
        )
    if not mixer.shape.out_proj and not mixer.projects_out:
        raise UserError(
            f"{name} has no output projection to leave out: use variant=transformer, "
            "or variant=simple_resl for the extra skip"
        )
