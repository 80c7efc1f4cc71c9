"""Accelerator behaviour checked without a device: nothing in a step waits for it, and looking at a step's
numbers late changes nothing.

PyTorch's meta device stands for the accelerator. Its tensors have no values, so that whatever needs one fails there by
itself; `Watch` also catches copies for which a GPU's driver would wait.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from support import TINY_MODEL, WITH_KERNELS, cases, model_of, small_recipe, stub_task
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.core.errors import UserError
from lra.data import Task
from lra.model.model import Model
from lra.ops import device as devices
from lra.ops import dropout
from lra.ops.device import to_device
from lra.training import batches
from lra.training import evaluate as evaluating
from lra.training import fit as fitting
from lra.training import update as updating
from lra.training.batches import Tokens
from lra.training.fit import Training, fit
from lra.training.update import Diverged, make_optimizer, update

aten = torch.ops.aten
COPIES = {aten._to_copy, aten.copy_}
INDEXED = {aten.index, aten.index_put, aten.index_put_}
VALUES_NEEDED = {  # shapes, or the host's way, depend on values
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.bincount, aten.equal, aten.is_nonzero, aten.isin, aten.repeat_interleave,
    aten._linalg_check_errors, aten.histc,
}  # fmt: skip
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
FROM_LISTS = {torch.tensor, torch.as_tensor, Tensor.new_tensor}


class Waits(Exception):
    """The host would wait for the accelerator."""


class Watch(TorchDispatchMode):
    """Raises `Waits` for an operation that makes the host wait, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.pinned: list[Tensor] = []

    def pin(self, host: Tensor) -> Tensor:
        self.pinned.append(host.clone())
        return self.pinned[-1]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there, here = ([tensor for tensor in tensors if tensor.is_meta == meta] for meta in (True, False))
        kind = func.overloadpacket
        self.operations += bool(there)
        if kind in COPIES:
            self._check_copy(func, args, kwargs)
        elif there and kind in VALUES_NEEDED:
            raise Waits(f"{func} needs values of the accelerator")
        elif there and any(tensor.dim() for tensor in here):
            raise Waits(f"{func} copies a tensor of the host")
        elif there and kind in INDEXED:
            masks = any(tensor is not None and tensor.dtype == torch.bool for tensor in args[1])
            if masks and (kind is aten.index or args[2].numel() > 1):
                raise Waits(f"{func} counts what a mask selects")
        return func(*args, **kwargs)

    def _check_copy(self, func, args, kwargs) -> None:
        source = args[0] if func.overloadpacket is aten._to_copy else args[1]
        target = args[0].device if func.overloadpacket is aten.copy_ else kwargs.get("device") or source.device
        if source.is_meta and target.type == "cpu":
            raise Waits(f"{func} fetches values of the accelerator")
        if not source.is_meta and target.type == "meta" and source.dim():
            never_waits = kwargs.get("non_blocking") or (func.overloadpacket is aten.copy_ and args[2:] == (True,))
            if not (never_waits and any(source is pinned for pinned in self.pinned)):
                raise Waits(f"{func} copies pageable memory, or waits for the copy")


class Lists(TorchFunctionMode):
    """Raises `Waits` where a tensor of the accelerator is made of a list, which is a copy that `Watch` cannot see."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = args[0].device if func is Tensor.new_tensor else torch.device(kwargs.get("device") or "cpu")
        if func in INDEXING and args[0].is_meta:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(place, list) for place in places):
                raise Waits(f"{func} copies a list of places")
        if func in FROM_LISTS and device.type == "meta":
            raise Waits(f"{func} copies a list")
        return func(*args, **kwargs)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Watches, with the meta device for the accelerator; `with watch, Lists()` begins."""
    watch = Watch()
    for module in (devices, batches):
        monkeypatch.setattr(module, "is_asynchronous", lambda device: device.type == "meta")
    monkeypatch.setattr(Tensor, "pin_memory", lambda host: watch.pin(host))
    monkeypatch.setitem(batches.OVERHEAD, "meta", 0)
    monkeypatch.setitem(
        vars(sys.modules["torch.optim.optimizer"]), "_get_fused_kernels_supported_devices", lambda: ["meta"]
    )
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda _, *args, **options: autocast("cpu", *args, **options))
    monkeypatch.setattr(updating, "AsyncNumbers", lambda numbers: numbers)
    return watch


