"""Draw the examples of each step, cut them into micro-batches, and compute the logits and loss of a micro-batch."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from lra.config.settings import Precision
from lra.core import streams
from lra.datasets.task import Split
from lra.network.model import Model
from lra.ops.device import is_asynchronous, to_device
from lra.ops.packing import Packed
from lra.training import distributed
from lra.training.recipe import Recipe

# Fixed cost of a micro-batch, as number of tokens * model width. CPU: measured at widths 64 to 256. CUDA: estimated.
OVERHEAD = {"cpu": 1 << 16, "cuda": 1 << 23}
PADDED = 0.05  # fraction of padding in a micro-batch above which packing pays

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token counts: `real` without padding, `computed` with it."""

    real: int = 0
    computed: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(real=self.real + other.real, computed=self.computed + other.computed)


def batches(size: int, recipe: Recipe, seed: int, start: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (step, indices [batch_size] of its examples) from step `start` on.

    Each epoch is a random permutation of `size` examples. The order depends only on (seed, size, batch_size), so all
    models with the same seed see the same data.
    """
    epoch, order = -1, np.empty(0, dtype=np.int64)
    for step in range(start, recipe.steps):
        # Indices of this step's draws among the draws of all steps and epochs.
        drawn = np.arange(step * recipe.batch_size, (step + 1) * recipe.batch_size)
        batch = np.empty(recipe.batch_size, dtype=np.int64)
        for number in np.unique(drawn // size):  # a batch may end one epoch and begin the next, or hold several
            if number != epoch:
                epoch, order = number, streams.generator(seed, "order", int(number)).permutation(size)
            in_epoch = drawn // size == number
            batch[in_epoch] = order[drawn[in_epoch] % size]
        yield step, batch


def cuts(
    model: Model, split: Split, examples: np.ndarray, size: int, precision: Precision
) -> Iterator[tuple[np.ndarray, int]]:
    """Cut this rank's part of a batch into micro-batches.

    If the model does not mask padding or has norms over the batch, each micro-batch is the next `size` examples.
    Otherwise the examples are sorted by length, longest first. If the mixers are packed, each micro-batch has up to
    about `size * max_len` tokens without padding. Else it has at most `size * max_len` tokens with padding, and
    `partition_by_cost` chooses the cuts. Of an example with several documents, only the longest one is counted.

    Yields:
        (indices [m] into the batch, length to which documents are padded)
    """
    lengths = split.lengths(examples).max(axis=1).clip(min=1)  # [batch]
    if not model.key_mask or model.whole_batches:
        # Without a mask all documents cost the same, so nothing is gained by sorting.
        own = distributed.shard(np.arange(len(examples)))
        for start in range(0, len(own), size):
            part = own[start : start + size]
            yield part, int(lengths[part].max()) if model.key_mask else model.max_len
        return
    # Documents of similar length need little padding.
    order = distributed.shard(np.argsort(-lengths, kind="stable"))
    if has_packed_mixers(model, precision):
        part_of = (lengths[order].cumsum() - 1) // (size * model.max_len)  # packed tokens have no padding to count
        for number in np.unique(part_of):
            part = order[part_of == number]
            yield part, int(lengths[part].max())
        return
    # Small parts waste less padding, but each part has a fixed cost: that of `overhead` tokens.
    overhead = OVERHEAD[model.every_parameter[0].device.type] // model.dim
    for piece in partition_by_cost(lengths[order], size * model.max_len, overhead):
        yield order[piece], int(lengths[order[piece.start]])


def has_packed_mixers(model: Model, precision: Precision) -> bool:
    """Return True if the model is on an accelerator and its mixers have a packed form for this precision."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return is_asynchronous(model.every_parameter[0].device) and model.packs(dtype)


def partition_by_cost(lengths: np.ndarray, max_tokens: int, overhead: int) -> list[slice]:
    """Return slices that cut documents with `lengths` [n], in descending order, into parts of the lowest total cost.

    The cost of a part is its number of tokens, padding included, plus `overhead`. A part has at most `max_tokens`
    tokens, or is a single document.
    """
    # Dynamic programming: costs[i] is the lowest cost of the first i documents, whose last part begins at starts[i].
    costs, starts, first = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=int), 0
    for stop in range(1, len(lengths) + 1):
        while first < stop - 1 and (stop - first) * lengths[first] > max_tokens:
            first += 1  # the longest document of a part is its first, and sets the padding of all
        tokens = np.arange(stop - first, 0, -1) * lengths[first:stop]
        total = costs[first:stop] + tokens + overhead
        starts[stop] = first + total.argmin()
        costs[stop] = total.min()
    parts, stop = [], len(lengths)
    while stop:
        parts.append(slice(starts[stop], stop))
        stop = starts[stop]
    return parts[::-1]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Examples of a micro-batch, as arrays on the host; P is the number of documents in an example."""

    indices: np.ndarray  # [m] indices of its examples in the batch
    tokens: np.ndarray  # [m P, length]
    targets: np.ndarray  # [m] classes, [m, length] next tokens, or one per scored position
    scored: np.ndarray | None  # flat indices of scored positions in `tokens`; None: all or none (`Split.scored`)
    lengths: np.ndarray  # [m P] number of tokens of each document

    @property
    def real(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())

    def packs(self, model: Model, precision: Precision) -> bool:
        """Return True if this micro-batch should be packed.

        Packing requires an accelerator, a model that can pack, and at least one token per document (CLS included). With
        these, micro-batches are packed:

        - in training, if more than the fraction `PADDED` of the tokens is padding, or always if the mixers have a
          packed form that is faster even without padding (`packs_unpadded`);
        - in evaluation, always if the mixers have a packed form, so that compiled blocks need one graph instead of two,
          else if more than the fraction `PADDED` is padding.
        """
        if not (
            is_asynchronous(model.every_parameter[0].device) and model.can_pack and (self.lengths + model.cls).all()
        ):
            return False
        if has_packed_mixers(model, precision) and (model.blocks[0].mixer.packs_unpadded or not model.training):
            return True
        return self.real < (1 - PADDED) * self.tokens.size

    @property
    def documents(self) -> list[int]:
        """Indices [m P] of its documents among all documents of the batch; they key the noise of dropout."""
        per_example = len(self.tokens) // len(self.indices)
        return (self.indices[:, None] * per_example + np.arange(per_example)).flatten().tolist()


def micro_batches(
    model: Model, split: Split, examples: np.ndarray, size: int, precision: Precision
) -> Iterator[MicroBatch]:
    """Yield the micro-batches into which `cuts` cuts this rank's part of a batch."""
    for indices, length in cuts(model, split, examples, size, precision):
        yield read(split, examples, indices, length)


