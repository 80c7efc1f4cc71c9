"""The forms position by position of `lra-bench`: the same layers, and nothing else is replaced."""

import pytest
import torch
from support import mixer_of, noise

from lra.bench import stepwise
from lra.core.errors import UserError
from lra.ops import scan

RECURRENCES = ["gated_deltanet", "gla", "lru", "mamba2", "mlstm", "rwkv7", "s5"]


@pytest.mark.parametrize("name", RECURRENCES)
def test_the_same_values_and_gradients(name: str) -> None:
    """In float64, at a length that is no multiple of a chunk."""
    dim, length = 14, 2 * scan.CHUNK + 3
    mixer = mixer_of(name, dim=dim, qkv_dim=dim, heads=2, max_positions=length, dropout=0.0)
    x = noise(2, length, dim).requires_grad_()
    weights = noise(2, length, dim, seed=3)
    inputs = [x, *mixer.parameters()]

    def passes(layer: torch.nn.Module) -> list[torch.Tensor]:
        y = layer(x)
        return [y, *torch.autograd.grad((y * weights).sum(), inputs)]

    loops = stepwise.Stepwise(mixer, name)
    for mine, theirs in zip(passes(loops), passes(mixer), strict=True):
        assert (mine - theirs).abs().max() <= 1e-9 * max(1.0, theirs.abs().max())


def test_a_layer_without_a_recurrence_is_refused() -> None:
    with pytest.raises(UserError, match="its layer has no recurrence over positions"):
        stepwise.Stepwise(mixer_of("simple"), "stepwise:simple")


def test_only_what_runs_inside_is_replaced() -> None:
    from lra.attention import gla

    with stepwise.replaced() as calls:
        assert gla.channel_product is not scan.channel_product
        gla.channel_product(*(noise(1, 1, 5, 7) for _ in range(4)))
    assert calls == ["channel_product"]
    assert gla.channel_product is scan.channel_product