def step_on(watch: Watch, *overrides: str, documents: int = 1) -> int:
    """A whole step there, of a batch in two parts or more; returns its operations."""
    task = stub_task(documents=documents)
    with torch.device("meta"):
        model = model_of(*TINY_MODEL, "model.dropout=0.3", *overrides, task=task)
    recipe = small_recipe(batch_size=5, micro_batch=3, clip_norm=1.0)
    optimizer = make_optimizer(model, recipe)
    with watch, Lists():
        update(model, optimizer, task.train, np.arange(5), recipe, seed=2, step=3, precision="fp32")
    assert all(parameter in optimizer.state for parameter in model.parameters())
    return watch.operations


USUAL = ("simple", "softmax", "performer", "sinkhorn")
CASES = [pytest.param(*case, marks=[] if case[0] in USUAL and not case[1] else pytest.mark.slow) for case in cases()]


@pytest.mark.parametrize("name,extra", CASES)
def test_no_step_waits(watch: Watch, name: str, extra: list[str]) -> None:
    """Gradients of several parts, clipped; with masks where the mechanism takes them, and then packed."""
    try:
        operations = step_on(watch, f"attention={name}", *extra, "protocol=strict")
    except UserError:  # it cannot mask
        operations = step_on(watch, f"attention={name}", *extra, "protocol=paper", "model.pooling=mean")
    assert operations > 100


def test_no_step_waits_without_masks_nor_for_pairs_of_documents(watch: Watch) -> None:
    assert step_on(watch, "system=simple", "protocol=paper", documents=2) > 100
    assert step_on(watch, "attention=softmax", "protocol=strict", "model.pooling=last") > 100


@pytest.mark.parametrize("over", ["values", "channels"])
@pytest.mark.parametrize("shape", [(2, 7), (2, 5, 3), (2, 3, 5, 5)])
def test_no_noise_waits(watch: Watch, shape: tuple[int, ...], over: str) -> None:
    layer = dropout.Dropout(0.3, over).train()
    model = torch.nn.ModuleList([layer, torch.nn.Linear(1, 1, device="meta")])
    with watch, Lists():
        dropout.set_keys(model, seed=1, step=2, rows=[4, 0])
        layer(torch.empty(shape, device="meta"))
    assert watch.operations > 5


MISTAKES: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: (x > 0).nonzero(),
    "mask set": lambda x: x.index_put((x > 0,), x.flatten()),
    "list": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "list index": lambda x: x[[0, 1]],
    "pageable, asked not to wait": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "pinned, but waiting": lambda x: torch.ones(3).pin_memory().to(x.device),
    "copy_": lambda x: x.copy_(torch.ones(x.shape)),
    "in backward": lambda x: x.register_hook(lambda gradient: gradient.sum().item()),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_the_watch_sees(watch: Watch, mistake: Callable[[Tensor], object]) -> None:
    layer = torch.nn.Linear(3, 5, device="meta")
    with pytest.raises(Waits), watch, Lists():
        y = layer(to_device(torch.ones(2, 3), torch.device("meta")))
        mistake(y)
        y.sum().backward()
    assert watch.operations > 0


def diverging(model: Model, step: int) -> None:
    """Let the gradient be infinite in this step, and in no other."""
    redraw, now = model.redraw, []
    model.redraw = lambda seed, at: now.append(at) or redraw(seed, at)
    model.head[0].bias.register_hook(lambda gradient: gradient * (torch.inf if now[-1] == step else 1))


