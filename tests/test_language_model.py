"""Predicting the next token: the model, the loss over every position, sampling."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support import TINY_MODEL, accumulate, model_of, settings, spec
from torch import nn

from lra.core.errors import UserError
from lra.datasets.splits import LMWindows
from lra.mixers.softmax import Softmax
from lra.network.architecture import Architecture
from lra.network.model import Model
from lra.tasks import PADDING, Task
from lra.training.evaluate import continuation, evaluate


def stream(tokens: int = 61, context: int = 7) -> Task:
    known = spec(objective="next_token", causal=True, vocab_size=13, classes=13, max_len=context)

    def windows(seed: int, stride: int) -> LMWindows:
        ids = np.random.default_rng(seed).integers(1, 13, size=tokens).astype(np.uint16)
        ends = {"offsets": np.array([0, 20, tokens]), "index": np.array([0, 1]), "labels": np.zeros(2)}
        return LMWindows(tokens=ids, **ends, context=context, stride=stride)

    splits = {"train": windows(1, 1), "val": windows(2, context), "test": windows(3, context)}
    return Task(**vars(known), **splits, baselines={}, digest="", folder=Path("."), source="")


def model_for(task: Task, *overrides: str) -> Model:
    torch.manual_seed(5)
    return model_of(*TINY_MODEL, "model.dropout=0", *overrides, task=task).double()


@pytest.mark.parametrize("system", ["simple", "transformer"])
def test_predicts_every_position_from_what_came_before(system: str) -> None:
    model = model_for(stream(), f"system={system}").eval()
    row = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    other = torch.tensor([[3, 1, 4, 1, 8, 8, 8]])
    logits, other_logits = model(row), model(other)
    assert logits.shape == (1, 7, 13)
    torch.testing.assert_close(logits[:, :4], other_logits[:, :4])
    assert (logits[:, 4:] != other_logits[:, 4:]).all()
    torch.testing.assert_close(model(row[:, :4]), logits[:, :4])


def test_the_loss_is_the_mean_over_every_token() -> None:
    task = stream()
    model = model_for(task, "system=transformer").train()
    examples = np.array([0, 30, 53, 7, 7])
    losses = []
    for example in examples:
        ids = torch.from_numpy(task.train.tokens[example : example + 8].astype(np.int64))
        logits = model(ids[None, :7])[0].log_softmax(dim=-1)
        losses += [-logits[place, ids[place + 1]].item() for place in range(7)]
    expected = math.fsum(losses) / len(losses)
    gradients = []
    for cut in (1, 2, 3, 5):
        model.zero_grad()
        loss, *tokens = accumulate(model, task.train, examples, cut, seed=1, step=0, precision="fp32").tolist()
        assert loss == pytest.approx(expected, rel=1e-12)
        assert tokens == [5 * 7, 5 * 7]
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for other in gradients[1:]:
        for first, second in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-13)


def test_perplexity_counts_every_token_once() -> None:
    task = stream()
    model = model_for(task, "system=simple").eval()
    losses = []
    for start in range(0, 56, 7):
        ids = torch.from_numpy(task.val.tokens[start : start + 8].astype(np.int64))
        logits = model(ids[None, :7])[0].log_softmax(dim=-1)
        losses += [-logits[place, ids[place + 1]].item() for place in range(7)]
    for batch in (1, 3, 64):
        score = evaluate(model, task.val, batch, precision="fp32")
        assert score.examples == len(losses) == 56
        assert score.perplexity == pytest.approx(math.exp(math.fsum(losses) / 56), rel=1e-12)


def test_a_mixer_without_a_causal_form_is_refused() -> None:
    class TwoSided(Softmax):
        can_be_causal = False

    with pytest.raises(UserError, match="TwoSided has no causal form"):
        Model(partial(TwoSided, scale="head_dim"), stream(), Architecture(**settings(*TINY_MODEL)["model"]))


class Fixed(nn.Module):
    """A model whose prediction is always the same."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.max_len = 3
        self.logits = nn.Parameter(torch.tensor(probabilities).log())
        self.seen: set[int] = set()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.add(tokens.shape[1])
        return self.logits.expand(*tokens.shape, -1)


def test_nucleus_sampling() -> None:
    """Top-p 0.7 keeps the first two of 0.5, 0.3, 0.15, 0.05 (padding has 0.9 before), as 5 : 3."""
    model = Fixed([0.9, 0.05, 0.5, 0.15, 0.3])
    drawn = continuation(model, [2, 2, 2, 2], tokens=4001, top_p=0.7, seed=1)
    assert set(drawn) == {2, 4}
    assert abs(drawn.count(2) / 4001 - 5 / 8) < 4 * (15 / 64 / 4001) ** 0.5
    assert model.seen == {3}
    assert set(continuation(model, [2], tokens=50, top_p=0.01, seed=1)) == {2}
    assert set(continuation(model, [2], tokens=400, top_p=1.0, seed=1)) == {1, 2, 3, 4}
    assert drawn[:50] == continuation(model, [2], tokens=50, top_p=0.7, seed=1)
    assert drawn[:50] != continuation(model, [2], tokens=50, top_p=0.7, seed=2)


@pytest.mark.parametrize("system", ["simple", "linear", "transformer"])
def test_a_continuation_uses_windows_of_the_full_length(system: str) -> None:
    """The most likely next token is that of a padded window of the full length, as in training."""
    model = model_for(stream(), f"system={system}", "model.dropout=0", "protocol=strict").eval()
    for start in range(1, 11):
        window = torch.tensor([[start, 2] + [PADDING] * (model.max_len - 2)])
        with torch.no_grad():
            logits = model(window)[0, 1]
        logits[PADDING] = -torch.inf
        assert continuation(model, [start, 2], tokens=1, top_p=1e-6, seed=1) == [int(logits.argmax())]
