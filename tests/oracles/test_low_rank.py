"""linformer, nystromformer, fnet and mixer against other people's implementations."""

import pytest
import torch
from support import mixer_of, noise, same
from torch import Tensor, nn

from lra.mixers import Mixer

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


STRICT = "protocol=strict"  # the scale of one head, as in all of them


def copy_projections(mixer: Mixer, query: Tensor, key: Tensor, value: Tensor, out: nn.Linear | None = None) -> None:
    with torch.no_grad():
        for layer, theirs in ((mixer.query, query), (mixer.key, key), (mixer.value, value)):
            layer.weight.copy_(theirs)
        if out is not None:
            mixer.out.weight.copy_(out.weight)
            out.bias.zero_()


def agree(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Outputs, and the gradients of a weighted sum by the input."""
    x.requires_grad_()
    same(ours(x), theirs(x), [x])


@pytest.mark.parametrize("length", [13, 7])
def test_linformer(length: int) -> None:
    """Their share_kv also takes the keys themselves as values, so we give ours the same projection for both."""
    lib = pytest.importorskip("linformer")
    theirs = lib.LinformerSelfAttention(dim=15, seq_len=13, k=4, heads=3, share_kv=True).double()
    ours = mixer_of("linformer", "attention.rank=4", STRICT, bias=False, out_proj=True)
    copy_projections(ours, theirs.to_q.weight, theirs.to_k.weight, theirs.to_k.weight, theirs.to_out)
    with torch.no_grad():
        ours.project_keys.copy_(theirs.proj_k)
    agree(ours, theirs, noise(2, length, 15))


@pytest.mark.parametrize(
    ("batch", "heads", "iterations", "masked"), [(1, 1, 6, False), (2, 3, 24, False), (2, 3, 24, True)]
)
def test_nystrom_attention(batch: int, heads: int, iterations: int, masked: bool) -> None:
    """Their pseudo-inverse starts from the maximum over batch and heads: the same for one matrix, or once converged.

    They cut the padded length into segments, we the real one: the same where the mask hides whole segments. They
    leave a row for each hidden segment in the matrix, which the converged inverse does not mind.
    """
    lib = pytest.importorskip("nystrom_attention")
    theirs = lib.NystromAttention(
        dim=15,
        dim_head=15 // heads,
        heads=heads,
        num_landmarks=4,
        pinv_iterations=iterations,
        residual_conv_kernel=5,
        eps=1e-30,
    ).double()
    given = {"landmarks": 3 if masked else 4, "iterations": iterations, "conv_kernel": 5}
    options = [f"attention.{name}={value}" for name, value in given.items()]
    ours = mixer_of("nystromformer", *options, STRICT, heads=heads, bias=False, out_proj=True)
    with torch.no_grad():
        theirs.to_qkv.weight.mul_(5)  # weights far from uniform
        ours.conv.weight.copy_(theirs.res_conv.weight)
    copy_projections(ours, *theirs.to_qkv.weight.chunk(3), theirs.to_out[0])
    mask = torch.arange(12).expand(batch, -1) < 9 if masked else None
    real = slice(0, 9 if masked else 12)
    agree(lambda x: ours(x, mask)[:, real], lambda x: theirs(x, mask=mask)[:, real], noise(batch, 12, 15))


def test_mlp_mixer() -> None:
    """The net over 13 patches, without the norm and the skip around it."""
    lib = pytest.importorskip("mlp_mixer_pytorch")
    model = lib.MLPMixer(image_size=(26, 2), patch_size=2, channels=1, dim=15, depth=1, num_classes=2).double()
    theirs = model[2][0].fn
    first, second = theirs[0], theirs[3]
    ours = mixer_of("mixer", f"attention.hidden={first.out_channels}")
    with torch.no_grad():
        for layer, other in ((ours.hidden, first), (ours.out, second)):
            layer.weight.copy_(other.weight[:, :, 0])
            layer.bias.copy_(other.bias)
    agree(ours, theirs, noise(2, 13, 15))
