"""Evaluate a model: score and predictions on a split, accuracy by group, and text of a language model.

Legend: n is the number of predictions of a split, one per example or scored position. Arrays [n] are in the order
of the split.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Generate, Precision
from lra.core import streams
from lra.core.console import say
from lra.core.signals import StopFlag
from lra.datasets.groups import Group
from lra.datasets.task import PADDING, Split, Task
from lra.datasets.tokenise import TOKENIZER, load
from lra.network.model import Model
from lra.ops import products
from lra.ops.device import is_asynchronous
from lra.training import distributed
from lra.training.batches import MicroBatch, classes_of, counts, cuts, predict, prefetch, read, summed_loss


@dataclass(frozen=True, kw_only=True)
class Score:
    """Result of an evaluation."""

    correct: int
    examples: int  # number of predictions, one per example or scored position
    loss: float  # mean over predictions
    not_finite: int = 0  # number of predictions with an output that is NaN or infinite; they count as wrong

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf  # math.exp overflows at 710

    @property
    def accuracy(self) -> float:
        """Accuracy in percent."""
        return 100 * self.correct / self.examples

    def entry(self, step: int) -> dict[str, Any]:
        """Return the record's entry for this score of the weights after `step` updates."""
        not_finite = {"not_finite": self.not_finite} if self.not_finite else {}
        return not_finite | {
            "accuracy": self.accuracy,
            "correct": self.correct,
            "examples": self.examples,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "step": step,
        }

    def say_if_not_finite(self, title: str) -> None:
        """Print the number of predictions with outputs that are not finite, if there are any."""
        if self.not_finite:
            say(f"{title}: {self.not_finite} of {self.examples} predictions are NaN or infinite, and count as wrong")


class Predictions:
    """Predicted classes [n] of a split.

    Classes are numbered from 0. A prediction with an output that is not finite is stored as the number of classes.
    """

    def __init__(self, count: int) -> None:
        # Zeros, because each rank sets only its own predictions, and `gather` adds the arrays of all ranks.
        self.classes = np.zeros(count, dtype=np.int64)
        # Pairs (indices, classes) of micro-batches; an accelerator may still be computing the classes.
        self._added: list[tuple[np.ndarray, Tensor]] = []

    def add(self, indices: np.ndarray, logits: Tensor) -> None:
        """Add the predictions of a micro-batch; `indices` are their indices in the split."""
        self._added.append((indices, classes_of(logits)))

    def gather(self) -> None:
        """Copy the added predictions from the device to `classes`, with those of the other ranks."""
        for indices, classes in self._added:
            self.classes[indices] = classes.cpu().numpy()
        self._added.clear()
        distributed.all_reduce_sum_(torch.from_numpy(self.classes))


@torch.inference_mode()
def evaluate(
    model: Model,
    split: Split,
    batch: int,
    *,
    precision: Precision,
    keep: Predictions | None = None,
    stop: StopFlag | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Score:
    """Return the score of a model on all examples of a split.

    Args:
        batch: size of micro-batches in examples of the maximum length, see `cuts`.
        keep: receives the predicted classes.
        stop: read before each micro-batch; a signal ends the evaluation on all ranks.
        progress: called before each micro-batch with two numbers of examples of this rank: scored so far, and in total.

    Raises:
        Paused: `stop` received a signal.
    """
    model.eval()
    everything = np.arange(len(split))
    # One call for all examples, so that `cuts` can sort them by length.
    cut = list(cuts(model, split, everything, batch, precision))
    parts: Iterator[MicroBatch] = (read(split, everything, *piece) for piece in cut)
    if is_asynchronous(next(model.parameters()).device):
        parts = prefetch(parts)
    done, total, shared = 0, sum(len(indices) for indices, _ in cut), distributed.all_reduce_min(len(cut))
    predictions, counted, losses = 0, [], []
    for number, part in enumerate(parts):
        progress(done, total)
        if stop is not None and number < shared:  # `pause_all` reduces, so every rank must call it equally often
            distributed.pause_all(stop.signalled())
        done += len(part.indices)
        with products.of_micro_batch(part.tokens.size, model.dim):
            logits, labels = predict(model, part, precision)
        if keep is not None:
            keep.add(split.predictions(part.indices), logits)
        counted.append(counts(logits, labels))  # as tensors, so that an accelerator is read only once, at the end
        predictions += len(labels)
        losses.append(summed_loss(logits, labels))
    if keep is not None:
        keep.gather()
    right, infinite = torch.stack(counted).sum(dim=0).tolist() if counted else (0, 0)
    # fsum rounds once, so the loss does not depend on the order of micro-batches.
    loss = math.fsum(torch.stack(losses).tolist()) if losses else 0.0
    totals = distributed.all_reduce_sum(right, infinite, predictions, loss)
    right, infinite, predictions = map(int, totals[:3])
    return Score(correct=right, examples=predictions, loss=totals[3] / predictions, not_finite=infinite)


def diagnose(
    groups: dict[str, Group], predicted: np.ndarray, labels: np.ndarray, baseline: np.ndarray | None
) -> dict[str, dict[str, dict[str, int]]]:
    """Return counts {group: {value: {examples, correct, baseline}}}.

    `baseline` counts correct baseline predictions, and is left out if the argument `baseline` [n] is None.
    """
    hits = {"correct": predicted == labels} | ({} if baseline is None else {"baseline": baseline == labels})
    return {
        name: {
            value: {"examples": len(examples), **{kind: int(hit[examples].sum()) for kind, hit in hits.items()}}
            for value, examples in group.items()
        }
        for name, group in groups.items()
    }


@torch.inference_mode()
def continuation(model: Model, prompt: list[int], *, tokens: int, top_p: float, seed: int) -> list[int]:
    """Return `tokens` ids that follow `prompt`, drawn by nucleus sampling with `top_p` (Holtzman et al. 2020).

    The model reads the last `max_len` ids, padded to `max_len` as in training, because a score scale may depend on
    the padded length.
    """
    model.eval()
    ids = list(prompt)
    device = next(model.parameters()).device
    for number in range(tokens):
        read = ids[-model.max_len :]
        window = torch.tensor([read + [PADDING] * (model.max_len - len(read))], device=device)
        logits = model(window)[0, len(read) - 1].double().cpu()
        logits[PADDING] = float("-inf")  # padding is never drawn
        likely, order = logits.softmax(dim=0).sort(descending=True)
        before = likely.cumsum(dim=0) - likely  # the nucleus ends with the token that crosses top_p
        nucleus = likely[before < top_p].numpy()
        chosen = streams.generator(seed, "sample", number).choice(len(nucleus), p=nucleus / nucleus.sum())
        ids.append(int(order[chosen]))  # `order` has token ids, sorted by probability
    return ids[len(prompt) :]


def sample(model: Model, task: Task, wanted: Generate, seed: int) -> str:
    """Return the prompt and its continuation, with a final newline."""
    tokenizer = load(task.folder / TOKENIZER)
    prompt = tokenizer.encode(wanted.prompt, add_special_tokens=False).ids
    ids = continuation(model, prompt, tokens=wanted.tokens, top_p=wanted.top_p, seed=seed)
    return tokenizer.decode(prompt + ids) + "\n"
