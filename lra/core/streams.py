"""Named streams of randomness: each draw is a pure function of (seed, stream, index).

Nothing is shared and nothing has to be saved: a step, a layer or an example finds its own numbers again
after any interruption, and drawing from one stream never moves another.
"""

import numpy as np

# A stream's number is part of every result made with it: never renumber, only append.
STREAMS = {"init": 0, "order": 1, "dropout": 2, "features": 3, "data": 4, "check": 5, "sample": 6, "mask": 7}

NOISE_VERSION = 2  # of what `lra.ops.dropout` makes of a stream; records keep it


def key(seed: int, stream: str, *index: int) -> np.ndarray:
    """Two uint64 words, a hash of (seed, stream, index)."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS[stream], *index)).generate_state(2, np.uint64)


def philox(seed: int, stream: str, *index: int) -> np.random.Philox:
    """Raw bits of the stream at `index`; the bits of Philox are the same on every machine."""
    return np.random.Philox(key=key(seed, stream, *index))


def pcg(seed: int, stream: str, *index: int) -> np.random.PCG64DXSM:
    """Raw bits of the stream at `index`, as reproducible and twice as fast to draw."""
    return np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=(STREAMS[stream], *index)))


def generator(seed: int, stream: str, *index: int) -> np.random.Generator:
    """A numpy generator at the start of the stream at `index`."""
    return np.random.Generator(philox(seed, stream, *index))
