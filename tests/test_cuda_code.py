"""Inductor's code of packed training steps for CUDA, generated without a device.

Graphs are traced on a CPU, moved to fake tensors on CUDA and lowered there, as for an H100. Their Triton kernels are
collected instead of compiled, and the traced graphs run on the CPU. For this the functions of PyTorch that ask for a
device are replaced.
"""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import model_of, noise, stub_task
from test_flash import backward, forward
from torch import Tensor, fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from lra.mixers import softmax
from lra.ops import packing
from lra.ops.dropout import set_keys
from lra.ops.packing import Packed
from lra.training.optimizer import compile_blocks

CUDA = torch.device("cuda", 0)
H100 = SimpleNamespace(
    name="NVIDIA H100", gcnArchName="", major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=1 << 16, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10, total_memory=80 << 30,
    L2_cache_size=50 << 20,
)  # fmt: skip
BATCHES = 20


class OnCpu(fx.Interpreter):
    """Runs a graph of CUDA's operations on a CPU, which lacks two of them."""

    def call_function(self, target, args, kwargs):
        if target is torch.ops.aten.mm.dtype:
            return args[0].to(args[2]) @ args[1].to(args[2])
        if target is softmax.BACKWARD.default:
            return backward(*args, **kwargs)
        return super().call_function(target, args, kwargs)


def lower(inner: Callable, graph: fx.GraphModule, inputs: list, **options: object) -> Callable:
    """Lower the graph for CUDA by `inner`, Inductor's function; return one that runs it on the CPU."""
    moved, fake = fx.GraphModule(graph, copy.deepcopy(graph.graph)), torch._guards.detect_fake_mode(inputs)

    def on_cuda(x: object) -> object:
        if isinstance(x, torch.device):
            return CUDA
        if isinstance(x, Tensor) and (x.dim() or x.is_floating_point()):  # seeds stay on the host
            with fake:
                return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA)
        return x

    for node in moved.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate(node.args, on_cuda), fx.node.map_aggregate(node.kwargs, on_cuda)
    moved.recompile()
    FakeTensorProp(moved, fake).propagate_dont_convert_inputs(*(values := [on_cuda(x) for x in inputs]))
    inner(moved, values, **options)

    def run(arguments: list) -> object:
        values = arguments.copy()
        arguments.clear()
        return OnCpu(graph).run(*values)

    run._boxed_call = True
    return run


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Triton code of kernels that the blocks of the test are compiled to."""
    driver = pytest.importorskip("triton.runtime.driver", reason="no Triton, which writes kernels for CUDA")
    compiler = pytest.importorskip("triton.backends.compiler")
    pytest.importorskip("triton.backends.nvidia", reason="this Triton has no backend for CUDA")
    if torch.cuda.is_available():
        pytest.skip("there is a device: scripts/test.sh -m gpu")
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import compile_fx, config
    from torch._inductor.async_compile import AsyncCompile

    collected = []

    def collect(_: object, name: str, source: str, device_str: str) -> SimpleNamespace:
        assert device_str == "cuda"
        collected.append(source)
        return SimpleNamespace(name=name)

    answers = {"get_device_properties": H100, "get_device_capability": (9, 0), "current_device": 0, "device_count": 1}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    answers |= {"is_available": True, "get_compute_capability": 90, "is_bf16_supported": True}
    for name, answer in answers.items():
        monkeypatch.setattr(CudaInterface, name, staticmethod(lambda *_, answer=answer, **__: answer), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    monkeypatch.setattr(AsyncCompile, "triton", collect)
    target = compiler.GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(driver.driver, "_active", SimpleNamespace(get_current_target=lambda: target))
    inner = partial(lower, compile_fx.compile_fx_inner)
    backend = partial(compile_fx.compile_fx, inner_compile=inner)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with config.patch(force_disable_caches=True, compile_threads=1):
        yield collected
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize(("system", "most"), [("simple", 80), ("linear", 95), ("transformer", 65)])
def test_text_steps_are_two_graphs_of_few_kernels(
    system: str, most: int, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks share one graph, the last has another; batches of other sizes need no more."""
    monkeypatch.setattr(packing, "is_asynchronous", lambda _: True)
    monkeypatch.setattr(softmax, "has_flash", lambda *_: True)
    monkeypatch.setattr(softmax, "FORWARD", forward)
    words = ("task=text", "protocol=strict", f"system={system}", "model.depth=3")
    model = model_of(*words, task=stub_task(max_len=300)).train()
    torch._dynamo.reset()
    compile_blocks(model)
    counters, rng = torch._dynamo.utils.counters, np.random.default_rng(1)
    counters.clear()
    kernels.clear()
    for step in range(BATCHES):
        lengths = rng.integers(1, 300, rng.integers(2, 6))
        packed = Packed.of(lengths, int(lengths.max()), torch.device("cpu"))
        set_keys(model, seed=1, step=step, rows=range(len(lengths)))
        x = noise(packed.chunk_mask.numel(), model.dim, seed=step).float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            for number, block in enumerate(model.blocks, start=1):
                x = block(x, None, 1 if number == len(model.blocks) else None, packed)
        x.float().sum().backward()
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 2
    assert 0 < len(kernels) <= most
