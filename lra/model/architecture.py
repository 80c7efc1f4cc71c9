"""The settings of a model, as `model` in the configuration names them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The fields are the keys of `model`; what each means stands beside its value in `conf/`.

    With `key_mask` padded positions are masked; without it, as in the papers, padding takes part.
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
    feed_forward_output_gelu: bool
    positions: Literal["learned", "sinusoidal", "none"]
    position_std: NonNegativeFloat
    pixels: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    cls_position: bool
    pooling: Literal["cls", "mean", "max", "first", "last"]
    head_activation: Literal["gelu", "relu"]
    head_hidden: list[PositiveInt] | None
    pair_features: Literal["concat", "interaction"]
    weight_init: Literal["torch", "xavier"]
