"""fp32 products by oneDNN: as exact as by MKL with every attention, and used only inside lra."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from forked import result, run_folder, trained
from support import every_setting, mixer_of, noise

from lra.ops import products
from lra.ops.products import of_micro_batch, using
from lra.records import checkpoint, record

SETTING = torch.backends.mkldnn.matmul
LARGE = products.WORTH
here = pytest.mark.skipif(bool(products.lacks()), reason="oneDNN has no fp32 products here")


@here
@every_setting
def test_outputs_and_gradients_are_those_of_fp32(name: str, extra: list[str]) -> None:
    """Products by oneDNN are as near to float64 as those by MKL."""
    if name == "reformer":
        extra = ["attention.chunk=100"]  # rounding may change buckets, which then matter
    exact = mixer_of(name, *extra, max_positions=100)
    rounded = deepcopy(exact).float()
    x = noise(2, 65, 15).requires_grad_()
    errors = {}
    for library in ("mkl", "onednn"):
        results = []
        for mixer, inputs in ((exact, x), (rounded, x.detach().float().requires_grad_())):
            with using(library), of_micro_batch(LARGE, 1):
                y = mixer.mix(inputs, None, None)
                by_x = torch.autograd.grad(y.square().sum(), [inputs, *mixer.parameters()], allow_unused=True)
            results.append(torch.cat([part.double().flatten() for part in (y, *by_x) if part is not None]))
        errors[library] = ((results[1] - results[0]).norm() / results[0].norm()).item()
    assert errors["onednn"] <= 3 * errors["mkl"] + 1e-6, errors


@here
def test_large_micro_batches_alone_use_it_and_the_process_keeps_its_setting() -> None:
    before = SETTING.fp32_precision
    with using("onednn"), of_micro_batch(LARGE // 64 - 1, 8):
        assert SETTING.fp32_precision == before
    with pytest.raises(ZeroDivisionError), using("onednn"), of_micro_batch(LARGE // 64, 8):
        assert SETTING.fp32_precision == "bf16" != before
        raise ZeroDivisionError
    assert SETTING.fp32_precision == before
    with of_micro_batch(LARGE, 8):
        assert SETTING.fp32_precision == before


def test_the_bound_is_between_the_errors_of_fp32_and_bf16() -> None:
    assert products.product_error() < products.BOUND / 3
    with torch.autocast("cpu", torch.bfloat16):
        assert products.product_error() > 100 * products.BOUND


@pytest.mark.slow
@here
def test_runs_by_onednn_are_exact_and_keep_their_library(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command gives the same bytes, killed or not; a paused run resumes with `products=auto`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.setattr(products, "WORTH", 1)
    words = ("attention=simple", "products=onednn")
    assert trained(*words, "out=whole") == 0
    assert trained(*words, "out=runs", fault="step:7:term") == 143
    assert checkpoint.read(run_folder())[1]["run"]["environment"]["products"] == "onednn"
    assert trained("attention=simple", "products=mkl", "out=runs") == 2
    assert trained("attention=simple", "out=runs") == 0
    assert record.read(run_folder() / record.NAME)["provenance"]["products"] == "onednn"
    assert result("runs") == result("whole")
