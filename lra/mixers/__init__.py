"""Attention mechanisms, one module each. This module re-exports the names of `base` that new mechanisms import."""

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
