"""Load the initial weights of a run from a file."""

from lra.init.weights import Checkpoint, InitialWeights

__all__ = ["Checkpoint", "InitialWeights"]
