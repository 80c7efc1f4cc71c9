"""A model's score on a split."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.data import Split
from lra.model.model import Model
from lra.ops.async_copy import is_asynchronous
from lra.training import distributed
from lra.training.batches import cuts, predict, prefetch, read
from lra.training.losses import hits, summed_loss

OnPart = Callable[[int, int], None]
"""Called before each part of an evaluation with the examples that this rank has done, and all that it will do. It may
raise, because an evaluation does not change the training."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """An evaluation of every prediction of a split: one per example, per token, or per position that is scored.

    `examples` counts them, and `loss` is their mean.
    """

    correct: int
    examples: int
    loss: float

    @property
    def perplexity(self) -> float:
        """e to the mean loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * self.correct / self.examples


class Predictions:
    """The class of every prediction of a split [n], and the probability that the model gives it [n]."""

    def __init__(self, count: int) -> None:
        self.classes, self.confidence = np.zeros(count, dtype=np.int64), np.zeros(count)
        self._added: list[tuple[np.ndarray, Tensor, Tensor]] = []  # may still be at work on an accelerator

    def add(self, places: np.ndarray, logits: Tensor) -> None:
        """What a part of the split gave."""
        best = logits.double().softmax(dim=-1).max(dim=-1)
        self._added.append((places, best.indices, best.values))

    def meet(self) -> None:
        """Take over what was added, and what the other ranks have."""
        for places, classes, confidence in self._added:
            self.classes[places], self.confidence[places] = classes.cpu().numpy(), confidence.cpu().numpy()
        self._added.clear()
        distributed.all_reduce_sum_(torch.from_numpy(self.classes))
        distributed.all_reduce_sum_(torch.from_numpy(self.confidence))


@torch.inference_mode()
def evaluate(
    model: Model,
    split: Split,
    batch: int,
    *,
    precision: Precision,
    keep: Predictions | None = None,
    on_part: OnPart = lambda *_: None,
) -> Score:
    """Score every example of the split; nothing is drawn, and the counts are integers. `keep` takes the predictions
    of a classification."""
    model.eval()
    everything = np.arange(len(split))
    cut = list(cuts(model, split, everything, batch))
    parts = (read(split, everything, *piece) for piece in cut)
    if is_asynchronous(next(model.parameters()).device):
        parts = prefetch(parts)
    done, total, shared = 0, sum(len(places) for places, _ in cut), distributed.all_reduce_min(len(cut))
    predictions, right, losses = 0, [], []
    for number, part in enumerate(parts):
        if number < shared:  # ranks may agree in there, which takes all of them
            on_part(done, total)
        done += len(part.places)
        logits, labels = predict(model, part, precision)
        if keep is not None:
            keep.add(split.predictions(part.places), logits)
        right.append(hits(logits, labels))
        predictions += len(labels)
        losses.append(summed_loss(logits, labels))
    if keep is not None:
        keep.meet()
    correct, predictions, loss = distributed.all_reduce_sum(
        sum(_fetched(right)), predictions, math.fsum(_fetched(losses))
    )
    return Score(correct=int(correct), examples=int(predictions), loss=loss / predictions)


def _fetched(values: list[Tensor]) -> list[float]:
    """Scalars of a device, all at once; a rank may have none."""
    return torch.stack(values).tolist() if values else []
