"""Laws that every mixer in conf/attention/ must keep, and the identities of simple and softmax."""

import math
from collections.abc import Callable

import pytest
import torch
from support import (
    every_attention,
    every_setting,
    facts,
    maker,
    mask_of,
    mixer_of,
    model_of,
    noise,
    options,
    protocols_of,
    saved_bytes,
    settings,
    shape,
)

from lra.attention import Mixer
from lra.core.errors import UserError
from lra.laws import LAWS, findings, trial_of
from lra.ops.dropout import set_keys
from lra.ops.gram import Moments, Product, ProductByHead


def masks_only(mixer: Mixer) -> None:
    if not mixer.maskable:
        pytest.skip(f"{type(mixer).__name__} declares that it cannot mask")


@every_attention
def test_keeps_the_laws_that_lra_check_tries(name: str, extra: list[str]) -> None:
    """All of them under strict, those of padding under each protocol; `test_gradients` looks at the derivatives."""
    for protocol in protocols_of(name):
        tried = [law for law in LAWS if law.name in ("padding", "length") or protocol == "strict"]
        trial = trial_of(
            maker(name, *extra, f"protocol={protocol}"), shape(dropout=0.3), lengths=(1, 2, 11), tolerance=1e-7
        )
        verdicts = list(findings(trial, tuple(law for law in tried if law.name != "gradient")))
        assert [finding for finding in verdicts if finding.verdict == "broken"] == [], protocol
        silent = {finding.law.name for finding in verdicts if finding.verdict == "silent"}
        assert ("padding" not in silent) == trial.kind.maskable


@every_setting
def test_an_empty_row_is_finite(name: str, extra: list[str]) -> None:
    mixer = mixer_of(name, *extra, "protocol=strict")
    masks_only(mixer)
    x = noise(1, 7, 15).requires_grad_()
    y = mixer(x, mask_of([0], 7))
    assert y.isfinite().all()
    y.sum().backward()
    assert x.grad.isfinite().all()


@every_setting
def test_evaluation_draws_nothing(name: str, extra: list[str]) -> None:
    mixer, x = mixer_of(name, *extra, dropout=0.5).eval(), noise(2, 11, 15)
    state, weights = torch.get_rng_state(), {key: value.clone() for key, value in mixer.state_dict().items()}
    torch.testing.assert_close(mixer(x), mixer(x), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[key]) for key, value in mixer.state_dict().items())


@every_setting
def test_training_is_a_function_of_seed_step_and_row(name: str, extra: list[str]) -> None:
    """Any cut of a batch meets the same noise, and nothing comes from the global generator."""
    mixer, x = mixer_of(name, *extra, dropout=0.3).train(), noise(3, 11, 15)

    def forward(rows: list[int], seed: int, step: int) -> torch.Tensor:
        mixer.redraw(seed, step)
        set_keys(mixer, seed=seed, step=step, rows=rows)
        return mixer(x[rows])

    state = torch.get_rng_state()
    whole = forward([0, 1, 2], 5, 3)
    other = forward([0, 1, 2], 7, 0)
    torch.testing.assert_close(forward([2], 5, 3), whole[2:])
    torch.testing.assert_close(forward([0, 1, 2], 7, 0), other, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


@every_attention
def test_gradients(name: str, extra: list[str]) -> None:
    mixer = mixer_of(name, *extra)
    mask = mask_of([5, 3], 5) if mixer.maskable else None
    x = noise(2, 5, 15).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mixer(x, mask), x, fast_mode=True)
    mixer(x, mask).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@every_setting
@pytest.mark.parametrize("spread", [1, 10])
def test_is_finite_in_fp32_and_bf16(name: str, extra: list[str], spread: int) -> None:
    mixer = mixer_of(name, *extra).float()
    x = (spread * noise(2, 13, 15).float()).requires_grad_()
    mask = mask_of([13, 7], 13) if mixer.maskable else None
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = mixer(x, mask)
        assert y.isfinite().all()
        (gradient,) = torch.autograd.grad(y.float().sum(), x)
        assert gradient.isfinite().all()


