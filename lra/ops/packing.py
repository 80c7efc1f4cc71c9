"""Pack a batch: documents follow one another in chunks of rows, with padding only in a document's last chunk.

Legend: B documents, N positions of the longest document, C chunks, R = C CHUNK rows, D width, H heads; S pieces, each
of which is a document or the padding after one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lra.ops.device import at_least_float32, is_asynchronous, to_device

CHUNK = 128  # number of rows in a chunk; each document begins a new chunk


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Layout of packed rows [R, ...], with conversions to padded batches [B, N, ...] and to chunks.

    Rows after a document, up to the end of its last chunk, are padding. As in a padded batch, mixers must not read
    them, and their values are finite.
    """

    document: Tensor  # [R] int32, index of a row's document
    position: Tensor  # [R] int32, position of a row in its document
    first: Tensor  # [B] index of the first row of each document
    pieces: Tensor  # [S + 1] int32, index of the first row of each piece, then R
    first_pieces: Tensor  # [S + 1] int32, number of documents that begin before each row listed in `pieces`
    mask: Tensor  # [B, N] True at real positions
    chunk_mask: Tensor  # [C, CHUNK] True at real positions
    indices: Tensor  # [C] index of a chunk among the chunks of the padded batch
    owner: Tensor  # [C] index of a chunk's document
    one_hot: Tensor  # [C, B] bf16, 1 at the document of a chunk

    @classmethod
    def of(cls, lengths: np.ndarray, longest: int, device: torch.device) -> "Packed":
        """Create the layout of documents of `lengths` [B], all positive; `longest`: N."""
        chunks = -(-lengths // CHUNK)  # [B] number of chunks of each document
        first_chunk = chunks.cumsum() - chunks  # [B]
        owner = np.repeat(np.arange(len(lengths)), chunks)  # [C]
        of_document = np.arange(len(owner)) - first_chunk[owner]  # [C] index of a chunk in its document
        position = of_document[:, None] * CHUNK + np.arange(CHUNK)  # [C, CHUNK]
        first_row = first_chunk * CHUNK  # [B]
        # Pieces begin where documents begin and end; these places coincide if a last chunk is full, hence `unique`.
        pieces = np.unique(np.concatenate([first_row, first_row + lengths, [position.size]]))
        tensors = {
            "document": torch.from_numpy(np.repeat(owner, CHUNK).astype(np.int32)),
            "position": torch.from_numpy(position.astype(np.int32).ravel()),
            "first": torch.from_numpy(first_row),
            "pieces": torch.from_numpy(pieces.astype(np.int32)),
            "first_pieces": torch.from_numpy(np.searchsorted(first_row, pieces).astype(np.int32)),
            "mask": torch.from_numpy(np.arange(longest) < lengths[:, None]),
            "chunk_mask": torch.from_numpy(position < lengths[owner, None]),
            "indices": torch.from_numpy(owner * -(-longest // CHUNK) + of_document),
            "owner": torch.from_numpy(owner),
            "one_hot": torch.eye(len(lengths), dtype=torch.bfloat16)[owner],
        }
        return cls(**{name: to_device(tensor, device) for name, tensor in tensors.items()})

    def pad(self, x: Tensor) -> Tensor:
        """Convert rows [R, D] to a padded batch [B, N, D], which is zero after the last chunk of each document."""
        documents, longest = self.mask.shape
        # [chunks of the padded batch, CHUNK D]
        chunks = put(x.view(len(self.owner), -1), self.indices, documents * -(-longest // CHUNK))
        return chunks.view(documents, -1, x.shape[1])[:, :longest]  # [B, chunks CHUNK, D] -> [B, N, D]

    def unpad(self, x: Tensor) -> Tensor:
        """Convert a padded batch [B, N] or [B, N, D] to rows [R] or [R, D]; rows for positions >= N are zero."""
        more = -x.shape[1] % CHUNK
        x = pad(x, (0, more) if x.dim() == 2 else (0, 0, 0, more))
        chunks = x.unflatten(1, (-1, CHUNK)).flatten(0, 1).flatten(1)  # [chunks of the padded batch, CHUNK or CHUNK D]
        return _Take.apply(chunks, self.indices).view(-1, *x.shape[2:])  # [C, CHUNK or CHUNK D] -> [R] or [R, D]

    def firsts(self, x: Tensor) -> Tensor:
        """Return the first row of each document: [R, D] -> [B, D]."""
        return _Take.apply(x, self.first)

    def by_chunk(self, x: Tensor) -> Tensor:
        """Group rows by chunk, [R, H, D] -> [C, H, CHUNK, D]; for one row per document, [B, H, D] -> [B, H, 1, D]."""
        return x.unflatten(0, (-1, 1 if len(x) == len(self.mask) else CHUNK)).transpose(1, 2)

    def by_row(self, x: Tensor) -> Tensor:
        """Return rows from chunks, the inverse of `by_chunk`: [C, H, CHUNK, D] -> [R, H, D]."""
        return x.transpose(1, 2).flatten(0, 1)

    def sum_chunks(self, x: Tensor) -> Tensor:
        """Sum over the chunks of each document in fp32 or higher, in a fixed order: [C, ...] -> [B, ...]."""
        # [C, F] -> [B, F] -> [B, ...]
        return _SumChunks.apply(x.flatten(1), self.one_hot, self.owner).unflatten(1, x.shape[1:])

    def of_chunks(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Repeat the value of each document for its chunks, converted to `dtype`: [B, ...] -> [C, ...]."""
        # [B, F] -> [C, F] -> [C, ...]
        return _OfChunks.apply(x.flatten(1), self.one_hot, self.owner, dtype).unflatten(1, x.shape[1:])

    def max_over_documents(self, x: Tensor) -> Tensor:
        """Return maxima over the positions of each document, without gradient: [C, H, CHUNK, M] -> [B, H, 1, M]."""
        of_chunk = x.detach().amax(dim=-2, keepdim=True)  # [C, H, 1, M]
        index = self.owner.view(-1, 1, 1, 1).expand_as(of_chunk)
        largest = of_chunk.new_full((len(self.mask), *of_chunk.shape[1:]), -torch.inf)  # [B, H, 1, M]
        return largest.scatter_reduce(0, index, of_chunk, "amax")


def put(x: Tensor, indices: Tensor, rows: int) -> Tensor:
    """Return zeros [rows, D] with x [n, D] written to the rows `indices` [n], which must be distinct."""
    return x.new_zeros(rows, x.shape[1]).index_copy(0, indices, x)


def sum_by_document(x: Tensor, one_hot: Tensor) -> Tensor:
    """Sum x [C, F] over the chunks of each document -> [B, F], in fp32 or higher, as a product with `one_hot`.

    A product adds in a fixed order, but `index_add` on CUDA adds atomically, in any order.
    """
    if x.dtype == one_hot.dtype and is_asynchronous(x.device):
        return torch.mm(one_hot.T, x, out_dtype=torch.float32)
    x = at_least_float32(x)
    return one_hot.T.to(x.dtype) @ x


class _Take(torch.autograd.Function):
    """`index_select` for distinct indices, so that the gradient copies rows instead of adding them atomically."""

    @staticmethod
    def forward(ctx, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = len(x)
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        [indices] = ctx.saved_tensors
        return put(grad, indices, ctx.rows), None


class _SumChunks(torch.autograd.Function):
    """Function of `Packed.sum_chunks`: x [C, F] -> [B, F] in fp32 or higher."""

    @staticmethod
    def forward(ctx, x: Tensor, one_hot: Tensor, owner: Tensor) -> Tensor:
        ctx.save_for_backward(owner)
        ctx.dtype = x.dtype
        return sum_by_document(x, one_hot)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        # Each chunk gets the gradient of its document's sum.
        return grad.to(ctx.dtype).index_select(0, *ctx.saved_tensors), None, None


class _OfChunks(torch.autograd.Function):
    """Function of `Packed.of_chunks`: x [B, F] in fp32 or higher -> [C, F] in `dtype`."""

    @staticmethod
    def forward(ctx, x: Tensor, one_hot: Tensor, owner: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(one_hot)
        return x.to(dtype).index_select(0, owner)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return sum_by_document(grad, *ctx.saved_tensors), None, None, None
