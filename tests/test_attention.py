"""Checks that every mixer in conf/attention/ must pass, and the equations of simple and softmax attention."""

import math
from copy import deepcopy

import pytest
import torch
from support import every_setting, maker, mask_of, mixer_of, noise, options, protocols_of, saved_bytes, shape

from lra.checks import CHECKS, Subject, run_checks
from lra.ops.dropout import set_keys


@every_setting
def test_every_mixer_passes_the_checks_of_lra_check(name: str, extra: list[str]) -> None:
    """All checks under strict, those of padding under each protocol; `test_gradients` checks the derivatives."""
    for protocol in protocols_of(name):
        tried = [check for check in CHECKS if check.name == "padding" or protocol == "strict"]
        make = maker(name, *extra, f"protocol={protocol}")
        subject = Subject(make, shape(dropout=0.3), lengths=(1, 11), tolerance=1e-7)
        results = list(run_checks(subject, tuple(check for check in tried if check.name != "gradient")))
        assert [result for result in results if result.verdict == "failed"] == [], protocol
        skipped = {result.check.name for result in results if result.verdict == "skipped"}
        assert ("padding" not in skipped) == subject.kind.maskable


@every_setting
def test_gradients(name: str, extra: list[str]) -> None:
    mixer = mixer_of(name, *extra)
    mask = mask_of([5, 3], 5) if mixer.maskable else None
    x = noise(2, 5, 15).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mixer(x, mask), x, fast_mode=True)
    mixer(x, mask).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@every_setting
