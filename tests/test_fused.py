"""The passes between the products of a block, in Triton's interpreter, against the plain operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
import torch
from machine_code import compiled, over_targets, stack_of
from support import model_of, noise, stub_task
from torch import Tensor, nn

from lra.model.block import Block
from lra.model.feed_forward import FeedForward
from lra.ops import fused
from lra.ops.dropout import Dropout, _kept, set_keys

B, N, D, F = 3, 11, 7, 13
BLOCKS = [
    ("model.norm=pre", "model.extra_skip=true", "model.mixer_dropout=true"),
    ("model.norm=pre", "model.extra_skip=false", "model.mixer_dropout=false"),
    ("model.norm=post", "model.extra_skip=true", "model.mixer_dropout=true"),
    ("model.norm=post", "model.extra_skip=false", "model.feed_forward_output_gelu=true"),
    ("model.norm=none", "model.extra_skip=true", "model.feed_forward_activation=relu"),
    ("model.norm=pre", "model.dropout_over=channels", "model.mixer_dropout=true"),
]


def net(dropout: float, activation: str, bias: bool) -> FeedForward:
    made = FeedForward(
        D, F, dropout, dropout_over="values", activation=activation, output_gelu=False, bias=bias
    ).double()
    return made.train()


def block(*overrides: str) -> Block:
    """With weights of norms that are not one and zero."""
    sizes = [f"model.{key}" for key in ("dim=14", "qkv_dim=14", "heads=2", "mlp_dim=17", "depth=1", "dropout=0.3")]
    made = model_of(*sizes, *overrides, task=stub_task(max_len=N)).blocks[0].double().train()
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return made


@contextmanager
def plainly() -> Iterator[None]:
    """Without kernels, and with the noise of accelerators in its plain form."""

    def masked(layer: Dropout, shape: torch.Size, device: torch.device, numbers: object = None) -> Tensor | None:
        return _kept(layer.key(shape[0]), shape, layer.p, device, numbers or layer.numbers) if layer.drops else None

    with patch("lra.ops.dropout.has_kernel", lambda _: False), patch.object(Dropout, "draw", masked):
        yield


def passes(layer: nn.Module, x: Tensor, *arguments: object, bf16: bool = False) -> list[Tensor]:
    """The output, and the gradient of its weighed sum by x and by the weights."""
    set_keys(layer, seed=1, step=3, rows=[*range(len(x), 1, -1), 0])
    x = x.detach().clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16) if bf16 else nullcontext():
        y = layer(x, *arguments)
    weights = torch.arange(y.numel(), device=y.device).view(y.shape).sin().to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], weights)]


def error(actual: Tensor, exact: Tensor) -> float:
    return ((actual.double().cpu() - exact.cpu()).norm() / exact.cpu().norm()).item()


def check_errors(layer: nn.Module, x: Tensor, *arguments: object, device: str = "cpu") -> None:
    """In float32 and under bf16 the output and the gradients are together no further from float64 than twice the plain
    form's; each is short, so that a single one may be lucky."""
    with plainly():
        exact = passes(layer, x, *arguments)
    layer, x = layer.float().to(device), x.float().to(device)
    for bf16 in (False, True):
        actual = passes(layer, x, *arguments, bf16=bf16)
        with plainly():
            plain = passes(layer, x, *arguments, bf16=bf16)
        assert [value.dtype for value in actual] == [value.dtype for value in plain]
        actual_error, plain_error = (sum(map(error, values, exact)) for values in (actual, plain))
        assert 1e-8 < actual_error < 2 * plain_error


FEED_FORWARD = list(product([0.3, 0.0], ["gelu", "relu"], [True, False]))


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("dropout", "activation", "bias"), FEED_FORWARD)
def test_a_feed_forward_net_is_its_plain_form(dropout: float, activation: str, bias: bool) -> None:
    layer, x = net(dropout, activation, bias), noise(B, N, D)
    actual = passes(layer, x)
    with plainly():
        expected = passes(layer, x)
    for tensor, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-12, atol=1e-13)
        assert torch.equal(tensor == 0, reference == 0)
    check_errors(layer, x)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("reads", [None, 1])
@pytest.mark.parametrize("overrides", BLOCKS, ids=str)
def test_a_block_is_its_plain_form(overrides: tuple[str, ...], reads: int | None) -> None:
    layer, x = block(*overrides), noise(B, N, 14)
    layer.train(reads is None)
    actual = passes(layer, x, None, reads)
    with plainly():
        expected = passes(layer, x, None, reads)
    for tensor, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-11, atol=1e-12)
    check_errors(layer, x, None, reads)


@pytest.mark.usefixtures("fused")
def test_an_activation_in_many_tiles() -> None:
    """Of examples, of rows and of columns."""
    made = (
        FeedForward(2, 131, 0.3, dropout_over="values", activation="gelu", output_gelu=False, bias=True)
        .double()
        .train()
    )
    x = noise(5, 19, 2)
    actual = passes(made, x)
    with plainly():
        expected = passes(made, x)
    for tensor, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("columns", [2, 37, 257])
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=str)
def test_each_result_of_a_join_has_a_gradient(columns: int, wanted: tuple[int, ...]) -> None:
    """Whichever of the stream and its norm is read; over more rows than a program adds up."""
    norm, drop = nn.LayerNorm(columns).double(), Dropout(0.5).train()
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    set_keys(drop, seed=1, step=0, rows=range(6))
    given = [noise(6, 23, columns, seed=seed).requires_grad_() for seed in range(3)]

    def gradients() -> list[Tensor]:
        outputs = fused.join(given[0], given[1], drop, norm, extra=given[2])
        value = sum((outputs[number] * noise(6, 23, columns, seed=5 + number)).sum() for number in wanted)
        weights = list(norm.parameters()) if 1 in wanted else []
        return [*outputs, *torch.autograd.grad(value, [*given, *weights])]

    actual = gradients()
    with plainly():
        expected = gradients()
    for tensor, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("fused")
