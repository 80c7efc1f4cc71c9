"""Define the settings of a model (the keys of `model` in the configuration) and the groups of the model's weights."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from lra.config.values import STRICT

GROUPS = {  # regular expressions of parameter names, for `train.freeze`, `train.no_decay` and `init.take`
    "embedding": r"embedding\.",
    "qkv": r"blocks\.\d+\.mixer\.(query|key|value)\.",
    "out": r"blocks\.\d+\.mixer\.out\.",
    "mixer": r"blocks\.\d+\.(mixer|short_conv)\.",
    "feed_forward": r"blocks\.\d+\.feed_forward\.",
    "norms": r"(blocks\.\d+\.((mixer|feed_forward)_norm|mixer\.(.*[._])?norm)|final_norm)[._]",
    "head": r"head\.",
    "biases": r"(.*[._])?(bias|shifts?)$",
}
if TYPE_CHECKING:
    Group = str
else:
    Group = Literal[tuple(GROUPS)]


def belongs(name: str, groups: Iterable[Group]) -> bool:
    """Return True if the parameter called `name` is in one of the groups."""
    return any(re.match(GROUPS[group], name) for group in groups)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Architecture:
    """Settings of a model; `conf/` documents each key.

    If `key_mask` is true, padded positions are masked. Otherwise mixers treat padding as tokens, as in the papers.
    """

    dim: PositiveInt
    qkv_dim: PositiveInt
    heads: PositiveInt
    depth: Annotated[int, Field(gt=0, le=1000)]
    mlp_dim: Annotated[int, Field(ge=2)]
    feed_forward_dim: NonNegativeInt | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    out_proj: bool
    extra_skip: bool
    norm: Literal["pre", "post", "none"]
    norm_eps: PositiveFloat
    norm_over: Literal["batch"] | None
    final_norm: bool
    key_mask: bool
    attention_bias: bool
    bias: bool
    short_conv: Annotated[int, Field(ge=2)] | None
    feed_forward_activation: Literal["gelu", "relu"]
    dropout_over: Literal["values", "channels"]
    mixer_dropout: bool
    embedding_dropout: bool
    embedding_norm: bool
    positions: Literal["learned", "sinusoidal", "none"]
    position_std: NonNegativeFloat
    pixels: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    cls_position: bool
    pooling: Literal["cls", "mean", "max", "first", "last"]
    head_activation: Literal["gelu", "relu"]
    head_hidden: list[PositiveInt] | None
    pair_features: Literal["concat", "interaction"]
    weight_init: Literal["torch", "xavier"]