def test_runs_on_the_meta_device(name: str, extra: list[str]) -> None:
    """`describe=true` uses this device to count operations without computing them."""
    with torch.device("meta"):
        mixer = mixer_of(name, *extra).eval()
        assert mixer(torch.empty(2, 11, 15, dtype=torch.float64)).shape == (2, 11, 15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
@every_setting
def test_weights_in_half_precision_give_the_numbers_of_fp32(name: str, extra: list[str], dtype: torch.dtype) -> None:
    if name == "reformer":
        extra = ["attention.chunk=100"]  # rounding may change buckets, which then matter
    mixer = mixer_of(name, *extra, max_positions=100).to(dtype)
    exact = deepcopy(mixer).float()
    for length in (1, 65, 100):
        x = noise(2, length, 15).to(dtype).requires_grad_()
        y, expected = mixer.mix(x, None, None), exact.mix(x.detach().float(), None, None)
        assert y.dtype == dtype
        assert (y.float() - expected).norm() <= 0.02 * expected.norm()
        gradients = torch.autograd.grad(y.float().sum(), [x, *mixer.parameters()], allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.gpu
@every_setting
def test_an_accelerator_gives_the_numbers_of_the_cpu(name: str, extra: list[str]) -> None:
    on_cpu, on_gpu = mixer_of(name, *extra), mixer_of(name, *extra).cuda()
    on_gpu.load_state_dict(on_cpu.state_dict())
    mask = mask_of([11, 4, 7], 11) if on_cpu.maskable else None
    x, y = noise(3, 11, 15).requires_grad_(), noise(3, 11, 15).cuda().requires_grad_()
    expected, actual = on_cpu(x, mask), on_gpu(y, None if mask is None else mask.cuda())
    torch.testing.assert_close(actual.cpu(), expected)
    expected.sum().backward()
    actual.sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


@every_setting
def test_memory_grows_as_declared(name: str, extra: list[str]) -> None:
    """From 512 to 2,048 positions linear memory grows at most fivefold, and other memory more than that."""
    growth = saved_bytes(name, extra, 2048) / max(1, saved_bytes(name, extra, 512))
    assert (growth <= 5) == mixer_of(name, *extra).info.linear_memory, growth


# ---------------------------------------------------------------- SimpleAttention


def heads(seed: int) -> torch.Tensor:
    return noise(2, 3, 7, 5, seed=seed)


@pytest.mark.parametrize(
    ("scale", "divisors"), [("none", [1, 1]), ("length", [13, 13]), ("valid", [7, 4]), ("valid_head", [7 * 5, 4 * 5])]
)
def test_simple_scales(scale: str, divisors: list[int]) -> None:
    q, k, v, mask = heads(1), heads(2), heads(3), mask_of([7, 4], 7)
    actual = mixer_of("simple", f"attention.scale={scale}").attend(q, k, v, mask)
    for row, divisor in enumerate(divisors):
        real = int(mask[row].sum())
        expected = (q[row] @ k[row, :, :real].transpose(-2, -1)) @ v[row, :, :real] / math.sqrt(divisor)
        torch.testing.assert_close(actual[row], expected, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- softmax


def test_softmax_in_training_is_the_fused_form_up_to_dropout() -> None:
    """The formed weights of training, with a dropout that keeps everything, are scaled_dot_product_attention."""
    q, k, v, mask = heads(1), heads(2), heads(3), mask_of([7, 4], 7)
    mixer = mixer_of("softmax", dropout=1e-9)
    set_keys(mixer, seed=1, step=0, documents=range(2))
    trained = mixer.train().attend(q, k, v, mask)
    torch.testing.assert_close(trained, mixer.eval().attend(q, k, v, mask))


@pytest.mark.parametrize("dropout_on", ["state", "output"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    ("scale", "reads", "out_proj", "bias"),
    [("length", None, True, True), ("valid", 17, True, False), ("valid_head", 3, False, True), ("none", 1, True, True)],
)
def test_the_gram_form_is_the_textbook_form(
    scale: str, reads: int | None, out_proj: bool, bias: bool, masked: bool, dropout_on: str
) -> None:
    """Outputs and all gradients, with the same dropout."""
    options = (f"attention.dropout_on={dropout_on}", f"attention.scale={scale}")
    switches = {"out_proj": out_proj, "bias": bias, "dropout": 0.3}
    textbook, gram = (
        mixer_of("simple", *options, f"attention.form={form}", max_positions=401, **switches).train()
        for form in ("textbook", "gram")
    )
    gram.load_state_dict(textbook.state_dict())
    length = 401  # several pieces of the sums, of which one has no real position of the second document
    mask = mask_of([length, 5, length - 4], length) if masked else None
    results = []
    for mixer in (textbook, gram):
        set_keys(mixer, seed=1, step=2, documents=range(3))
        x = (noise(3, length, 15) + 1).requires_grad_()
        y = mixer(x, mask, reads)
        (y * noise(*y.shape, seed=1)).sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in mixer.parameters())])
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("bf16", "bound"), [(False, 1e-5), (True, 0.01)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shared", [0.0, 1.0], ids=["noise", "noise and a shared vector"])
def test_the_gram_form_rounds_no_more_than_the_textbook_form(shared: float, bf16: bool, bound: float) -> None:
    """Compare mean relative errors of outputs in float32, or under autocast, over three inputs of the width of text."""
    errors = {"textbook": 0.0, "gram": 0.0}
    for seed in range(3):
        x = noise(1, 769, 256, seed=seed) + shared * noise(256, seed=seed + 10)
        for form in errors:
            mixer = mixer_of("simple", f"attention.form={form}", dim=256, qkv_dim=256, heads=4, max_positions=769)
            exact = mixer(x)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                y = mixer.float()(x.float())
            errors[form] += ((y - exact).norm() / exact.norm()).item() / 3
    assert 0 < errors["gram"] < errors["textbook"] < bound


@pytest.mark.parametrize("name", options("attention"))
def test_the_first_outputs_alone_are_those_of_all(name: str) -> None:
    for reads in (1, 3):
        mixer, x = mixer_of(name, max_positions=41), noise(2, 37, 15)
        mask = mask_of([37, 19], 37) if mixer.maskable else None
        torch.testing.assert_close(mixer.mix(x, mask, reads), mixer.mix(x, mask, None)[:, :reads])
