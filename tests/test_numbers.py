"""Rounding: offsets, token counts and half precision, against float64; and numbers that are not finite."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import every_setting, facts, mask_of, mixer_of, model_of, noise, options, stub_task
from torch import Tensor, nn

from lra.attention import Mixer
from lra.core.errors import UserError
from lra.init.checkpoint import Checkpoint
from lra.model.heads import pooled
from lra.records.names import WEIGHTS

PARTS = ("output", "input gradient", "weight gradients")


def passes(mixer: Mixer, x: Tensor, mask: Tensor | None = None, *, bf16: bool = False) -> dict[str, Tensor]:
    """What a forward and a backward pass give, in float64."""
    x = x.to(next(mixer.parameters(), x).dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        y = mixer(x, mask)
    upstream = noise(*y.shape, seed=5)
    if mask is not None:
        upstream = upstream * mask.unsqueeze(-1)
    gradients = torch.autograd.grad(y, [x, *mixer.parameters()], upstream.to(y.dtype))
    flat = torch.cat([gradient.flatten() for gradient in (*gradients[1:], x.new_zeros(1))])
    return {part: value.detach().double() for part, value in zip(PARTS, (y, gradients[0], flat), strict=True)}


def errors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the norm of what is expected."""
    return {
        part: ((actual[part] - expected[part]).norm() / expected[part].norm().clamp(min=1e-9)).item() for part in PARTS
    }


# ---------------------------------------------------------------- offsets


@pytest.mark.parametrize(("bias", "masked"), [(False, False), (True, True)])
@pytest.mark.parametrize("bf16", [False, True])
def test_an_offset_costs_the_gram_form_no_more_than_the_textbook_form(bf16: bool, bias: bool, masked: bool) -> None:
    """Where the projections take it away, and it is up to 30 times the noise; a layer norm has a bias, too.

    At 397 positions several pieces are added up.
    """
    torch.manual_seed(1)
    sizes = {"dim": 31, "qkv_dim": 30, "heads": 3, "max_positions": 397, "bias": bias}
    mixers = {form: mixer_of("simple", f"attention.form={form}", **sizes).float() for form in ("textbook", "gram")}
    direction = noise(31, seed=3).float()
    unit = direction / direction.norm()
    with torch.no_grad():
        for projection in (mixers["gram"].query, mixers["gram"].key, mixers["gram"].value):
            projection.weight -= (projection.weight @ unit).unsqueeze(1) * unit
    mixers["textbook"].load_state_dict(mixers["gram"].state_dict())
    exact_mixer = deepcopy(mixers["textbook"]).double()
    mask = mask_of([397, 211], 397) if masked else None
    for offset in (0.0, 1.0, 5.0, 30.0):
        x = noise(2, 397, 31).float() + offset * direction
        exact = passes(exact_mixer, x, mask)
        textbook, gram = (errors(passes(mixer, x, mask, bf16=bf16), exact) for mixer in mixers.values())
        for part in PARTS:
            assert gram[part] < (1.5 if bf16 else 6) * textbook[part], (offset, part)


# ---------------------------------------------------------------- counts of tokens


@pytest.mark.parametrize("valid", [257, 1021])
def test_bf16_does_not_round_the_number_of_tokens(valid: int) -> None:
    """Every product is exact and nothing but the result is rounded: one real token of [1, 0, ...] among zeros in the
    textbook form, and all of them like it in the Gram form."""
    for form, like_it, exact in (("textbook", 1, valid**-0.5), ("gram", 1031, valid**0.5)):
        options = ("attention.scale=valid", f"attention.form={form}")
        mixer = mixer_of("simple", *options, max_positions=1031, bias=False).float()
        for projection in (mixer.query, mixer.key, mixer.value):
            nn.init.eye_(projection.weight)
        x = torch.zeros(1, 1031, 15)
        x[0, :like_it, 0] = 1
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = mixer(x, mask_of([valid], 1031))
        assert y[0, 0, 0].item() == torch.tensor(exact).bfloat16().item(), form


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        *((name, ()) for name in options("attention")),
        *(("simple", (f"attention.scale={scale}", "attention.form=textbook")) for scale in ("valid", "valid_head")),
    ],
)
def test_in_bf16_masked_padding_changes_no_scale(name: str, extra: tuple[str, ...]) -> None:
    """257 real tokens of 263 against 257 alone, whose number no mask tells: bf16 has 256 and 258 only."""
    mixer = mixer_of(name, *extra, max_positions=263).float()
    if not mixer.maskable:
        pytest.skip("cannot mask")
    x = noise(1, 263, 15).float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        masked, alone = mixer(x, mask_of([257], 263))[:, :257], mixer(x[:, :257])
    masked, alone = masked.double().flatten(), alone.double().flatten()
    assert (masked @ alone / (alone @ alone)).item() == pytest.approx(1, abs=2e-4)


