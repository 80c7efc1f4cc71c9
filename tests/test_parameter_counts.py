"""Parameter counts of Google's configurations: as its code prints them, and by hand.

Printed in google-research/long-range-arena, issue 2: exact numbers by a reader of the released configurations, rounded
ones by another of the sizes in the paper. Our padding has an id, and so a vector, that theirs has not.
"""

import pytest
from support import composed

from lra.runs.build import assemble
from lra.runs.settings import settings_of


def parameters(*overrides: str) -> int:
    cfg = composed("protocol=lra", *overrides)
    return assemble(settings_of(cfg)).parameters - cfg.model.dim


def test_the_released_base_configuration_of_images() -> None:
    sizes = ("model.dim=32", "model.qkv_dim=32", "model.heads=1", "model.depth=1", "model.mlp_dim=64")
    assert parameters("task=image", "system=transformer", *sizes) == 52_266


def test_the_released_performer_of_images_and_the_transformer_that_is_as_large() -> None:
    """Count by hand, layer by layer: ids, CLS, positions, attention without biases, feed-forward net, norms, head."""
    dim, qkv, mlp = 128, 64, 128
    inputs = 256 * dim + dim + 1025 * dim
    block = 4 * dim * qkv + (dim * mlp + mlp) + (mlp * dim + dim) + 2 * 2 * dim
    head = 2 * dim + (dim * mlp + mlp) + (mlp * 10 + 10)
    assert inputs + block + head == 248_458
    assert parameters("task=image", "system=performer") == parameters("task=image", "system=transformer") == 248_458


@pytest.mark.parametrize(
    ("overrides", "printed"),  # sizes of arXiv:2011.04006, appendix A
    [
        (["task=listops", "model.depth=6", "model.mlp_dim=2048"], 19.9e6),
        (["task=text"], 3.5e6),
        (["task=matching"], 1.087e6),
        (["task=image", "model.depth=3", "model.pooling=mean"], 380e3),
        (["task=pathfinder", "model.dim=128", "model.qkv_dim=64", "model.mlp_dim=128"], 315e3),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_transformers_of_the_paper(overrides: list[str], printed: float) -> None:
    """The reader rounded some down and some up."""
    assert parameters("system=transformer", *overrides) == pytest.approx(printed, rel=0.005)