def read(split: Split, examples: np.ndarray, indices: np.ndarray, length: int) -> MicroBatch:
    """Return the micro-batch of examples at `indices` of the batch `examples`, with documents padded to `length`."""
    chosen = examples[indices]
    return MicroBatch(
        indices=indices,
        tokens=split.pad(chosen, length),
        targets=split.targets(chosen),
        scored=split.scored(chosen, length),
        lengths=split.lengths(chosen).flatten(),
    )


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; a thread prepares the next one while the caller uses the current one."""
    with ThreadPoolExecutor(max_workers=1) as worker:
        following = worker.submit(next, items, None)
        while (item := following.result()) is not None:
            following = worker.submit(next, items, None)
            yield item


def predict(model: Model, part: MicroBatch, precision: Precision) -> tuple[Tensor, Tensor]:
    """Return the logits [m, classes], in fp32 or higher, and the targets [m] of a micro-batch with m predictions."""
    device = next(model.parameters()).device
    # Convert to int64, which embeddings need, only on the device: uint16 tokens are a quarter of the size.
    tokens = to_device(torch.from_numpy(part.tokens), device).long()
    labels = to_device(torch.from_numpy(part.targets), device)
    scored = None if part.scored is None else to_device(torch.from_numpy(part.scored), device)
    packed = None
    if part.packs(model, precision):
        packed = Packed.of(part.lengths + model.cls, tokens.shape[1] + model.cls, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(tokens, scored, packed).flatten(0, -2)
    # The loss needs at least fp32, because the 8 significant bits of bf16 are too few for a sum over classes.
    return logits.float() if logits.dtype == torch.bfloat16 else logits, labels.flatten()


def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the losses of outputs [m, classes] for targets [m].

    The loss is cross-entropy for classes, and the absolute error for numeric targets, where outputs are [m, 1]
    (continuous inputs, Amos et al. 2024).
    """
    if targets.is_floating_point():
        return l1_loss(outputs.squeeze(-1), targets, reduction="sum")
    return cross_entropy(outputs, targets, reduction="sum")


def classes_of(outputs: Tensor) -> Tensor:
    """Return the predicted class [m] of outputs [m, classes].

    A prediction with an output that is not finite gets the index `classes`, which is no class.
    """
    return torch.where(outputs.isfinite().all(dim=-1), outputs.argmax(dim=-1), outputs.shape[-1])


def counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return [number of correct classes (0 for numeric targets), number of predictions that are not finite]."""
    classes = classes_of(outputs)
    correct = (classes == targets).sum() * (not targets.is_floating_point())
    return torch.stack([correct, (classes == outputs.shape[-1]).sum()])
