"""What a block moves between its products, counted from shapes; on an accelerator also the time that it takes.

    python scripts/memory_traffic.py [--device cuda]

Counted is a training step under bf16 of everything in a block but its mixer, whose output is given: the two places
where the stream is added to, the norm between them and the feed-forward net, forward and backward. An operation reads
its arguments and writes its result once; views and empty tensors move nothing. `plain`: one operation after another, as
where Triton is missing; `fused`: `lra.ops.fused`.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.config import configure
from lra.config.compose import compose
from lra.core.console import say
from lra.model.architecture import Architecture
from lra.model.block import Block
from lra.ops import fused, noise_kernel
from lra.ops.dropout import has_kernel, set_keys
from lra.runs.device import device_of

TASKS = ("listops", "text", "matching")
PRODUCTS = ("mm", "addmm", "bmm")
ROUNDS = 20


class Given(nn.Module):
    """A mixer that costs nothing."""

    def mix(self, x: Tensor, key_mask: Tensor | None, reads: int | None) -> Tensor:
        """x in what products are computed in."""
        return x.detach().to(torch.bfloat16).requires_grad_()


@dataclass(frozen=True)
class Sizes:
    """Of a configuration: examples of a step, positions, and the block's architecture."""

    documents: int
    positions: int
    architecture: Architecture

    def block(self, dropout: float, device: str) -> Block:
        """With another dropout."""
        values = {**vars(self.architecture), "dropout": dropout}
        with torch.device(device):
            return Block(Given(), Architecture(**values)).train()

    def values(self, width: int) -> int:
        """Of one tensor of the step."""
        return self.documents * self.positions * width


def sizes_of(*overrides: str) -> Sizes:
    """Of the configuration that these overrides of lra-train give, with one CLS."""
    values = configure.plain(compose("train", *overrides))
    task, documents = values["task"], 2 if "matching" in values["task"]["_target_"] else 1
    positions = 1 + task.get("max_length", task.get("max_len"))
    return Sizes(documents * values["train"]["batch_size"], positions, Architecture(**values["model"]))


class Moved(TorchDispatchMode):
    """Adds up the bytes that operations other than products read and write, and of them the words of kernels' noise."""

    total = words = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and "empty" not in name and name not in (*PRODUCTS, "detach"):
            self.add(args, out)
        return out

    def add(self, *moved: object) -> None:
        """Count tensors, in whatever they lie."""
        self.total += sum(value.nbytes for value in tree_leaves(moved) if isinstance(value, Tensor))

    def launch(self, _kernel: object, _grid: tuple, *given: object, **_: object) -> None:
        """Count what a kernel would read and write."""
        self.add(given)
        self.words += sum(value.nbytes for value in given if isinstance(value, Tensor) and value.dtype == torch.int64)


def bytes_of(sizes: Sizes, *, fuse: bool, dropout: float) -> Moved:
    """What a step of one block moves."""
    block, moved = sizes.block(dropout, "meta"), Moved()
    x = torch.empty(sizes.documents, sizes.positions, sizes.architecture.dim, device="meta", requires_grad=True)
    with ExitStack() as stack:
        for module in ("block", "feed_forward"):
            stack.enter_context(patch(f"lra.model.{module}.autocast_dtype", lambda _: torch.bfloat16))
        stack.enter_context(patch("lra.ops.dropout.has_kernel", lambda _: fuse))
        for module in (noise_kernel, fused.kernels()):
            stack.enter_context(patch.object(module, "launch", moved.launch))
        set_keys(block, seed=1, step=0, rows=range(sizes.documents))
        stack.enter_context(moved)
        block(x, None).backward(torch.empty_like(x))
    return moved


def table(tasks: tuple[str, ...]) -> Iterator[str]:
    """Bytes of each task's step, all blocks."""
    yield "| task | plain, GB a step | fused, GB a step | noise, bytes a dropped value: plain | fused |"
    yield "|---|---:|---:|---:|---:|"
    for task in tasks:
        sizes = sizes_of(f"task={task}", "system=simple")
        plain, without, fused_ones = (
            bytes_of(sizes, fuse=fuse, dropout=dropout) for fuse, dropout in ((False, 0.1), (False, 0.0), (True, 0.1))
        )
        totals = (f"{sizes.architecture.depth * moved.total / 1e9:.1f}" for moved in (plain, fused_ones))
        values = sizes.values(sizes.architecture.dim + sizes.architecture.mlp_dim)
        of_noise = (f"{moved / values:.3f}" for moved in (plain.total - without.total, fused_ones.words))
        yield f"| {task} | {' | '.join([*totals, *of_noise])} |"


def times(sizes: Sizes) -> dict[str, float]:
    """Milliseconds of a step of one block, plain and fused by turns, and of a copy of its hidden layer."""
    block = sizes.block(0.1, "cuda")
    x = torch.randn(sizes.documents, sizes.positions, sizes.architecture.dim, device="cuda", requires_grad=True)
    hidden = torch.randn(sizes.values(sizes.architecture.mlp_dim), device="cuda").bfloat16()

    def step(fuse: bool) -> None:
        set_keys(block, seed=1, step=0, rows=range(sizes.documents))
        fused_or_not = patch("lra.ops.dropout.has_kernel", lambda device: fuse and has_kernel(device))
        with fused_or_not, torch.autocast("cuda", torch.bfloat16):
            y = block(x, None)
        y.backward(torch.ones_like(y))

    subjects = {"plain": lambda: step(False), "fused": lambda: step(True), "copy": hidden.clone}
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(ROUNDS + 3):
        for name, subject in subjects.items():
            seconds = _timed(subject)
            if turn >= 3:
                taken[name].append(seconds)
    return {name: median(values) for name, values in taken.items()}


def _timed(subject: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    subject()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measured(tasks: tuple[str, ...]) -> Iterator[str]:
    """Times of one block of each task."""
    yield "| task | plain, ms a block | fused | products alone take at least, FLOP | a copy, TB/s |"
    yield "|---|---:|---:|---:|---:|"
    for task in tasks:
        sizes = sizes_of(f"task={task}", "system=simple")
        taken, architecture = times(sizes), sizes.architecture
        flop = 12 * sizes.values(prod((architecture.dim, architecture.mlp_dim)))
        copied = 4 * sizes.values(architecture.mlp_dim) / taken["copy"] / 1e9
        yield f"| {task} | {taken['plain']:.2f} | {taken['fused']:.2f} | {flop:.2e} | {copied:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    given = parser.parse_args()
    for line in table(given.tasks):
        say(line, to_stdout=True)
    if device_of(given.device) == "cuda":
        for line in measured(given.tasks):
            say(line, to_stdout=True)


if __name__ == "__main__":
    main()