@every_setting
def test_a_causal_form_sees_nothing_later(name: str, extra: list[str]) -> None:
    if not mixer_of(name, *extra).can_be_causal:
        pytest.skip(f"{name} declares that it has no causal form")
    for protocol in protocols_of(name):
        mixer, x = mixer_of(name, *extra, f"protocol={protocol}", causal=True), noise(1, 7, 15)
        jacobian = torch.autograd.functional.jacobian(lambda x, mixer=mixer: mixer(x).sum(dim=-1)[0], x)[:, 0]
        reads = jacobian.abs().sum(dim=-1)
        assert not reads.triu(1).any()
        assert (reads.tril(-1).sum(dim=1)[1:] > 0).all()


@pytest.mark.parametrize("name", ["simple", "softmax", "linear", "performer", "cosformer", "retention"])
def test_the_last_position_of_the_causal_form_is_that_of_the_two_sided_one(name: str) -> None:
    causal, two_sided, x = mixer_of(name, causal=True), mixer_of(name), noise(1, 13, 15)
    two_sided.load_state_dict(causal.state_dict())
    torch.testing.assert_close(causal(x)[:, -1], two_sided(x)[:, -1])


@every_setting
def test_commutes_with_permutations_or_says_that_it_does_not(name: str, extra: list[str]) -> None:
    mixer, x = mixer_of(name, *extra), noise(2, 11, 15)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    same = torch.allclose(mixer(x[:, order]), mixer(x)[:, order])
    assert same == mixer.commutes


@every_setting
def test_runs_on_the_meta_device(name: str, extra: list[str]) -> None:
    """As `describe=true` does, which counts operations without doing them."""
    with torch.device("meta"):
        mixer = mixer_of(name, *extra).eval()
        assert mixer(torch.empty(2, 11, 15, dtype=torch.float64)).shape == (2, 11, 15)


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


@every_attention
def test_memory_grows_as_declared(name: str, extra: list[str]) -> None:
    """From 1,024 to 4,096 positions: fourfold where it is linear (a quarter more is allowed), else clearly more."""
    growth = saved_bytes(name, extra, 4096) / max(1, saved_bytes(name, extra, 1024))
    assert (growth <= 5) == mixer_of(name, *extra).card.linear, growth


@pytest.mark.parametrize("variant", options("variant"))
@pytest.mark.parametrize("name", options("attention"))
def test_every_attention_takes_the_variants_that_mean_something(name: str, variant: str) -> None:
    sizes = [f"model.{key}" for key in ("dim=12", "qkv_dim=12", "heads=3", "mlp_dim=17", "depth=2", "dropout=0")]
    out_proj, extra_skip = (settings(f"variant={variant}")["model"][key] for key in ("out_proj", "extra_skip"))
    sizes += [f"model.out_proj={out_proj}", f"model.extra_skip={extra_skip}"]

    def logits() -> torch.Tensor:
        model = model_of(f"attention={name}", *sizes, task=facts(max_len=11)).eval()
        return model(torch.randint(1, 17, (2, 11)))

    if mixer_of(name).projects_out or out_proj:
        assert logits().shape == (2, 5)
    else:
        with pytest.raises(UserError, match="no output projection to leave out: use variant="):
            logits()


# ---------------------------------------------------------------- SimpleAttention


def heads(seed: int) -> torch.Tensor:
    return noise(2, 3, 7, 5, seed=seed)


def test_simple_is_the_quadratic_order() -> None:
    """(q k^T) v / sqrt(max_positions), formed in the other order."""
    q, k, v = heads(1), heads(2), heads(3)
    actual = mixer_of("simple").attend(q, k, v, None)
    expected = (q @ k.transpose(-2, -1)) @ v / math.sqrt(13)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_simple_is_trilinear() -> None:
    q, k, v = heads(1), heads(2), heads(3)
    attend = mixer_of("simple").attend
    torch.testing.assert_close(attend(2 * q, 3 * k, 5 * v, None), 30 * attend(q, k, v, None), rtol=1e-12, atol=1e-12)


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


