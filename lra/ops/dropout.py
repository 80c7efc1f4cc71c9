"""Draw training noise as a pure function of (seed, step, layer, document, head, row, column).

A row is a position or a query, a column a channel or a key. Noise does not depend on padding, packing or
micro-batches, and a resumed run needs no random state. On a CPU, dropout compares 16-bit numbers of a random
generator with a threshold. Accelerators, compiled blocks, the gathered keys of sparse attention and Gumbel noise use a
32-bit hash of the coordinates instead.
Legend: B documents, H heads, L positions, F channels, m keys, R rows of a packed batch.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.core import streams
from lra.core.errors import UserError
from lra.ops.device import to_device
from lra.ops.packing import Packed

PIECE = 1 << 16  # number of values whose noise a CPU draws at a time
LEVELS = 1 << 16  # dropout probabilities are multiples of 1 / LEVELS if a CPU draws 16-bit numbers
# Number of 64-bit draws from the start of one row of attention weights to the next; odd, because with an even number
# the lowest bit of the generator's state would be the same at the start of all rows.
JUMP = 0x9E3779B97F4A7C15
ROW, COLUMN, HEAD = -0x61C8864F, -0x7A143589, -0x3D4D51C3  # odd multipliers of the coordinates in the hash
MIX, FINISH = -0x7A143595, -0x3D4D51CB  # multipliers of MurmurHash3's 32-bit finaliser (Appleby)

Over = Literal["values", "channels"]


class Keyed(nn.Module):
    """Base class of layers that draw noise in training; `set_keys` sets the key that determines the noise."""

    over: Over = "values"

    def __init__(self) -> None:
        super().__init__()
        self.key: tuple[int, int, int] | None = None  # seed, step, layer
        self.documents: Sequence[int] = ()  # [B] indices of the documents in the step's batch
        self.hash_words: Tensor | None = None  # [B] int32, one random number per document
        self.seed: Tensor | None = None  # int64 scalar on the host, sum of `hash_words`; dropout seed of fused kernels
        self.hashed = False  # True: hash the coordinates on a CPU, too

    def hash(self, x: Tensor, packed: Packed | None = None, columns: Tensor | None = None) -> Tensor:
        """Return a uniform int32 number for every value of x [B, F], [B, L, F], [B, H, ..., m], or packed [R, F].

        The result has the shape of x. `columns`: coordinates of the columns, broadcast to x; None: 0, 1, 2, ...
        """
        self.check_key(x, packed)
        if self.hashed and x.numel() >= 2**31:  # compiled code would hash in 64 bits and drop a different fraction
            raise UserError("train.compile: 2^31 or more dropout values in one call; use a smaller train.micro_batch")
        assert self.hash_words is not None  # ensured by `check_key`
        words, device, has_heads = self.hash_words.to(x.device), x.device, x.dim() > 3  # words [B]
        columns = torch.arange(x.shape[-1], dtype=torch.int32, device=device) if columns is None else columns.int()
        if packed is not None:
            words, rows = words[packed.document].unsqueeze(1), packed.position.unsqueeze(1)  # [R, 1]
        else:
            axes = x.shape[1 + has_heads : -1]  # sizes of the axes between documents (or heads) and columns
            rows = torch.arange(prod(axes), dtype=torch.int32, device=device).view(*axes, 1)
            if has_heads:
                heads = torch.arange(x.shape[1], dtype=torch.int32, device=device)
                words = words.unsqueeze(1) + heads * HEAD  # [B, H]
            words = words.view(*words.shape, *[1] * (x.dim() - words.dim()))  # [B, 1], [B, 1, 1] or [B, H, 1, ..., 1]
        if self.over == "channels":
            rows = torch.zeros_like(rows)  # one number for all positions of a channel
        mixed = rows * ROW + words + columns * COLUMN  # int32 wraps around
        # A shift of int32 repeats the sign bit; the masks leave the bits of an unsigned shift.
        mixed = ((mixed ^ (mixed >> 16 & 0xFFFF)) * MIX) ^ words
        return (mixed ^ (mixed >> 13 & 0x7FFFF)) * FINISH

    def check_key(self, x: Tensor, packed: Packed | None) -> None:
        """Raise RuntimeError unless `set_keys` was called for as many documents as x has."""
        documents = len(x) if packed is None else len(packed.mask)
        if self.hash_words is None or len(self.hash_words) != documents:
            raise RuntimeError("noise in training: call lra.ops.dropout.set_keys(model, ...) for this batch first")


class Dropout(Keyed):
    """Layer that in training zeroes values of x with probability p and scales the others by 1 / (1 - p).

    With `over="channels"` whole channels of x [B, L, F] are set to zero (Tompson et al. 2015). On a CPU, unless
    noise is hashed, the probability is rounded to a multiple of 1 / 65536, but the scale is computed from the unrounded
    p. At p = 0.1 the mean of the output is then 0.9999932 times the mean of the input. Another rounding would need a
    new `lra.core.streams.NOISE_VERSION`.
    """

    def __init__(self, p: float, over: Over = "values") -> None:
        super().__init__()
        self.p, self.over = p, over

    def forward(self, x: Tensor, packed: Packed | None = None, columns: Tensor | None = None) -> Tensor:
        """Return x [B, F], [B, L, F], [B, H, ..., m], or packed [R, F] after dropout; `columns`: as in `hash`."""
        if not self.drops:
            return x
        if columns is None and self.draws_indices(x, packed):
            # In place, because nothing else reads the product.
            return (x.flatten() * self.scale).index_fill_(0, self.indices(x), 0).view(x.shape)
        kept = self.hash(x, packed, columns) >= round(self.p * 2**32) - 2**31  # the hash is uniform in [-2^31, 2^31)
        return torch.where(kept, x * self.scale, 0)

    @property
    def drops(self) -> bool:
        """True in training if p is positive."""
        return self.training and self.p > 0

    @property
    def scale(self) -> float:
        """Scale factor of the values that are not dropped."""
        return 1 / (1 - self.p)

    def draws_indices(self, x: Tensor, packed: Packed | None) -> bool:
        """Return True if indices of dropped values are drawn: on a CPU, unless noise is hashed or x is packed."""
        return self.drops and x.device.type == "cpu" and not self.hashed and packed is None

    def indices(self, x: Tensor) -> Tensor:
        """Return the flat indices [n] of the values of x to drop, which are cheaper than a mask."""
        self.check_key(x, None)
        dropped = []
        for number, document in enumerate(self.documents):
            for indices in self._document_indices(document, x.shape[1:]):
                indices += number * x[0].numel()  # from indices into a document to indices into x
                dropped.append(indices)
        return torch.from_numpy(np.concatenate(dropped))

    def _document_indices(self, document: int, shape: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield flat indices of the values to drop in a document [F], [L, F] or [H, ..., m], piece by piece.

        The noise of a piece fits a CPU's cache.
        """
        assert self.key is not None
        seed, step, layer = self.key
        level, size, width = round(self.p * LEVELS), prod(shape), shape[-1]
        # A 64-bit draw holds four 16-bit numbers, one per value. A value is dropped if its number is below `level`.
        if self.over == "channels":
            words = streams.pcg(seed, "dropout", step, layer, document, 0).random_raw(-(-width // 4)).view(np.uint16)
            # The dropped channels of each position: [L, 1] + [dropped channels].
            yield (np.arange(0, size, width)[:, None] + np.flatnonzero(words[:width] < level)).ravel()
        elif len(shape) < 3:
            bits = streams.pcg(seed, "dropout", step, layer, document, 0)
            for start in range(0, size, PIECE):
                count = min(PIECE, size - start)
                yield np.flatnonzero(bits.random_raw(-(-count // 4)).view(np.uint16)[:count] < level) + start
        else:
            of_head, draws_of_row = size // shape[0], -(-width // 4)
            draws = np.empty((of_head // width, draws_of_row), np.uint64)  # 64-bit draws of one head
            for head in range(shape[0]):
                bits = streams.pcg(seed, "dropout", step, layer, document, head)
                for of_row in draws:
                    of_row[:] = bits.random_raw(draws_of_row)
                    bits.advance(JUMP - draws_of_row)  # so that a row's first draw does not depend on m
                # [rows of a head, 4 draws_of_row] 16-bit numbers, of which the first m of each row are used.
                yield np.flatnonzero(draws.view(np.uint16)[:, :width] < level) + head * of_head


class Gumbel(Keyed):
    """Layer that in training adds Gumbel noise, -log(-log u), to the logits x [B, H, N, N] of pairs of blocks."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        uniform = (self.hash(x).double() + (2**31 + 0.5)) * 2.0**-32  # in the open interval (0, 1)
        return x - (-uniform.log()).log().to(x.dtype)


def set_keys(model: nn.Module, *, seed: int, step: int, documents: Sequence[int]) -> None:
    """Set the key of every noise layer for a forward pass of `documents`, given as indices into the step's batch."""
    layers = [module for module in model.modules() if isinstance(module, Keyed)]
    if not layers:
        return
    # Draw one random 32-bit number per layer and document of the step's batch, so that the noise does not depend on the
    # split into micro-batches.
    raw = streams.pcg(seed, "dropout", step).random_raw((max(documents, default=0) + 1) * len(layers))
    raw = (raw >> np.uint64(32)).astype(np.uint32).view(np.int32)
    words = torch.from_numpy(np.ascontiguousarray(raw.reshape(-1, len(layers))[list(documents)].T))  # [layers, B]
    parameter = next(model.parameters(), None)
    on_device = to_device(words, torch.device("cpu") if parameter is None else parameter.device)
    # Copy the slices, because a compiled graph would depend on the offset of a view.
    copies = torch.unbind_copy(on_device), torch.unbind_copy(words.sum(dim=1))  # type: ignore[func-returns-value]
    for layer, (module, *noise) in enumerate(zip(layers, *copies, strict=True)):  # type: ignore[call-overload]
        module.key, module.documents = (seed, step, layer), documents
        module.hash_words, module.seed = noise
