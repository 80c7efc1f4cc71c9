"""Made-up data of the greatest length, for what needs none of the task's own."""

import numpy as np

from lra.core import streams
from lra.data import Split, TaskSpec
from lra.data.splits import LMWindows, PositionLabels


def stand_in(facts: TaskSpec, examples: int, seed: int) -> Split:
    """So many examples of one made-up document of the greatest length; in a task of positions, all of them are
    scored."""
    rng, length = streams.generator(seed, "check"), facts.max_len
    answers = rng.integers(0, facts.classes, examples if facts.objective == "classify" else examples * length)
    document = {
        "tokens": rng.integers(1, facts.vocab_size, length + examples, dtype=np.uint16),
        "offsets": np.array([0, length]),
        "index": np.zeros(examples * facts.documents, dtype=int),
    }
    if facts.objective == "classify":
        return Split(**document, labels=answers)
    if facts.objective == "next_token":
        return LMWindows(**document, labels=answers, context=length, stride=1)
    places = np.tile(np.arange(length), examples)
    return PositionLabels(**document, labels=answers, ends=np.arange(examples + 1) * length, places=places)