def test_simple_has_no_output_projection_unless_asked() -> None:
    assert {name.split(".")[0] for name in mixer_of("simple").state_dict()} == {"query", "key", "value"}
    assert "out.weight" in mixer_of("simple", out_proj=True).state_dict()


# ---------------------------------------------------------------- softmax


@pytest.mark.parametrize(("scale", "width"), [("head_dim", 5), ("qkv_dim", 15)])
def test_softmax_by_loops(scale: str, width: int) -> None:
    q, k, v, mask = heads(1), heads(2), heads(3), mask_of([7, 4], 7)
    actual = mixer_of("softmax", f"attention.scale={scale}").attend(q, k, v, mask)
    for row in range(2):
        real = int(mask[row].sum())
        for head in range(3):
            for place in range(7):
                query, keys, values = q[row, head, place], k[row, head, :real], v[row, head, :real]
                weights = [math.exp(float(query @ key) / math.sqrt(width)) for key in keys]
                expected = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
                torch.testing.assert_close(actual[row, head, place], expected)


def test_softmax_in_training_is_the_fused_form_up_to_dropout() -> None:
    """The formed weights of training, with a dropout that keeps everything, are scaled_dot_product_attention."""
    q, k, v, mask = heads(1), heads(2), heads(3), mask_of([7, 4], 7)
    mixer = mixer_of("softmax", dropout=1e-9)
    set_keys(mixer, seed=1, step=0, rows=range(2))
    trained = mixer.train().attend(q, k, v, mask)
    torch.testing.assert_close(trained, mixer.eval().attend(q, k, v, mask))


def test_the_projections_of_simple_and_softmax_interchange() -> None:
    simple, softmax = mixer_of("simple", out_proj=True), mixer_of("softmax", out_proj=True)
    softmax.load_state_dict(simple.state_dict())
    assert simple.state_dict().keys() == softmax.state_dict().keys()


@pytest.mark.parametrize("out_proj", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dropout_on", ["state", "output"])
@pytest.mark.parametrize("scale", ["length", "valid", "valid_head", "none"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("reads", [None, 17, 3, 1])
def test_the_gram_form_is_the_textbook_form(
    out_proj: bool, bias: bool, dropout_on: str, scale: str, masked: bool, reads: int | None
) -> None:
    """Outputs and all gradients, with the same dropout."""
    options = (f"attention.dropout_on={dropout_on}", f"attention.scale={scale}")
    textbook, gram = (
        mixer_of("simple", *options, f"attention.form={form}", out_proj=out_proj, bias=bias, dropout=0.3).train()
        for form in ("textbook", "gram")
    )
    gram.load_state_dict(textbook.state_dict())
    mask = mask_of([19, 4, 7], 19) if masked else None
    results = []
    for mixer in (textbook, gram):
        set_keys(mixer, seed=1, step=2, rows=range(3))
        x = noise(3, 19, 15).requires_grad_()
        y = mixer(x, mask, reads)
        (y * noise(*y.shape, seed=1)).sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in mixer.parameters())])
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shared", [0.0, 1.0], ids=["noise", "noise and a shared vector"])
def test_the_gram_form_rounds_no_more_than_the_textbook_form(shared: float) -> None:
    """Mean relative errors of outputs in float32 over five inputs, at the width of text."""
    errors = {"textbook": 0.0, "gram": 0.0}
    for seed in range(5):
        x = noise(2, 769, 256, seed=seed) + shared * noise(256, seed=seed + 10)
        for form in errors:
            mixer = mixer_of("simple", f"attention.form={form}", dim=256, qkv_dim=256, heads=4, max_positions=769)
            exact = mixer(x)
            errors[form] += ((mixer.float()(x.float()) - exact).norm() / exact.norm()).item()
    assert 0 < errors["gram"] < errors["textbook"] < 1e-5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [1, 61, 64, 131])
