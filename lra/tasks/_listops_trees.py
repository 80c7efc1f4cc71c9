"""Generate random ListOps expressions with the distribution of Long Range Arena (Tay et al. 2021).

With the default options the root is an operator; a node at depth 2 to 9 is an operator with probability 1/4, else a
digit; a node at depth 10 is a digit; operators have 2 to 10 arguments. LRA's generator is recursive and unseeded. The
generator in this module draws a whole level of many trees at once, from raw Philox bits and with exact arithmetic on
integers, so that a seed gives the same bytes on every machine.
"""

import hashlib
from functools import partial
from itertools import count

import numpy as np

from lra.core import streams
from lra.core.errors import UserError
from lra.datasets.builder import in_order
from lra.tasks import Progress

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
WORDS = (*"0123456789", *OPERATORS, CLOSE)
IDS = {word: number for number, word in enumerate(WORDS, start=1)}  # 0 is padding; the id 16 of unknown words is unused
# Another value of TREES_PER_CHUNK would give other data.
TREES_PER_CHUNK = 8_192  # number of candidates drawn together; only those with a length within the bounds are used
FRUITLESS_CHUNKS = 64  # number of consecutive chunks without a new expression after which `generate` gives up


def generate(
    total: int, *, seed: int, workers: int, progress: Progress, **bounds: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `total` distinct random expressions.

    Chunk c of candidates depends only on the seed, c and the bounds, and chunks are used in order, so that the result
    does not depend on the number of worker processes.

    Args:
        total: number of expressions.
        seed: seed of the data.
        workers: number of processes.
        progress: callback with the arguments (expressions done, total).
        bounds: min_length, max_length, max_depth and max_args, see `ListOps`.

    Returns:
        Tokens [sum of lengths] uint8, offsets [total + 1] int64, labels [total].

    Raises:
        UserError: fewer than `total` distinct expressions were found within the bounds.
    """
    seen: set[bytes] = set()
    kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    done = fruitless = 0
    chunks = in_order(partial(chunk, seed=seed, **bounds), zip(count(), strict=True), workers)
    for tokens, lengths, labels, digests in chunks:
        # [n]: True for trees whose digest was not seen before; `seen.add`, which returns None, records the digest.
        fresh = np.array([name not in seen and not seen.add(name) for name in digests], dtype=np.bool_)  # type: ignore[func-returns-value]
        fresh &= np.cumsum(fresh) <= total - done
        fruitless = 0 if fresh.any() else fruitless + 1
        if fruitless == FRUITLESS_CHUNKS:
            raise UserError(
                f"only {done} of {total} different expressions found with "
                f"{', '.join(f'task.{key}={bound}' for key, bound in bounds.items())}; widen these bounds or ask for "
                "fewer examples"
            )
        kept.append((tokens[np.repeat(fresh, lengths)], lengths[fresh], labels[fresh]))
        done += int(fresh.sum())
        progress(done, total)
        if done == total:
            break
    tokens, lengths, labels = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return tokens, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), labels


Chunk = tuple[np.ndarray, np.ndarray, np.ndarray, list[bytes]]


def chunk(index: int, seed: int, min_length: int, max_length: int, max_depth: int, max_args: int) -> Chunk:
    """Return tokens, lengths, labels and digests of those trees of chunk `index` whose length is within the bounds."""
    bits = streams.philox(seed, "data", index)
    levels = _grow(bits, min_length, max_length, max_depth, max_args)
    sizes, values = _fold(levels)
    tokens = _lay_out(levels, sizes)
    lengths, labels = sizes[0], values[0].astype(np.uint8)
    ends = np.cumsum(lengths)
    digests = [
        hashlib.blake2b(tokens[end - length : end].data, digest_size=16).digest()
        for end, length in zip(ends, lengths, strict=True)
    ]
    return tokens, lengths, labels, digests


# A level holds the n nodes of one depth of all trees, in the order of their parents, so siblings are adjacent. The two
# arrays are the symbols [n] (digit 0-9, or 10 + index of the operator) and the numbers of arguments [n] (0 for digits).
Level = tuple[np.ndarray, np.ndarray]


def _grow(bits: np.random.Philox, min_length: int, max_length: int, max_depth: int, max_args: int) -> list[Level]:
    """Draw the trees of a chunk level by level, and return the levels of the trees with a length within bounds.

    A node is drawn from one random 64-bit number: bits 0-1 decide if it is an operator (except on the first and on the
    last level), bits 2-3 choose the operator, and the upper 32 bits, scaled to one of k values, are its digit or its
    number of arguments (bias below k / 2^32).
    """
    trees = np.arange(TREES_PER_CHUNK)  # [n]: index of the tree of each node of the level; level 1 has the roots
    lengths = np.zeros(TREES_PER_CHUNK, dtype=np.int64)
    drawn = []
    for depth in range(1, max_depth + 1):
        words = bits.random_raw(len(trees))  # [n] uint64, one random number per node of this level
        high = words >> np.uint64(32)
        if depth == 1:  # every root is an operator, since a single digit is always too short
            operator = np.ones(len(trees), dtype=bool)
        elif depth < max_depth:
            operator = (words & np.uint64(3)) == 0
        else:
            operator = np.zeros(len(trees), dtype=bool)
        digit = (high * np.uint64(10)) >> np.uint64(32)
        symbol = np.where(operator, 10 + ((words >> np.uint64(2)) & np.uint64(3)), digit).astype(np.uint8)
        arguments = 2 + ((high * np.uint64(max_args - 1)) >> np.uint64(32)).astype(np.int64)
        arguments[~operator] = 0
        drawn.append((trees, symbol, arguments))
        # An operator has two tokens: itself and its closing bracket.
        lengths += np.bincount(trees, weights=1 + operator, minlength=TREES_PER_CHUNK).astype(np.int64)
        # Number of nodes of each tree in the next level. They add at least `pending` tokens, one for each node.
        pending = np.bincount(trees, weights=arguments, minlength=TREES_PER_CHUNK).astype(np.int64)
        alive = lengths + pending < max_length  # drop long trees before their children use memory
        trees = np.repeat(trees, np.where(alive[trees], arguments, 0))
        lengths[lengths + pending >= max_length] = max_length  # so that `keep` excludes these trees
    keep = (lengths > min_length) & (lengths < max_length)
    return [(symbol[keep[tree]], arguments[keep[tree]]) for tree, symbol, arguments in drawn]


def _fold(levels: list[Level]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the lengths in tokens and the values of the nodes: two lists with one array [n] per level, roots first."""
    sizes: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for symbol, arguments in reversed(levels):
        size = np.ones(len(symbol), dtype=np.int64)
        value = symbol.astype(np.int64)
        inner = arguments > 0
        if inner.any():
            starts = np.cumsum(arguments[inner]) - arguments[inner]  # index of each operator's first child
            # `sizes[0]` and `values[0]` belong to the level below, whose nodes are the children of this level.
            size[inner] = 2 + np.add.reduceat(sizes[0], starts)  # 2 for the operator and its bracket
            value[inner] = _apply(symbol[inner] - 10, values[0], starts, arguments[inner])
        sizes.insert(0, size)
        values.insert(0, value)
    return sizes, values


def _apply(operator: np.ndarray, operands: np.ndarray, starts: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """Return the value of each operator [n], applied to its operands; a median that ends in .5 is rounded down.

    Operator i has `arguments[i]` consecutive operands in `operands`; the first of them has the index `starts[i]`.
    """
    counts = np.bincount(
        np.repeat(np.arange(len(operator)), arguments) * 10 + operands, minlength=10 * len(operator)
    ).reshape(-1, 10)  # [n, 10]: number of operands equal to each digit
    below = np.cumsum(counts, axis=1)  # [n, 10]: number of operands less than or equal to each digit
    # The two middle operands, which are the same if the number of operands is odd.
    lower = (below > ((arguments - 1) // 2)[:, None]).argmax(axis=1)
    upper = (below > (arguments // 2)[:, None]).argmax(axis=1)
    return np.choose(
        operator,
        [
            np.minimum.reduceat(operands, starts),
            np.maximum.reduceat(operands, starts),
            (lower + upper) // 2,
            np.add.reduceat(operands, starts) % 10,
        ],
    )


def _lay_out(levels: list[Level], sizes: list[np.ndarray]) -> np.ndarray:
    """Return the tokens of all trees, concatenated [sum of lengths] uint8; they are written level by level."""
    tokens = np.empty(sizes[0].sum(), dtype=np.uint8)
    positions = np.cumsum(sizes[0]) - sizes[0]  # [n]: index of each node's first token; here, of each root's
    for depth, (symbol, arguments) in enumerate(levels):
        tokens[positions] = symbol + 1  # ids of WORDS start at 1
        inner = arguments > 0
        tokens[positions[inner] + sizes[depth][inner] - 1] = IDS[CLOSE]  # closes the operator's subtree
        if depth + 1 < len(levels):
            runs = arguments[inner]
            before = np.cumsum(sizes[depth + 1]) - sizes[depth + 1]  # number of tokens in subtrees before each child
            # `before` of the operator's first child; `before - first` is the offset of a child from this first one.
            first = np.repeat(before[np.cumsum(runs) - runs], runs) if len(runs) else before
            positions = np.repeat(positions[inner] + 1, runs) + before - first  # + 1 for the operator itself
    return tokens
