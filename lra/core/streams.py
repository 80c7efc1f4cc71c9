"""Named streams of random numbers: each draw is a pure function of (seed, stream, index).

Streams have no state, so a checkpoint need not save any: after an interruption a step, a layer or an example draws the
same numbers again, and drawing from one stream does not change another.
"""

import numpy as np

# Every draw depends on the stream's number: never renumber, only append.
STREAMS = {"init": 0, "order": 1, "dropout": 2, "features": 3, "data": 4, "check": 5, "sample": 6, "mask": 7}

NOISE_VERSION = 2  # version of the algorithms in `lra.ops.dropout` that draw noise; records contain it


def key(seed: int, stream: str, *index: int) -> np.ndarray:
    """Return a hash of (seed, stream, index) as a uint64 array [2]."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS[stream], *index)).generate_state(2, np.uint64)


def philox(seed: int, stream: str, *index: int) -> np.random.Philox:
    """Return the bit generator of the stream at `index`; Philox gives the same bits on every machine."""
    return np.random.Philox(key=key(seed, stream, *index))


def pcg(seed: int, stream: str, *index: int) -> np.random.PCG64DXSM:
    """Return a bit generator of the stream at `index` that is as reproducible as `philox` and twice as fast."""
    return np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=(STREAMS[stream], *index)))


def generator(seed: int, stream: str, *index: int) -> np.random.Generator:
    """Return a NumPy generator that draws from the bit generator `philox`."""
    return np.random.Generator(philox(seed, stream, *index))
