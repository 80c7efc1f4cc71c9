"""Dropout keyed by example."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from lra.core import streams
from lra.ops.dropout import Dropout, NoiseKey, _dropped, _kept, set_keys
from lra.ops.numbering import ColumnRun, Numbers, numbers_of, places_of


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
@pytest.mark.parametrize(
    ("numbers", "short", "long"),
    [
        ("order", (7, 13), (11, 13)),
        ("channels", (7, 13), (11, 13)),
        ("order", (3, 5, 13), (3, 11, 13)),
        ("order", (3, 7, 7), (3, 11, 7)),
        ("pairs", (3, 7, 7), (3, 17, 17)),
        ("pairs", (3, 1, 1), (3, 1, 17)),
        ("pairs", (3, 5, 5), (3, 5, 17)),
        (5, (3, 5, 5), (3, 5, 17)),
        (5, (3, 5, 7), (3, 5, 11)),
        (7, (3, 5, 5), (3, 7, 17)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "any"])
def test_padding_does_not_move_the_noise(p: float, numbers: Numbers, short: tuple, long: tuple, device: str) -> None:
    """Whatever the caller says of the axes of [L, F], or of a head's [n, m], the shorter is a corner of the longer."""
    key = NoiseKey(words=streams.key(1, "dropout"), step=3, layer=5, rows=[4, 0, 1, 3, 2])
    shorter, longer = (kept(key, torch.Size((5, *shape)), p, numbers, device) for shape in (short, long))
    corner = longer[tuple(slice(size) for size in (5, *short))]
    assert torch.equal(shorter, corner)
    assert not longer.all()


def kept(key: NoiseKey, shape: torch.Size, p: float, numbers: Numbers, device: str) -> torch.Tensor:
    """By the form for a CPU or for any device, True where a value is kept."""
    if device == "any":
        return _kept(key, shape, p, torch.device("cpu"), numbers)
    dropped = torch.from_numpy(_dropped(key, shape, p, numbers))
    return torch.ones(shape, dtype=torch.bool).flatten().index_fill_(0, dropped, False).view(shape)


@pytest.mark.parametrize("device", ["cpu", "any"])
def test_runs_of_columns_keep_their_numbers_where_they_are_cut(device: str) -> None:
    """Rows of 7 numbers and 3: the columns of the first run are shifted from row to row, the second is cut short."""
    key = NoiseKey(words=streams.key(1, "dropout"), step=3, layer=5, rows=[4, 0])
    whole = kept(key, torch.Size((2, 3, 11, 10)), 0.5, "order", device)
    first = torch.tensor([0, 2, -1, 4, -3])
    part = kept(
        key, torch.Size((2, 3, 5, 7)), 0.5, [ColumnRun(7, 5, first), ColumnRun(3, 2, torch.zeros_like(first))], device
    )
    for row in range(5):
        assert torch.equal(part[:, :, row, 5:], whole[:, :, row, 7:9])
        for column in range(5):
            if 0 <= column + first[row] < 7:
                assert torch.equal(part[:, :, row, column], whole[:, :, row, column + first[row]])
            elif device == "cpu":
                assert part[:, :, row, column].all()


@pytest.mark.parametrize("device", ["cpu", "any"])
def test_channels_are_dropped_at_all_positions_or_at_none(device: str) -> None:
    """At the rate, and independently of each other and of the example."""
    key = NoiseKey(words=streams.key(1, "dropout"), step=3, layer=5, rows=range(101))
    whole = kept(key, torch.Size((101, 7, 1009)), 0.1, "channels", device)
    assert torch.equal(whole.any(dim=1), whole.all(dim=1))
    gone = ~whole[:, 0]
    for share, expected in (
        (gone.double().mean(), 0.1),
        ((gone[:, 1:] & gone[:, :-1]).double().mean(), 0.01),
        ((gone[1:] & gone[:-1]).double().mean(), 0.01),
    ):
        assert abs(share - expected) < 4 * (expected / gone.numel()) ** 0.5


def test_over_says_what_is_dropped_together() -> None:
    layer = Dropout(0.5, "channels").train()
    set_keys(layer, seed=1, step=0, rows=range(5))
    out = layer(torch.ones(5, 7, 11))
    assert torch.equal(out.amin(dim=1), out.amax(dim=1))
    assert out.unique().tolist() == [0, 2]


@pytest.mark.parametrize(("rows", "columns"), [(7, 7), (5, 11), (1, 13), (1, 1)])
def test_pairs_are_numbered_as_positions_come(rows: int, columns: int) -> None:
    """Position after position: the keys that it reads among the earlier ones and itself, then who reads it."""
    order = []
    for position in range(columns):
        order += [(position, key) for key in range(position + 1)] if position < rows else []
        order += [(query, position) for query in range(min(position, rows))]
    flat = [i * columns + j for i, j in order]
    assert numbers_of((rows, columns), "pairs", torch.device("cpu"))[flat].tolist() == list(range(rows * columns))
    assert places_of(np.arange(rows * columns), (rows, columns), "pairs").tolist() == flat


def test_published_runs_meet_the_noise_that_they_met() -> None:
    """What is dropped of a feed-forward net's values, of a state, and of weights between positions."""
    key = NoiseKey(words=streams.key(1, "dropout"), step=3, layer=5, rows=[4, 0])
    digests = {
        ((2, 37, 41), "order"): "279523baf8cf136c",
        ((2, 1001), "order"): "f586acd674aae993",
        ((2, 3, 31, 31), "pairs"): "cf56d33bb7516464",
        ((2, 3, 1, 257), "pairs"): "9d8d197fc7029e8e",
    }
    for (shape, numbers), digest in digests.items():
        dropped = _dropped(key, shape, 0.3, numbers)
        assert hashlib.sha256(np.sort(dropped).astype("<i8")).hexdigest()[:16] == digest


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_of_accelerators_are_independent_at_the_rate(p: float) -> None:
    key = NoiseKey(words=streams.key(1, "dropout"), step=0, layer=0, rows=range(3))
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
    with pytest.raises(RuntimeError, match="call lra.ops.dropout.set_keys"):
        Dropout(0.5).train()(torch.ones(2, 3))
    layer = Dropout(0.5).train()
    set_keys(layer, seed=1, step=0, rows=range(3))
    with pytest.raises(RuntimeError, match="call lra.ops.dropout.set_keys"):
        layer(torch.ones(2, 3))


def test_streams_are_a_function_of_their_names() -> None:
    draws = streams.generator(5, "order", 2).random(3)
    np.testing.assert_array_equal(draws, streams.generator(5, "order", 2).random(3))
    for other in ((6, "order", 2), (5, "init", 2), (5, "order", 3), (5, "order")):
        assert (streams.generator(*other).random(3) != draws).all()
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
