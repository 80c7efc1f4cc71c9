"""Packed batches: documents laid end to end, without padding.

Legend: B documents, N positions of the longest, T positions of all, C chunks, D width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lra.ops.async_copy import to_device

CHUNK = 128  # positions of a chunk, which are of one document


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Layout of packed rows [T, ...], with conversions to padded batches [B, N, ...] and chunks [C, CHUNK, ...]."""

    lengths: tuple[int, ...]  # [B] on the host
    document: Tensor  # [T] int32
    position: Tensor  # [T] int32
    first: Tensor  # [B] row of position 0
    places: Tensor  # [T] indices into a padded batch [B N]
    slots: Tensor  # [T] indices into chunks [C CHUNK]
    mask: Tensor  # [B, N] True at real positions
    chunk_mask: Tensor  # [C, CHUNK], likewise
    owner: Tensor  # [C] document of a chunk
    one_hot: Tensor  # [C, B] fp32, 1 at the document of a chunk

    @classmethod
    def of(cls, lengths: np.ndarray, longest: int, device: torch.device) -> "Packed":
        """Create the layout of documents with these lengths [B], all positive; `longest`: N."""
        rows, chunks = np.arange(lengths.sum()), -(-lengths // CHUNK)
        document, first = np.repeat(np.arange(len(lengths)), lengths), lengths.cumsum() - lengths
        position = rows - first[document]
        slots = (chunks.cumsum() - chunks)[document] * CHUNK + position
        chunk_mask = np.zeros(chunks.sum() * CHUNK, dtype=bool)
        chunk_mask[slots] = True
        owner = np.repeat(np.arange(len(lengths)), chunks)
        arrays = {
            "document": document.astype(np.int32),
            "position": position.astype(np.int32),
            "first": first,
            "places": document * longest + position,
            "slots": slots,
            "mask": np.arange(longest) < lengths[:, None],
            "chunk_mask": chunk_mask.reshape(-1, CHUNK),
            "owner": owner,
            "one_hot": np.eye(len(lengths), dtype=np.float32)[owner],
        }
        tensors = {name: to_device(torch.from_numpy(array), device) for name, array in arrays.items()}
        return cls(lengths=tuple(lengths.tolist()), **tensors)

    def pad(self, x: Tensor) -> Tensor:
        """[T, D] -> [B, N, D], with zeros at padding."""
        return put(x, self.places, self.mask.shape)

    def unpad(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [T, D]."""
        return take(x.flatten(0, 1), self.places)

    def chunk(self, x: Tensor) -> Tensor:
        """[T, D] -> [C, CHUNK, D], with zeros where a document ends within a chunk."""
        return put(x, self.slots, self.chunk_mask.shape)

    def unchunk(self, x: Tensor) -> Tensor:
        """[C, CHUNK, D] -> [T, D]."""
        return take(x.flatten(0, 1), self.slots)

    def sum_chunks(self, x: Tensor) -> Tensor:
        """[C, ...] -> [B, ...], summed over the chunks of a document in fp32 or higher, always in the same order."""
        return (self.one_hot.to(x.dtype).T @ x.flatten(1)).unflatten(1, x.shape[1:])

    def of_chunks(self, x: Tensor) -> Tensor:
        """[B, ...] -> [C, ...], the value of each chunk's document; its gradient is summed by `sum_chunks`."""
        return (self.one_hot.to(x.dtype) @ x.flatten(1)).unflatten(1, x.shape[1:])

    def max_over_documents(self, x: Tensor) -> Tensor:
        """[C, H, CHUNK, M] -> [B, H, 1, M], maxima over the positions of a document, without gradient."""
        of_chunk = x.detach().amax(dim=-2, keepdim=True)
        index = self.owner.view(-1, 1, 1, 1).expand_as(of_chunk)
        largest = of_chunk.new_full((len(self.mask), *of_chunk.shape[1:]), -torch.inf)
        return largest.scatter_reduce(0, index, of_chunk, "amax")


def put(x: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """Write rows x [T, D] to distinct places of zeros [*shape, D]."""
    return x.new_zeros(shape.numel(), x.shape[1]).index_copy(0, places, x).unflatten(0, shape)


def take(x: Tensor, places: Tensor) -> Tensor:
    """Read rows [T, D] of x [R, D] at distinct places."""
    return _Take.apply(x, places)


class _Take(torch.autograd.Function):
    """`index_select` with a deterministic gradient: a copy instead of atomic additions."""

    @staticmethod
    def forward(ctx, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return put(grad, ctx.saved_tensors[0], torch.Size([ctx.rows])), None
