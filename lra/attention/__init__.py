"""Attention mechanisms. This module exports what a new mechanism imports from `lra.ops.mixer`."""

from importlib import import_module
from types import ModuleType

from lra.ops.mixer import (
    Attention,
    Card,
    Mixer,
    Shape,
    merge_heads,
    project_in,
    project_out,
    split_heads,
    without_padding,
)

__all__ = [
    "Attention", "Card", "Mixer", "Shape", "merge_heads", "project_in", "project_out", "split_heads", "without_padding",
]  # fmt: skip

MOVED = {  # former modules, whose names kept records have in `_target_`
    "cosformer": "linear",
    **dict.fromkeys(("gmm_rks", "gmm_prf", "fastfood_rks", "fastfood_prf"), "spectral"),
    **dict.fromkeys(("generative_rks", "generative_prf"), "spectral"),
}


def __getattr__(name: str) -> ModuleType:
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{MOVED[name]}")
