"""Dropout in one pass, in Triton's interpreter, against the plain form for accelerators."""

import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from machine_code import compiled, over_targets, stack_of
from support import noise as values
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lra.core import streams
from lra.ops import dropout, noise
from lra.ops.dropout import LEVELS, Dropout, NoiseKey, _heads, _kept, _level, _mix, set_keys
from lra.ops.numbering import ColumnRun, Numbers

WORDS = streams.key(1, "dropout")
RUNS = [ColumnRun(7, 5, torch.tensor([0, 2, -1, 4, -3])), ColumnRun(3, 2, torch.zeros(5, dtype=torch.int64))]
CASES: list[tuple[tuple[int, ...], Numbers]] = [
    ((2, 1), "order"),
    ((5, 1031), "order"),
    ((3, 37, 41), "order"),
    ((3, 2, 7, 13), "order"),
    ((3, 37, 41), "channels"),
    ((2, 3, 31, 31), "pairs"),
    ((2, 3, 5, 11), "pairs"),
    ((7, 1, 1, 17), "pairs"),
    ((2, 3, 5, 7), 5),
    ((2, 3, 5, 7), 11),
    ((2, 3, 5, 7), RUNS),
    ((11, 1, 5, 7), RUNS),
]


def masked(layer: Dropout, shape: torch.Size, device: torch.device, numbers: Numbers = "order") -> Tensor:
    """`draw` in the plain form for accelerators."""
    return _kept(layer.key(shape[0]), shape, layer.p, device, numbers)


def keyed(layer: nn.Module, rows: int) -> nn.Module:
    set_keys(layer, seed=1, step=3, rows=[*range(rows, 1, -1), 0])
    return layer


def gradients(layer: nn.Module, x: Tensor, **options: object) -> list[Tensor]:
    """The output, and the gradient of its weighed sum by x and by the weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = keyed(layer, len(x))(x, **options)
    (y * torch.arange(y.numel()).view(y.shape).sin().to(y.dtype)).sum().backward()
    return [y.detach(), x.grad, *(weight.grad for weight in layer.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.9])
@pytest.mark.parametrize(("shape", "numbers"), CASES, ids=str)
def test_one_pass_is_the_plain_form_to_the_last_bit(
    kernel: ModuleType, shape: tuple[int, ...], numbers: Numbers, p: float, dtype: torch.dtype
) -> None:
    key = NoiseKey(words=WORDS, step=3, layer=1, rows=[*range(shape[0], 1, -1), 0])
    heads, inner = _heads(shape)
    words = words_of(3, key.rows, [1, heads]).on(torch.device("cpu"), 1, heads)
    rule = noise.rule_of(words, inner, _level(p), numbers)
    kept = _kept(key, shape, p, torch.device("cpu"), numbers)
    x = (values(prod(shape)).view(shape) + 3).to(dtype)
    assert torch.equal(kernel.drop(x, rule, 1 / (1 - p)), (x * (1 / (1 - p))).mul_(kept))
    assert torch.equal(kernel.drop(x.transpose(0, 1).contiguous().transpose(0, 1), rule, 1.0), x * kept)
    there = x.clone()
    assert kernel.drop(there, rule, 1.0, out=there) is there
    assert torch.equal(there, x * kept)


def test_a_value_whose_hash_is_as_large_as_the_level_is_kept(kernel: ModuleType) -> None:
    """It is so for one value in 65,536."""
    shape, words = (2, 100_003), torch.tensor([3, 5])
    mixed = _mix(_mix(torch.arange(shape[1])) ^ words[:, None]) & (LEVELS - 1)
    assert (mixed == _level(0.1)).any()
    dropped = kernel.drop(torch.ones(shape), noise.rule_of(words, shape[1:], _level(0.1), "order"), 1.0)
    assert torch.equal(dropped, (mixed >= _level(0.1)).float())


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("shape", "numbers"), CASES, ids=str)
def test_the_backward_pass_finds_the_same_noise(
    shape: tuple[int, ...], numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first batch, where it is not known how many heads there are, and in the second."""
    layer, x = Dropout(0.3).train(), values(prod(shape)).view(shape)
    actual = [gradients(layer, x, numbers=numbers) for _ in range(2)]
    monkeypatch.setattr(Dropout, "draw", masked)
    expected = gradients(layer, x, numbers=numbers)
    for of_batch in actual:
        assert all(map(torch.equal, of_batch, expected))


