"""What a prediction costs: decided by its target, a class or a number."""

from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss


def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum over outputs [m, classes] and targets [m]: cross-entropy of classes, or the absolute error of numbers, of
    which an output [m, 1] is one (for continuous inputs, Amos et al. 2024)."""
    if targets.is_floating_point():
        return l1_loss(outputs.squeeze(-1), targets, reduction="sum")
    return cross_entropy(outputs, targets, reduction="sum")


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many classes are right; of numbers none is said to be."""
    if targets.is_floating_point():
        return targets.new_zeros((), dtype=int)
    return (outputs.argmax(dim=-1) == targets).sum()