def test_moments_are_those_of_the_real_positions(width: int, masked: bool) -> None:
    """Over several pieces, one of them without a real position; and their gradients are those of the plain sums."""
    x = (noise(3, 401, width) + 7).requires_grad_()
    mask = mask_of([401, 5, 397], 401) if masked else None
    for_mean, for_gram = noise(3, width, seed=1), noise(3, width, width, seed=2)

    def expected() -> list[torch.Tensor]:
        means, grams = [], []
        for row in range(3):
            real = x[row] if mask is None else x[row, mask[row]]
            means.append(real.mean(dim=0))
            grams.append(torch.einsum("li,lj->ij", real - means[-1], real - means[-1]))
        return [torch.stack(means), torch.stack(grams)]

    for plain, actual in zip(expected(), Moments.apply(x, mask), strict=True):
        torch.testing.assert_close(actual, plain, rtol=1e-10, atol=1e-10)
    by_x = [
        torch.autograd.grad((mean * for_mean).sum() + (gram * for_gram).sum(), x)[0]
        for mean, gram in (expected(), Moments.apply(x, mask))
    ]
    torch.testing.assert_close(by_x[1], by_x[0], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(5, 71, 3), (3, 71, 5), (71, 5, 3)])
def test_small_products_are_products(sizes: tuple[int, int, int], transposed: bool) -> None:
    """And so are their gradients, also where the second factor lies transposed in memory."""
    rows, terms, columns = sizes
    a, b, weights = noise(2, rows, terms), noise(2, terms, columns, seed=1), noise(2, rows, columns, seed=2)
    if transposed:
        b = b.mT.contiguous().mT
    a.requires_grad_(), b.requires_grad_()
    y = torch.einsum("hmk,hkn->hmn", a, b)
    expected = [y, *torch.autograd.grad(y, [a, b], weights)]
    y = ProductByHead.apply(a, b)
    for actual, wanted in zip([y, *torch.autograd.grad(y, [a, b], weights)], expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)
    y = Product.apply(a[0], b[0])
    by_a, by_b = torch.autograd.grad(y, [a, b], weights[0])
    for actual, wanted in zip([y, by_a[0], by_b[0]], expected, strict=True):
        torch.testing.assert_close(actual, wanted[0], rtol=1e-12, atol=1e-12)


def test_the_gram_form_takes_many_documents() -> None:
    textbook, gram = (mixer_of("simple", f"attention.form={form}") for form in ("textbook", "gram"))
    gram.load_state_dict(textbook.state_dict())
    x = noise(7, 17, 15)
    torch.testing.assert_close(gram(x), textbook(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("length", "form"), [(4001, "gram"), (13, "textbook")])
def test_the_form_with_fewer_operations_is_taken(monkeypatch: pytest.MonkeyPatch, length: int, form: str) -> None:
    mixer = mixer_of("simple", dim=64, qkv_dim=64, heads=2, max_positions=length)
    called = []

    def noted(method: Callable, name: str) -> Callable:
        return lambda *given: called.append(name) or method(*given)

    for method, name in (("_gram_form", "gram"), ("attend", "textbook")):
        monkeypatch.setattr(mixer, method, noted(getattr(mixer, method), name))
    mixer(noise(1, length, 64))
    assert called == [form]


@pytest.mark.parametrize("name", options("attention"))
def test_the_first_outputs_alone_are_those_of_all(name: str) -> None:
    for reads in (1, 3):
        mixer, x = mixer_of(name, max_positions=41), noise(2, 37, 15)
        mask = mask_of([37, 19], 37) if mixer.maskable else None
        torch.testing.assert_close(mixer.mix(x, mask, reads), mixer.mix(x, mask, None)[:, :reads])
