"""Attention mechanisms. This module exports what a new mechanism imports from `lra.mixers.base`."""

from lra.mixers.base import (
    Attention,
    Mixer,
    MixerConfig,
    MixerInfo,
    merge_heads,
    project_in,
    project_out,
    split_heads,
    without_padding,
)

__all__ = [
    "Attention",
    "Mixer",
    "MixerConfig",
    "MixerInfo",
    "merge_heads",
    "project_in",
    "project_out",
    "split_heads",
    "without_padding",
]
