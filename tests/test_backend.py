"""`attention.backend`: without flash-linear-attention, or without CUDA, everything is as it is in chunks."""

from types import SimpleNamespace

import pytest
import torch
from support import WITH_KERNELS, cases, mask_of, mixer_of, noise

from lra.core.errors import UserError
from lra.mixers import _backend
from lra.mixers._backend import Scan

every_one = pytest.mark.parametrize("name", WITH_KERNELS)
EXPECTED = "attention.backend=fla: expected cuda, float32 and flash-linear-attention, found "
TO_DO = "; pip install flash-linear-attention and use device=cuda, or use attention.backend=null"
ON_A_CPU = f"{EXPECTED}cpu, float32{TO_DO}"


@pytest.fixture(params=[None, "0.6.0"], ids=["missing", "installed"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The version of flash-linear-attention, whatever is installed here."""
    monkeypatch.setattr(_backend, "version", lambda: request.param)
    return request.param


def test_the_attentions_that_have_kernels() -> None:
    assert WITH_KERNELS == ["gated_deltanet", "gla", "mamba2", "retention", "rwkv7"]


@every_one
def test_on_a_cpu_it_is_the_form_in_chunks_to_the_last_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the library is not looked for."""
    monkeypatch.setattr(_backend, "version", lambda: pytest.fail("looked for"))
    mask = mask_of([11, 4, 7], 11)
    values = []
    for chosen in ("null", "torch"):
        torch.manual_seed(1)
        mixer = mixer_of(name, f"attention.backend={chosen}").float()
        x = noise(3, 11, 15).float().requires_grad_()
        y = mixer(x, mask)
        values.append([y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])])
    assert all(torch.equal(first, second) for first, second in zip(*values, strict=True))


@every_one
def test_the_kernels_are_refused_on_a_cpu(name: str) -> None:
    mixer = mixer_of(name, "attention.backend=fla").float()
    with pytest.raises(UserError) as stop:
        mixer(noise(3, 11, 15).float())
    assert str(stop.value) == ON_A_CPU


@pytest.mark.parametrize("chosen", ["torch", "fla", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cuda", "cpu", "meta"])
def test_what_computes_where(device: str, dtype: torch.dtype, chosen: str | None, library: str | None) -> None:
    """The kernels wherever they can, unless ours are wanted; an error where they are wanted and cannot."""
    scan = Scan("gla", chosen)
    able = device == "cuda" and dtype == torch.float32 and library is not None
    if chosen == "fla" and not able and device != "meta":
        present = (
            f"{device}, {str(dtype)[6:]}{' and no flash-linear-attention' * (device == 'cuda' and library is None)}"
        )
        with pytest.raises(UserError) as stop:
            scan.on(device, dtype)
        assert str(stop.value) == f"{EXPECTED}{present}{TO_DO}"
        return
    assert scan.on(device, dtype) == ("fla" if able and chosen != "torch" else "torch")
    if dtype == torch.float32:  # as every run computes
        assert scan.describe(device) == ("fla 0.6.0" if able and chosen != "torch" else "torch")


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize(("triton", "wrong"), [("3.3.1", False), ("3.6.0", True), ("3.7.1", False)])
def test_a_kernel_that_is_known_to_be_wrong_is_not_taken(
    triton: str, wrong: bool, hopper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with the requirements that flash-linear-attention states."""
    above = {
        f"TRITON_ABOVE_{'_'.join(least)}": tuple(triton.split(".")) >= least
        for least in (("3", "4", "0"), ("3", "7", "1"))
    }
    facts = SimpleNamespace(IS_NVIDIA_HOPPER=hopper, **above)
    monkeypatch.setattr(_backend, "version", lambda: "0.6.0")
    monkeypatch.setattr(_backend, "import_module", lambda name: {"fla.utils": facts}[name])
    monkeypatch.setattr(_backend.metadata, "version", lambda name: {"triton": triton}[name])
    assert Scan("gla", None).on("cuda") == "fla"
    assert Scan("gated_delta_rule", None).on("cuda") == ("torch" if wrong and hopper else "fla")
    if wrong and hopper:
        with pytest.raises(UserError) as stop:
            Scan("gated_delta_rule", "fla").on("cuda")
        assert "found cuda, float32 and Triton 3.6.0 on a Hopper GPU" in str(stop.value)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "extra"), [case for case in cases() if case[0] in WITH_KERNELS])
def test_the_kernels_give_the_numbers_of_the_chunks(name: str, extra: list[str], causal: bool) -> None:
    """With padding; in float32, of those in float64 on the CPU. Products in TF32 would be off by ten times as much."""
    pytest.importorskip("fla.ops")
    sizes = {"max_positions": 131, "causal": causal}
    if lacks := _backend.missing(mixer_of(name, *extra, **sizes).scan.kernel):
        pytest.skip(lacks)
    exact = mixer_of(name, *extra, **sizes)
    kernels = mixer_of(name, *extra, "attention.backend=fla", **sizes).float().cuda()
    kernels.load_state_dict(exact.state_dict())
    values = []
    for mixer in (kernels, exact):
        like = next(mixer.parameters())
        x = noise(3, 131, 15).to(like).requires_grad_()
        y = mixer(x, mask_of([131, 67, 5], 131).to(like.device))
        gradients = torch.autograd.grad((y * noise(*y.shape, seed=9).to(like)).sum(), [x, *mixer.parameters()])
        values.append([part.double().cpu() for part in (y, *gradients)])
    for mine, theirs in zip(*values, strict=True):
        assert (mine - theirs).abs().max() <= 1e-4 * theirs.abs().max()