def history(monkeypatch: pytest.MonkeyPatch, behind: int, poisoned: int | None) -> tuple[list, dict, dict, str]:
    """The measurements of seven steps and what a checkpoint would hold after each, then at the end; and the error."""
    monkeypatch.setattr(fitting, "is_asynchronous", lambda _: behind)
    monkeypatch.setattr(evaluating, "is_asynchronous", lambda _: behind)
    task, recipe, said = stub_task(), small_recipe(clip_norm=0.5, eval_every=5, compile=False), ""
    torch.manual_seed(1)
    model = model_of(*TINY_MODEL, "attention=performer", "attention.redraw_every=1", "model.dropout=0.3", task=task)
    training, states, measured = Training(model, recipe), {}, []
    if poisoned is not None:
        diverging(model, poisoned)

    def state() -> dict:
        return {name: value.clone() for name, value in training.tensors().items()} | {"step": training.step}

    def on_step(step: int, loss: float, tokens: Tokens) -> None:
        if step in (2, 3):  # a checkpoint is due
            training.look()
            states[step] = state()
        assert len(training.updates) <= behind

    try:
        for now in fit(training, task, recipe, seed=3, precision="fp32", on_step=on_step):
            measured.append({**asdict(now), "train_seconds": 0, "eval_seconds": 0})
    except Diverged as error:
        said = str(error)
    return measured, states, state(), said


@pytest.mark.parametrize("poisoned", [None, 0, 4])
@pytest.mark.parametrize("behind", [1, 3])
def test_looking_later_changes_nothing(monkeypatch: pytest.MonkeyPatch, behind: int, poisoned: int | None) -> None:
    """Weights, features, the optimiser's state, losses, tokens, and the step that is named. Steps 3 and 4 are followed
    by others before anyone looks; the last is looked at with the measurement."""
    actual, expected = (history(monkeypatch, number, poisoned) for number in (behind, 0))
    assert (f"step {poisoned} is " in expected[-1]) == (poisoned is not None)
    assert (actual[0], actual[-1]) == (expected[0], expected[-1])
    torch.testing.assert_close(actual[1:3], expected[1:3], rtol=0, atol=0)
    assert poisoned is None or expected[2]["step"] == poisoned


def test_a_step_that_is_not_finite_moves_nothing_nor_do_those_after_it() -> None:
    task, recipe = stub_task(), small_recipe(clip_norm=0.5)
    model = model_of(*TINY_MODEL, task=task)
    training = Training(model, recipe)
    diverging(model, 3)
    kept = []
    for step in range(6):
        update(model, training.optimizer, task.train, np.arange(8), recipe, seed=2, step=step, precision="fp32")
        kept.append({name: value.clone() for name, value in training.tensors().items()})
    for earlier, later in pairwise(kept[2:]):
        torch.testing.assert_close(later, earlier, rtol=0, atol=0)
    assert not torch.equal(kept[1]["model/head.0.weight"], kept[2]["model/head.0.weight"])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name,extra", [case for case in cases() if not case[1]])
def test_a_gpu_is_not_waited_for(name: str, extra: list[str]) -> None:
    unwaited(name, *["attention.backend=torch"] * (name in WITH_KERNELS))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_a_gpu_is_not_waited_for_by_kernels(name: str) -> None:
    pytest.importorskip("fla.ops")
    model, _ = unwaited(name)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def unwaited(name: str, *overrides: str) -> tuple[Model, Task]:
    """Return PyTorch's own report of a step, after a warm-up step."""
    task, recipe = stub_task(), small_recipe(batch_size=5, micro_batch=3, clip_norm=1.0)
    sizes = (*TINY_MODEL, "model.dropout=0.3", "protocol=paper", "model.pooling=mean")
    model = model_of(*sizes, f"attention={name}", *overrides, task=task).cuda()
    training = Training(model, recipe)
    for step, mode in enumerate(("default", "error")):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            asked = update(
                model, training.optimizer, task.train, np.arange(5), recipe, seed=2, step=step, precision="bf16"
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
        asked.look()
    return model, task
