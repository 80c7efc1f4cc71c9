"""One file for each mechanism. What one imports to write another is here: the contract of a mixer, which stands in
`lra.ops.mixer`."""

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