def test_the_mean_over_positions_does_not_round_the_number_of_tokens() -> None:
    mask = mask_of([257, 263], 263)
    x = torch.zeros(2, 263, 15, dtype=torch.bfloat16)
    x[:, 0] = 1
    expected = torch.tensor([[1 / 257], [1 / 263]]).expand(2, 15)
    torch.testing.assert_close(pooled(x, mask, "mean").float(), expected, rtol=1e-6, atol=0)


# ---------------------------------------------------------------- numbers that are not finite


SIZES = ("model.dim=12", "model.qkv_dim=12", "model.heads=3", "model.mlp_dim=17", "model.depth=2", "model.dropout=0")


@every_setting
def test_a_padding_row_that_is_not_finite_changes_nothing(name: str, extra: list[str]) -> None:
    """Of the embedding, where padding is masked: neither logits nor gradients."""
    torch.manual_seed(1)
    if not mixer_of(name, *extra).maskable:
        pytest.skip(f"{name} declares that it cannot mask")
    overrides = (f"attention={name}", *extra, "protocol=strict", "model.pooling=mean", *SIZES)
    model = model_of(*overrides, task=facts(max_len=11)).eval()
    tokens = torch.tensor([[3, 5, 7, 2, 0, 0, 0, 0, 0, 0, 0], [2, 3, 5, 7, 11, 13, 1, 1, 1, 1, 0]])
    results = []
    for padding in (0.0, torch.nan, torch.inf):
        with torch.no_grad():
            model.embedding.tokens.weight[0] = padding
        model.zero_grad()
        logits = model(tokens)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    assert results[0][0].isfinite().all()
    for other in results[1:]:
        for expected, actual in zip(results[0], other, strict=True):
            assert (expected is None and actual is None) or torch.equal(expected, actual)


@pytest.mark.parametrize("wrong", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, wrong: float) -> None:
    model = model_of(*SIZES, task=stub_task())
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    weights["embedding.tokens.weight"][0, :3] = wrong
    save_file(weights, tmp_path / WEIGHTS)
    assert load_file(tmp_path / WEIGHTS).keys() == weights.keys()
    size = weights["embedding.tokens.weight"].numel()
    expected = rf"{WEIGHTS}: embedding.tokens.weight: expected finite numbers, but 3 of {size} are NaN or infinite; use"
    with pytest.raises(UserError, match=expected):
        Checkpoint(folder=str(tmp_path), take=None).load(model, stub_task())


# ---------------------------------------------------------------- bf16


@every_setting
def test_bf16_is_off_by_what_its_operands_are(name: str, extra: list[str]) -> None:
    """Against float64, errors are near those of float64 with an input and weights in bf16: sums, normalisers and
    exponentials add little.

    Such errors are inherent; they are large where a gradient has a pole or a jump, as at features of relu near zero
    (cosformer, performer) or a temperature of .1 (sinkhorn). Reformer's hashes are held fixed, since they jump.
    """
    torch.manual_seed(2)
    mixer, x = mixer_of(name, *extra, max_positions=67), noise(2, 67, 15)
    fix_hashes(mixer, x)
    exact = passes(mixer, x)
    in_bf16 = passes(mixer.float(), x, bf16=True)
    with torch.no_grad():
        for parameter in mixer.double().parameters():
            parameter.copy_(parameter.bfloat16())
    inherent, off = errors(passes(mixer, x.bfloat16().double()), exact), errors(in_bf16, exact)
    for part in PARTS:
        assert off[part] < 2 * inherent[part] + 5e-3, (part, off, inherent)


def fix_hashes(mixer: Mixer, x: Tensor) -> None:
    """Let Reformer put every position where it puts it in float64."""
    if hasattr(mixer, "buckets"):
        kept = []
        draw = mixer.buckets
        mixer.buckets = lambda q, key_mask: kept.append(draw(q, key_mask)) or kept[-1]
        mixer(x)
        mixer.buckets = lambda q, key_mask: kept[0]
