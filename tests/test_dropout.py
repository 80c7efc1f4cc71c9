"""Statistics of the noise of training, and the coordinates on which it depends."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from lra.core import streams
from lra.core.errors import UserError
from lra.ops.dropout import Dropout, Gumbel, set_keys


def masks(
    p: float, rows: list[int], *, seed: int = 1, step: int = 0, shape: tuple[int, ...] = (37, 41), hashed: bool = False
) -> torch.Tensor:
    layers = nn.Sequential(Dropout(p), Dropout(p)).train()
    for layer in layers:
        layer.hashed = hashed
    set_keys(layers, seed=seed, step=step, documents=rows)
    x = torch.ones(len(rows), *shape)
    return torch.stack([layer(x) for layer in layers], dim=1)  # [rows, layers, *shape]


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("p", [1e-9, 0.003, 0.1, 0.5, 0.9])
def test_drops_are_independent_at_the_rate(p: float, hashed: bool) -> None:
    """Fractions of drops, pairs of drops and gaps are those of independent draws; kept values are scaled."""
    size = 300_007
    values = masks(p, [0], shape=(size,), hashed=hashed)[0, 0]
    out = values == 0
    assert values[~out].unique().tolist() == pytest.approx([1 / (1 - p)])
    assert abs(out.double().mean() - p) < 4 * (p / size) ** 0.5 + 1.6e-5
    pairs = (out[1:] & out[:-1]).double().mean()
    assert abs(pairs - p * p) < 5 * (p * p / size) ** 0.5 + 1e-5
    gaps = torch.diff(out.nonzero().flatten())
    for length in (1, 2, 17, 61):
        expected = (1 - p) ** length
        if len(gaps) > 100 and expected > 1e-3:
            assert abs((gaps > length).double().mean() - expected) < 5 * (expected / len(gaps)) ** 0.5


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize(
    ("short", "long"),
    [((7, 13), (11, 13)), ((3, 5, 13), (3, 11, 13)), ((3, 7, 7), (3, 17, 17)), ((3, 1, 1), (3, 1, 37))],
)
def test_padding_does_not_move_the_noise(short: tuple, long: tuple, hashed: bool) -> None:
    """The noise of a shorter [L, F], or of weights [H, n, m], is a corner of the noise of a longer one."""
    shorter, longer = (masks(0.3, [4, 0], shape=shape, hashed=hashed)[:, 0] for shape in (short, long))
    assert torch.equal(shorter, longer[tuple(slice(size) for size in (2, *short))])
    assert 0 < (longer == 0).double().mean() < 1


def test_noise_of_given_columns_is_that_of_their_coordinates() -> None:
    """Sparse patterns need it: their keys differ from query to query."""
    layer = Dropout(0.5).train()
    set_keys(layer, seed=1, step=0, documents=[2])
    layer.hashed = True
    whole = layer(torch.ones(1, 3, 5, 29))
    columns = torch.randint(29, (5, 4))
    picked = layer(torch.ones(1, 3, 5, 4), columns=columns)
    assert torch.equal(picked, whole.gather(3, columns.expand(1, 3, -1, -1)))


@pytest.mark.parametrize("hashed", [True, False])
def test_channels_are_dropped_at_all_positions_or_at_none(hashed: bool) -> None:
    """They are dropped at the rate, independently of each other and of the document."""
    layer = Dropout(0.1, "channels").train()
    layer.hashed = hashed
    set_keys(layer, seed=1, step=0, documents=range(101))
    whole = layer(torch.ones(101, 7, 1009)) != 0
    assert torch.equal(whole.any(dim=1), whole.all(dim=1))
    gone = ~whole[:, 0]
    for share, expected in (
        (gone.double().mean(), 0.1),
        ((gone[:, 1:] & gone[:, :-1]).double().mean(), 0.01),
        ((gone[1:] & gone[:-1]).double().mean(), 0.01),
    ):
        assert abs(share - expected) < 4 * (expected / gone.numel()) ** 0.5


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("shape", [(512, 512), (8, 128, 256)])
def test_noise_has_no_correlations(shape: tuple[int, ...], hashed: bool) -> None:
    """Neither between shifted rows and columns of a document, nor between documents, heads or layers.

    The largest of a million standard scores is near 5.
    """
    p = 0.1
    dropped = (masks(p, [0, 1], shape=shape, hashed=hashed) == 0).double() - p
    dropped = dropped.view(4, -1, *shape[-2:]).flatten(0, 1)[:6]
    size, sizes = shape[-2] * shape[-1], (2 * shape[-2], 2 * shape[-1])
    spectrum = torch.fft.rfft2(dropped, s=sizes)
    for first in range(len(dropped)):
        for second in range(first, min(first + 4, len(dropped))):
            scores = torch.fft.irfft2(spectrum[first] * spectrum[second].conj(), s=sizes) / (p * (1 - p) * size**0.5)
            if first == second:
                scores[0, 0] = 0
            assert scores.abs().max() < 6


def test_noise_of_published_runs_is_unchanged() -> None:
    """The noise is that of activations, states and attention weights, drawn on a CPU and hashed."""
    digests = {}
    for shape in ((37, 41), (1001,), (3, 31, 31)):
        for hashed in (False, True):
            kept = masks(0.3, [4, 0], step=3, shape=shape, hashed=hashed) != 0
            digests[shape, hashed] = hashlib.sha256(kept.numpy().tobytes()).hexdigest()[:16]
    assert digests == {
        ((37, 41), False): "f9404ea41370e92d",
        ((37, 41), True): "e279d1f7b5051e4a",
        ((1001,), False): "183bcfd7ee4d8c47",
        ((1001,), True): "c8182b3e57570e4d",
        ((3, 31, 31), False): "a05ac81a4b8e115f",
        ((3, 31, 31), True): "370b95296c46f3c0",
    }


def test_gumbel_noise_has_its_mean_and_deviation() -> None:
    layer = Gumbel().train()
    set_keys(layer, seed=1, step=0, documents=range(3))
    drawn = layer(torch.zeros(3, 5, 200, 200, dtype=torch.float64))
    assert abs(drawn.mean() - 0.5772) < 4 * 1.2825 / drawn.numel() ** 0.5
    assert abs(drawn.std() - 1.2825) < 0.01
    assert drawn.unique().numel() > 0.999 * drawn.numel()


def test_rows_layers_steps_and_seeds_are_independent() -> None:
    first, second = masks(0.5, [0, 1])
    others = [second[0], first[1], masks(0.5, [0], step=1)[0, 0], masks(0.5, [0], seed=2)[0, 0]]
    size = first[0].numel()
    for other in others:
        agreement = ((first[0] == 0) == (other == 0)).double().mean()
        assert abs(agreement - 0.5) < 4 * (0.25 / size) ** 0.5


def test_gradient_passes_where_the_value_was_kept() -> None:
    layer = Dropout(0.3).train()
    set_keys(layer, seed=1, step=0, documents=[4])
    x = torch.randn(1, 29, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_dropout_is_the_identity_in_evaluation_and_at_rate_zero() -> None:
    x = torch.randn(2, 3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_without_keys_training_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call lra.ops.dropout.set_keys"):
        Dropout(0.5).train()(torch.ones(2, 3))
    layer = Dropout(0.5).train()
    set_keys(layer, seed=1, step=0, documents=range(3))
    with pytest.raises(RuntimeError, match="call lra.ops.dropout.set_keys"):
        layer(torch.ones(2, 3))


def test_more_values_than_compiled_code_can_hash_are_refused() -> None:
    layer = Dropout(0.5).train()
    set_keys(layer, seed=1, step=0, documents=[0])
    layer.hashed = True
    assert layer.hash(torch.empty(1, 2**31 - 1, device="meta")).dtype == torch.int32
    with pytest.raises(UserError, match="use a smaller train.micro_batch"):
        layer.hash(torch.empty(1, 2**31, device="meta"))


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
    set_keys(layer, seed=1, step=0, documents=[3, 8, 5])
    together = layer(x)
    set_keys(layer, seed=1, step=0, documents=[5])
    assert torch.equal(together[2:], layer(x[:1]))
    assert abs((together == 0).double().mean() - 0.5) < 0.05
