"""Dropout keyed by example."""

import numpy as np
import pytest
import torch
from torch import nn

from lra import streams
from lra.dropout import Dropout, Key, _dropped, _kept, set_keys


def masks(
    p: float, rows: list[int], *, seed: int = 1, step: int = 0, shape: tuple[int, ...] = (37, 41)
) -> torch.Tensor:
    layers = nn.Sequential(Dropout(p), Dropout(p)).train()
    set_keys(layers, seed=seed, step=step, rows=rows)
    x = torch.ones(len(rows), *shape)
    return torch.stack([layer(x) for layer in layers], dim=1)  # [rows, layers, *shape]


def test_keeps_the_mean_and_the_share() -> None:
    out = masks(0.1, list(range(101)))
    share = (out == 0).double().mean()
    assert abs(share - 0.1) < 4 * (0.09 / out.numel()) ** 0.5
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.9], rel=1e-4)


@pytest.mark.parametrize("p", [1e-9, 0.003, 0.1, 0.2, 0.5, 0.9])
def test_drops_are_independent_at_the_rate(p: float) -> None:
    """The share of drops, and of drops right after a drop, and the longest gaps, as for independent draws."""
    size = 1_000_003
    out = masks(p, [0], shape=(size,))[0, 0] == 0
    assert abs(out.double().mean() - p) < 4 * (p / size) ** 0.5 + 1.6e-5
    pairs = (out[1:] & out[:-1]).double().mean()
    assert abs(pairs - p * p) < 5 * (p * p / size) ** 0.5 + 1e-5
    gaps = torch.diff(out.nonzero().flatten())
    for length in (1, 2, 17, 61):
        expected = (1 - p) ** length
        if len(gaps) > 100 and expected > 1e-3:
            assert abs((gaps > length).double().mean() - expected) < 5 * (expected / len(gaps)) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize(("short", "long"), [((7, 13), (11, 13)), ((3, 5, 13), (3, 11, 13)), ((3, 7, 7), (3, 17, 17))])
@pytest.mark.parametrize("device", ["cpu", "any"])
def test_padding_does_not_move_the_noise(p: float, short: tuple, long: tuple, device: str) -> None:
    """[L, F], the heads of weights [H, n, m] and of square weights [H, L, L]: the shorter is a corner of the longer."""
    shapes = torch.Size((2, *short)), torch.Size((2, *long))
    key = Key(words=streams.key(1, "dropout"), step=3, layer=5, rows=[4, 0])
    if device == "cpu":
        one, two = (
            torch.ones(shape).flatten().index_fill_(0, torch.from_numpy(_dropped(key, shape, p)), 0).view(shape)
            for shape in shapes
        )
    else:
        one, two = (_kept(key, shape, p, torch.device("cpu")) for shape in shapes)
    corner = two[tuple(slice(size) for size in shapes[0])]
    assert torch.equal(one, corner)
    assert not one.all()


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_of_accelerators_are_independent_at_the_rate(p: float) -> None:
    key = Key(words=streams.key(1, "dropout"), step=0, layer=0, rows=range(3))
    kept = _kept(key, torch.Size((3, 101, 1009)), p, torch.device("cpu"))
    for share, expected in (
        ((~kept).double().mean(), p),
        ((~kept[:, 1:] & ~kept[:, :-1]).double().mean(), p * p),
        ((~kept[:, :, 1:] & ~kept[:, :, :-1]).double().mean(), p * p),
        ((~kept[1:] & ~kept[:-1]).double().mean(), p * p),
    ):
        assert abs(share - expected) < 5 * (expected / kept.numel()) ** 0.5


def test_a_row_does_not_depend_on_its_batch() -> None:
    together, apart = masks(0.5, [3, 8, 5]), masks(0.5, [5])
    assert torch.equal(together[2], apart[0])


def test_rows_layers_steps_and_seeds_are_independent() -> None:
    first, second = masks(0.5, [0, 1])
    others = [second[0], first[1], masks(0.5, [0], step=1)[0, 0], masks(0.5, [0], seed=2)[0, 0]]
    size = first[0].numel()
    for other in others:
        agreement = ((first[0] == 0) == (other == 0)).double().mean()
        assert abs(agreement - 0.5) < 4 * (0.25 / size) ** 0.5


def test_gradient_passes_where_the_value_was_kept() -> None:
    layer = Dropout(0.3).train()
    set_keys(layer, seed=1, step=0, rows=[4])
    x = torch.randn(1, 29, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_is_nothing_in_evaluation_and_at_rate_zero() -> None:
    x = torch.randn(2, 3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_without_keys_training_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call lra.dropout.set_keys"):
        Dropout(0.5).train()(torch.ones(2, 3))
    layer = Dropout(0.5).train()
    set_keys(layer, seed=1, step=0, rows=range(3))
    with pytest.raises(RuntimeError, match="call lra.dropout.set_keys"):
        layer(torch.ones(2, 3))


def test_streams_are_a_function_of_their_names() -> None:
    one = streams.generator(5, "order", 2).random(3)
    np.testing.assert_array_equal(one, streams.generator(5, "order", 2).random(3))
    for other in ((6, "order", 2), (5, "init", 2), (5, "order", 3), (5, "order")):
        assert (streams.generator(*other).random(3) != one).all()
    assert streams.key(7, "dropout").tolist() == [17559002276220262541, 3147876876828449332]


@pytest.mark.gpu
def test_masks_on_a_gpu_do_not_depend_on_the_batch() -> None:
    layer = Dropout(0.5).train()
    x = torch.ones(3, 1009, device="cuda")
    set_keys(layer, seed=1, step=0, rows=[3, 8, 5])
    together = layer(x)
    set_keys(layer, seed=1, step=0, rows=[5])
    assert torch.equal(together[2:], layer(x[:1]))
    assert abs((together == 0).double().mean() - 0.5) < 0.05
