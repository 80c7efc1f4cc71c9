"""The Extractor against the paper's double sum, in all forms of its matrices."""

import pytest
import torch
from support import mixer_of, noise, same, saved_bytes

from lra.core.errors import UserError
from lra.mixers import Mixer

SIZES = {"dim": 6, "qkv_dim": 11, "heads": 1, "max_positions": 73, "out_proj": True}
FORMS = {
    "full": ["rank=null", "groups=1"],
    "grouped": ["rank=null", "groups=2"],
    "depthwise": ["rank=null", "groups=null"],
    "bases": ["rank=5", "groups=1"],
    "low_rank": ["rank=4", "groups=null"],
}


def extractor(form: str, *options: str, causal: bool = False) -> Mixer:
    keys = [f"attention.{setting}" for setting in ("lags=5", *FORMS[form], *options)]
    return mixer_of("extractor", *keys, causal=causal, **SIZES)


def matrices(mixer: Mixer) -> dict[int, torch.Tensor]:
    """Return the matrix W [D, D] of x W for each lag."""
    width, block, taps = mixer.weight.shape
    by_lag = {}
    for tap in range(taps):
        cut = mixer.weight[:, :, tap].split(block)
        w = torch.block_diag(*[part.t() for part in cut])
        assert w.shape == (width, width)
        if isinstance(mixer.down, torch.nn.Linear):
            w = mixer.down.weight.t() @ w @ mixer.up.weight.t()
        by_lag[mixer.lags - 1 - tap] = w
    return by_lag


def by_loops(mixer: Mixer, x: torch.Tensor) -> torch.Tensor:
    """Equations 18 to 20."""
    lags, rows = matrices(mixer), []
    for row in x:
        extracted = []
        for i in range(len(row)):
            terms = [row[j] @ lags[i - j] for j in range(len(row)) if i - j in lags]
            extracted.append(sum(terms))
        e = torch.stack(extracted)
        a = e if mixer.adjust is None else (row @ mixer.adjust.weight.t()) * e
        rows.append(a @ mixer.out.weight.t() if mixer.config.out_proj else a)
    return torch.stack(rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 61])
def test_both_ways_are_the_double_sum(form: str, causal: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """61 positions are several windows of the FFT form. A two-sided extractor also has the mirrored lags."""
    mixer, x = extractor(form, causal=causal), noise(2, length, 6).requires_grad_()
    assert sorted(matrices(mixer)) == list(range(0 if causal else -4, 5))
    expected = by_loops(mixer, x)
    for least in (1, 1000):  # by FFT where there are two sides, and directly
        monkeypatch.setattr("lra.mixers.extractor.FFT_TAPS", least)
        same(mixer(x), expected, [x, *mixer.parameters()])


def test_the_papers_layer_has_its_parameters() -> None:
    """Table 3 at d = l = 128: l d^2 + 2 d^2, where attention has 4 d^2."""
    sizes = {"dim": 128, "qkv_dim": 128, "max_positions": 128, "bias": False, "out_proj": True, "causal": True}
    with torch.device("meta"):
        mixer = mixer_of("extractor", "task=books", **{**sizes, "heads": 1})
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 2_129_920


@pytest.mark.parametrize(("rank", "source"), [("null", "model.dim=6"), ("9", "attention.rank=9")])
def test_groups_must_divide(rank: str, source: str) -> None:
    with pytest.raises(UserError, match=rf"attention.groups=4 does not divide {source}"):
        extractor("full", f"rank={rank}", "groups=4")


def test_the_fft_of_full_matrices_keeps_memory_linear() -> None:
    full = ["attention.lags=31", "attention.rank=null", "attention.groups=1"]
    assert saved_bytes("extractor", full, 4096) < 4.5 * saved_bytes("extractor", full, 1024)