def test_what_is_no_number_stays_none() -> None:
    """So that a run that diverges is seen; large values are no error."""
    x = torch.tensor([[torch.nan, -1e30, 1e30, 0.0, 7.0]])
    for name, function in (("gelu", nn.functional.gelu), ("relu", torch.relu)):
        with np.errstate(all="ignore"):  # the interpreter computes the derivative, too
            activated = fused.kernels().activate(x, None, None, name)
        assert torch.equal(activated.isnan(), function(x).isnan())
        torch.testing.assert_close(activated[:, 1:], function(x)[:, 1:])


@pytest.mark.usefixtures("fused")
def test_kernels_stay_out_where_others_need_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a hook waits at one of them, and where torch.compile fuses."""
    layer, x = block(*BLOCKS[0]), noise(B, N, 14)
    monkeypatch.setattr(fused._Join, "apply", None)
    seen: list[str] = []
    names = ("mixer_dropout", "mixer_norm", "feed_forward_norm", "feed_forward.2", "feed_forward.4")
    hooks = [layer.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name)) for name in names]
    layer.feed_forward[0].register_forward_hook(lambda *_: seen.append("feed_forward.0"))
    passes(layer, x, None)
    assert set(seen) == {*names, "feed_forward.0"}
    for hook in hooks:
        hook.remove()
    for module in layer.modules():
        if isinstance(module, Dropout):
            module.as_mask = True
    with patch.object(Dropout, "draw", lambda *_: None):
        passes(layer, x, None)


def signatures(kernels: ModuleType, dtype: str) -> Iterator[tuple[Callable, dict[str, str], dict[str, object]]]:
    """Every kernel with the types of its arguments at full size, as a training step under bf16, in fp32 or fp64 has
    them."""
    import triton.language as tl

    wide = "*fp64" if dtype == "fp64" else "*fp32"
    constants = {"WIDE": tl.float64 if dtype == "fp64" else tl.float32, "NOISE": True, "LEADS": kernels.LEADS}
    of_activate = {**constants, "BIAS": True, "ROWS": kernels.ROWS, "COLUMNS": kernels.COLUMNS}
    of_join = {**constants, "SCALE": 1 / 0.9, "NORM": True, "COLUMNS": 512, "ROWS": kernels.VALUES // 512}
    narrow = ("x", "out", "bias", "grad") if dtype == "bf16" else ()
    for kernel in (kernels._activate, kernels._activate_backward):
        yield kernel, _types(kernel, narrow, wide), {**of_activate, "ACTIVATION": "gelu"}
    narrow = ("branch", "d_branch", "normed", "d_normed") if dtype == "bf16" else ()
    yield kernels._join, _types(kernels._join, narrow, wide), {**of_join, "EXTRA": True}
    positions = kernels.SUMMED * 512 // (kernels.VALUES * kernels.LEADS)
    types = _types(kernels._join_backward, narrow, wide)
    yield kernels._join_backward, types, {**of_join, "STREAM": True, "POSITIONS": positions}


def _types(kernel: Callable, narrow: tuple[str, ...], wide: str) -> dict[str, str]:
    scalars = {"words": "*i64", "eps": "fp32", **dict.fromkeys(("drops", "leads", "rows", "columns"), "i32")}
    return {name: scalars.get(name, "*bf16" if name in narrow else wide) for name in kernel.arg_names}


@over_targets
def test_they_compile_for_an_accelerator(
    arch: int, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To machine code; the interpreter takes code that this refuses. Of bf16, 16 bytes are read at once. In fp64, which
    tests alone take, the backward pass of a join does not find enough registers."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from lra.ops import fused_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, types, constants in signatures(fused_kernels, dtype):
        tensors = [name for name, kind in types.items() if kind.startswith("*") and name not in constants]
        aligned = [*tensors, "rows", "columns", "leads"]
        made = compiled(kernel, types, constants, arch, aligned=aligned, enable_fp_fusion=True)
        assert (stack_of(made) > 0) == (kernel is fused_kernels._join_backward and dtype == "fp64")
        assert "ld.global.v4.b32" in made.asm["ptx"] or dtype != "bf16"


@pytest.mark.gpu
@pytest.mark.parametrize(("dropout", "activation", "bias"), FEED_FORWARD)
def test_a_gpu_gives_the_feed_forward_net(dropout: float, activation: str, bias: bool) -> None:
    check_errors(net(dropout, activation, bias), noise(B, N, D), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("overrides", BLOCKS, ids=str)
def test_a_gpu_gives_the_block(overrides: tuple[str, ...]) -> None:
    check_errors(block(*overrides), noise(B, N, 14), None, None, device="cuda")
