"""Groups of a model's weights, by name: what `train.freeze`, `train.no_decay` and `init.take` can say."""

import re
from collections.abc import Iterable
from typing import Literal

GROUPS = {
    "embedding": r"embedding\.",
    "qkv": r"blocks\.\d+\.mixer\.(query|key|value)\.",
    "out": r"blocks\.\d+\.mixer\.out\.",
    "mixer": r"blocks\.\d+\.(mixer|short_conv)\.",
    "feed_forward": r"blocks\.\d+\.feed_forward\.",
    "norms": r"(blocks\.\d+\.((mixer|feed_forward)_norm|mixer\.(.*[._])?norm)|final_norm)[._]",
    "head": r"head\.",
    "biases": r"(.*[._])?(bias|shifts?)$",
}
Group = Literal[tuple(GROUPS)]


def belongs(name: str, groups: Iterable[Group]) -> bool:
    """Whether the weight of that name is in one of the groups."""
    return any(re.match(GROUPS[group], name) for group in groups)