@pytest.mark.parametrize("numbering", ["order", "pairs", "channels", "columns", "runs"])
@over_targets
def test_it_compiles_for_an_accelerator(
    numbering: str, arch: int, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To machine code, which rounds bf16 to the nearest; the interpreter takes code that this refuses."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from lra.ops import noise_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"SCALE": 1 / 0.9, "NUMBERING": numbering, "BLOCK": noise_kernel.BLOCK, "LEADS": noise_kernel.LEADS}
    constants["WIDE"] = triton.language.float64 if dtype == "fp64" else triton.language.float32
    pointers = {"x": f"*{dtype}", "out": f"*{dtype}"}
    tables = ("words", "column_numbers", "run_of_column", "first")
    types = {name: pointers.get(name) or ("*i64" if name in tables else "i32") for name in noise_kernel._drop.arg_names}
    made = compiled(noise_kernel._drop, types, constants, arch, enable_fp_fusion=False)
    assert stack_of(made) == 0
    assert ("cvt.rn.bf16" in made.asm["ptx"]) == (dtype == "bf16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "numbers"), CASES, ids=str)
def test_a_gpu_finds_the_plain_form(shape: tuple[int, ...], numbers: Numbers, dtype: torch.dtype) -> None:
    layer = keyed(Dropout(0.3).train(), shape[0])
    device, x = torch.device("cuda"), (values(prod(shape)).view(shape) + 3).to("cuda", dtype)
    if isinstance(numbers, list):
        numbers = [run._replace(first=run.first.cuda()) for run in numbers]
    assert dropout.has_kernel(device)
    assert torch.equal(layer(x, numbers), (x * layer.scale).mul_(masked(layer, x.shape, device, numbers)))


def test_a_dropped_value_is_zero_whatever_it_was(kernel: ModuleType) -> None:
    rule = noise.rule_of(torch.zeros(1, dtype=torch.int64), (1009,), _level(0.5), "order")
    out = kernel.drop(torch.full((1, 1009), torch.nan), rule, 2.0)
    assert 0 < out.isnan().sum() < 1009
    assert set(out[~out.isnan()].tolist()) == {0.0}


def words_of(step: int, rows: Sequence[int], parts: Sequence[int]) -> noise.BatchWords:
    """Of a batch of all rows of a step."""
    return noise.BatchWords(noise.StepWords(WORDS, step, rows, parts), range(len(rows)))


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [2, 0], [3]])
def test_words_are_those_of_philox_and_are_made_once_and_copied_once(
    monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """For a batch of some rows of a step, in any order."""
    copied, made, first_raw = [], [], noise.first_raw
    monkeypatch.setattr(noise, "to_device", lambda words, _: copied.append(words) or words)
    monkeypatch.setattr(noise, "first_raw", lambda *given: made.append(given) or first_raw(*given))
    noise.words_of_steps.cache_clear()
    rows, parts, step, cpu = [5, 0, (1 << 32) - 1, 3], [1, 3, 2], 1_000_003, torch.device("cpu")
    step_words = noise.StepWords(WORDS, step, rows, parts)
    for _ in range(2):
        words = noise.BatchWords(step_words, places)
        for layer, count in enumerate(parts):
            key = NoiseKey(words=WORDS, step=step, layer=layer, rows=[rows[place] for place in places])
            expected = [key.bits(row, part).random_raw() >> 1 for row in key.rows for part in range(count)]
            assert words.on(cpu, layer, count).tolist() == expected
    assert (len(made), len(copied)) == (1, 2)
    assert words.on(cpu, 0, 2).tolist()[::2] == words.on(cpu, 0, 1).tolist()


def test_raw_words_carry_over_all_bits() -> None:
    counters = np.random.Generator(np.random.Philox(7)).integers(0, 1 << 64, (4, 101), np.uint64)
    expected = [np.random.Philox(key=WORDS, counter=counter).random_raw() for counter in counters.T]
    assert noise.first_raw(WORDS, counters).tolist() == expected


def test_without_triton_the_plain_form_is_taken_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "lra.ops.noise_kernel", raising=False)
    monkeypatch.delattr("lra.ops.noise_kernel", raising=False)
    dropout.kernel.cache_clear()
    try:
        assert not any(dropout.has_kernel(torch.device("cuda")) for _ in range(3))
    finally:
        dropout.kernel.cache_clear()
    assert capfd.readouterr().err.count("Triton is not installed") == 1


class Traffic(TorchDispatchMode):
    """Adds up the bytes of the tensors that operations read and write; views move none."""

    moved = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.moved += sum(value.nbytes for value in (*args, out) if isinstance(value, Tensor))
        return out


def test_the_bytes_that_noise_moves() -> None:
    """Besides reading and writing the data once each way, in a batch of four.

    Masks: 297 a value. Fourteen operations on all values read and write 235 bytes a value, since the hash is of int64,
    and twelve on the numbers of one example 208, a quarter of which counts; then each way a mask is read, 1, and the
    data are read and written once more, 4.
    The kernel: 8 for each row, forward and backward.
    """
    shape, p = (4, 101, 509), 0.1
    x = values(prod(shape)).view(shape).bfloat16()
    key = NoiseKey(words=WORDS, step=0, layer=0, rows=range(4))
    with Traffic() as plain:
        kept = _kept(key, shape, p, torch.device("cpu"))
        (x * (1 / (1 - p))).mul_(kept)  # forward
        (x * (1 / (1 - p))).mul_(kept)  # backward
    besides = plain.moved / x.numel() - 2 * (2 + 2)
    words = words_of(0, key.rows, [1]).on(torch.device("cpu"), 0, 1)
    rule = noise.rule_of(words, shape[1:], _level(p), "order")
    tensors = [value for value in vars(rule).values() if isinstance(value, Tensor)]
    assert 2 * sum(tensor.nbytes for tensor in tensors) / x.numel() <= 0.01  # forward and backward
    assert besides > 200
