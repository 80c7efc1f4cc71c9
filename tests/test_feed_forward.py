"""The feed-forward net with folded scales: the numbers of its layers one by one."""

from functools import cache
from itertools import product

import pytest
import torch
from support import composed, saved_tensors
from torch import Tensor, nn

from lra.config import configure
from lra.model.architecture import Architecture
from lra.model.layers import FeedForward
from lra.ops.dropout import Over, set_keys

B, N, D, F = 3, 7, 5, 11
OVERS = ["values", "channels"]
NAMES = ["0.weight", "0.bias", "3.weight", "3.bias"]


@cache
def model_settings() -> dict:
    return configure.plain(composed())["model"]


def net(
    dropout: float, *, over: Over = "values", activation: str = "gelu", bias: bool = True, output_gelu: bool = False
) -> FeedForward:
    torch.manual_seed(1)
    values = {**model_settings(), "dim": D, "dropout": dropout, "dropout_over": over, "bias": bias}
    values |= {"feed_forward_activation": activation, "feed_forward_output_gelu": output_gelu}
    made = FeedForward(Architecture(**values), F).double()
    set_keys(made, seed=2, step=3, rows=[4, 0, 9])
    return made


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(B, N, D, dtype=torch.float64, requires_grad=True), torch.randn(B, N, D, dtype=torch.float64)


def passes(made: nn.Module, x: Tensor, weights: Tensor, *, layers: bool) -> list[Tensor]:
    """The value, and the gradients by the input and every weight."""
    y = nn.Sequential.forward(made, x) if layers else made(x)
    return [y, *torch.autograd.grad(y, [x, *made.parameters()], weights.to(y.dtype))]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", list(product(["gelu", "relu"], [True, False], [0.3], OVERS)))
def test_folded_scales_give_the_numbers_of_its_layers(options: tuple[str, bool, float, Over], training: bool) -> None:
    activation, bias, dropout, over = options
    made = net(dropout, over=over, activation=activation, bias=bias).train(training)
    x, weights = inputs()
    for actual, expected in zip(
        passes(made, x, weights, layers=False), passes(made, x, weights, layers=True), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    if training and dropout:
        assert (made(x) == 0).any()


def test_names_of_the_weights_are_those_of_the_layers() -> None:
    """Checkpoints know them."""
    assert [name for name, _ in net(0.1).named_parameters()] == NAMES
    assert [name for name, _ in net(0.1, bias=False).named_parameters()] == NAMES[::2]


def test_the_backward_pass_changes_nothing_that_is_kept() -> None:
    made = net(0.3).train()
    x, weights = inputs()
    y = made(x)
    before = weights.clone()
    once = torch.autograd.grad(y, [x, *made.parameters()], weights, retain_graph=True)
    again = torch.autograd.grad(y, [x, *made.parameters()], weights)
    assert all(torch.equal(first, second) for first, second in zip(once, again, strict=True))
    assert torch.equal(weights, before)


def test_it_keeps_no_more_than_two_hidden_layers() -> None:
    """The input, before and after the activation, the scaled weight, and 8 bytes for each drop."""
    made = net(0.3).train().float()
    x = torch.randn(B, N, D, requires_grad=True)
    with saved_tensors(made.state_dict().values()) as kept:
        y = made(x)
    drops = sum(layer.places(torch.ones(B, N, width)).numel() for layer, width in ((made[2], F), (made[4], D)))
    assert y.requires_grad and kept() == 4 * (B * N * (D + 2 * F) + D * F) + 8 * drops
