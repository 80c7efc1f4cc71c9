"""Where kernels read and write in tensors of more than 2³² values, in Triton's interpreter, which reads and writes
nothing here."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lra.core import streams
from lra.ops import noise
from lra.ops.noise import Noise

LEADS, COLUMNS = 5, 137  # the last program of each kernel has one example alone, and 9 columns
ROWS = 13_000_027  # of an example
VALUES = LEADS * ROWS * COLUMNS
APART = 44  # bits of an address in a tensor


class LastProgram:
    """Runs the last program of each kernel that is started, and keeps which places of which tensors it meets."""

    def __init__(self, interpreter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: dict[int, list[np.ndarray]] = {}
        self.written: dict[int, list[np.ndarray]] = {}
        self.sizes: list[int] = []
        self._patch, self._interpreter, self._tensors = monkeypatch, interpreter, 0
        self._convert, builder = interpreter._implicit_cvt, interpreter.interpreter_builder
        self._load, self._dim, self._index = builder.create_masked_load, builder.set_grid_dim, builder.set_grid_idx
        monkeypatch.setattr(interpreter, "_implicit_cvt", self._address)
        monkeypatch.setattr(builder, "create_masked_load", self._reads)
        monkeypatch.setattr(builder, "create_masked_store", self._writes)

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
        """As `noise_kernel.launch`."""
        dims, builder = (*grid, 1, 1)[:3], self._interpreter.interpreter_builder
        self._patch.setattr(builder, "set_grid_dim", lambda *_: self._dim(*dims))
        self._patch.setattr(builder, "set_grid_idx", lambda *_: self._index(*(number - 1 for number in dims)))
        self.sizes = [value.numel() for value in arguments if isinstance(value, Tensor)]
        self.read, self.written, self._tensors = {}, {}, 0
        small = [torch.empty(1, dtype=value.dtype) if isinstance(value, Tensor) else value for value in arguments]
        kernel[1, 1, 1](*small, **options)

    def _address(self, argument: object) -> Any:
        made = self._convert(argument)
        if isinstance(argument, Tensor):
            made.handle.data[:] = self._tensors << APART
            self._tensors += 1
        return made

    def _reads(self, pointers: Any, mask: Any, *others: object) -> Any:
        self._keep(self.read, pointers, mask)
        nothing = self._interpreter.TensorHandle(np.zeros_like(mask.data), mask.dtype)
        return self._load(pointers, nothing, *others)

    def _writes(self, pointers: Any, _: Any, mask: Any, *others: object) -> None:
        self._keep(self.written, pointers, mask)

    def _keep(self, kept: dict[int, list[np.ndarray]], pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        for address in pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]:
            kept.setdefault(int(address) >> APART, []).append((int(address) & (1 << APART) - 1) // size)


@pytest.fixture
def last(interpreted: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> LastProgram:
    made = LastProgram(pytest.importorskip("triton.runtime.interpreter"), monkeypatch)
    for module in interpreted.values():
        monkeypatch.setattr(module, "launch", made.launch)
    return made


def ends(rows_of_program: int, columns: int, noisy: bool) -> list[int]:
    """The places of the last program: its rows of the last example, or of all rows, and so many last columns."""
    rows = ROWS if noisy else LEADS * ROWS
    count = rows % rows_of_program or rows_of_program
    lines = range(LEADS * ROWS - count, LEADS * ROWS)
    return [line * COLUMNS + column for line in lines for column in range(COLUMNS - columns, COLUMNS)]


def drops(numbers: str = "order") -> Noise:
    """A tenth of the values of each example."""
    step = noise.StepWords(streams.key(1, "dropout"), 3, range(LEADS), [1])
    words = noise.BatchWords(step, range(LEADS)).on(torch.device("cpu"), 0, 1)
    return noise.rule_of(words, (ROWS, COLUMNS), 6554, numbers)


def huge(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def check(last: LastProgram, places: list[int]) -> None:
    """Of every tensor of full size exactly these are met, of others nothing outside."""
    met = {number: last.read.get(number, []) + last.written.get(number, []) for number in range(len(last.sizes))}
    assert any(size == VALUES for size in last.sizes)
    for number, size in enumerate(last.sizes):
        if size == VALUES:
            assert sorted(set(met[number])) == places
        assert all(0 <= place < size for place in met[number])


@pytest.mark.parametrize("noisy", [True, False])
def test_an_activation(last: LastProgram, interpreted: dict[str, ModuleType], noisy: bool) -> None:
    kernels = interpreted["fused_kernels"]
    x, bias, places = huge(LEADS * ROWS, COLUMNS), huge(COLUMNS), ends(kernels.ROWS, 9, noisy)
    assert places[-1] == VALUES - 1 > 1 << 32
    kernels.activate(x, bias, drops() if noisy else None, "gelu")
    check(last, places)
    kernels.activate_backward(huge(*x.shape), x, bias, drops() if noisy else None, "gelu")
    check(last, places)
    assert max(last.written[3]) == last.sizes[3] - 1  # the sums


@pytest.mark.parametrize("noisy", [True, False])
def test_a_join(last: LastProgram, interpreted: dict[str, ModuleType], noisy: bool) -> None:
    kernels = interpreted["fused_kernels"]
    x, norm, places = huge(LEADS * ROWS, COLUMNS), huge(COLUMNS), ends(kernels.VALUES // 256, COLUMNS, noisy)
    stream, normed, moments = kernels.join(x, x, x, drops() if noisy else None, 1.1, (norm, norm, 1e-5), x.dtype)
    check(last, places)
    assert max(last.written[7]) == moments.numel() - 1
    kernels.join_backward(x, normed, stream, moments, norm, drops() if noisy else None, 1.1, x.dtype)
    met = last.written[1] + last.written[2]
    assert (max(met), min(met)) == (VALUES - 1, VALUES - len(set(met)))
    assert max(last.written[3]) == last.sizes[3] - 1  # the sums


@pytest.mark.parametrize("numbers", ["order", "pairs", "channels"])
def test_dropout(last: LastProgram, kernel: ModuleType, numbers: str) -> None:
    kernel.drop(huge(LEADS, ROWS, COLUMNS), drops(numbers), 1.1)
    places = list(range(VALUES - ROWS * COLUMNS % kernel.BLOCK, VALUES))
    assert places[-1] > 1 << 32
    check(last, places)
