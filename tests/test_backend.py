"""`attention.backend`: the chunked form on a CPU, the kernels of flash-linear-attention on CUDA."""

import pytest
import torch
from support import WITH_KERNELS, cases, mask_of, mixer_of, noise

from lra.core.errors import UserError
from lra.mixers import _backend

every_one = pytest.mark.parametrize("name", WITH_KERNELS)


@every_one
def test_on_a_cpu_the_default_is_the_chunked_form_to_the_last_bit(name: str) -> None:
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
    with pytest.raises(UserError, match="attention.backend=fla: .* found cpu, float32; .* use attention.backend=null"):
        mixer(noise(3, 11, 15).float())


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "extra"), [case for case in cases() if case[0] in WITH_KERNELS])
def test_the_kernels_give_the_numbers_of_the_chunks(name: str, extra: list[str], causal: bool) -> None:
    """Padded inputs: float32 kernels against float64 chunks on the CPU. Products in TF32 would err ten times more."""
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
