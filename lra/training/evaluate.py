"""A model's score on a split."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lra.config.settings import Precision
from lra.model.model import Model
from lra.tasks import Split
from lra.training import ranks
from lra.training.batches import cuts, predict

OnPart = Callable[[int, int], None]
"""Called before each part of an evaluation with the examples that this rank has done, and all that it will do. It may
raise, because an evaluation does not change the training."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """An evaluation of every prediction of a split: one per example, or one per token. `loss` is their mean."""

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

    def better_than(self, other: "Score | None", metric: str) -> bool:
        """By `Facts.metric`; the first of equals stays the best, and a loss that is not finite is the worst."""
        if other is None:
            return True
        if metric == "accuracy":
            return self.accuracy > other.accuracy
        own, best = (score.loss if math.isfinite(score.loss) else math.inf for score in (self, other))
        return own < best


class Predictions:
    """The class of every example of a split [n], and the probability that the model gives it [n]."""

    def __init__(self, examples: int) -> None:
        self.classes, self.confidence = np.zeros(examples, dtype=np.int64), np.zeros(examples)

    def add(self, places: np.ndarray, logits: Tensor) -> None:
        """What a part of the split gave."""
        best = logits.double().softmax(dim=-1).max(dim=-1)
        self.classes[places], self.confidence[places] = best.indices.cpu().numpy(), best.values.cpu().numpy()

    def meet(self) -> None:
        """Take over what the other ranks have."""
        ranks.add_up(torch.from_numpy(self.classes))
        ranks.add_up(torch.from_numpy(self.confidence))


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
    correct, predictions, losses = 0, 0, []
    parts = list(cuts(model, split, np.arange(len(split)), batch))
    done, total, shared = 0, sum(len(places) for places, _ in parts), ranks.fewest(len(parts))
    for number, (places, length) in enumerate(parts):
        if number < shared:  # ranks may agree in there, which takes all of them
            on_part(done, total)
        done += len(places)
        logits, labels = predict(model, split, places, length, precision)
        if keep is not None:
            keep.add(places, logits)
        correct += int((logits.argmax(dim=-1) == labels).sum())
        predictions += len(labels)
        losses.append(cross_entropy(logits, labels, reduction="sum").item())
    if keep is not None:
        keep.meet()
    correct, predictions, loss = ranks.summed(correct, predictions, math.fsum(losses))
    return Score(correct=int(correct), examples=int(predictions), loss=loss / predictions)
