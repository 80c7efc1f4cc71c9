"""A mixer of somebody else's is tried before it trains: what breaks a law is refused by its name."""

from collections.abc import Callable

import pytest
import torch
from support import facts, model_of
from torch import Tensor

from lra.core.errors import UserError
from lra.model import laws
from lra.model.model import Model

SIZES = ("model.dim=12", "model.qkv_dim=12", "model.heads=3", "model.depth=1", "model.mlp_dim=7", "model.dropout=0.3")


def theirs(model: Model, change: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None = None) -> Model:
    """The model with a first mixer of a class outside of lra, whose outputs are changed."""
    mixer = model.blocks[0].mixer

    def forward(self: object, x: Tensor, mask: Tensor | None = None, *reads: int) -> Tensor:
        y = super(own, self).forward(x, mask, *reads)
        return y if change is None else change(x, mask, y)

    own = type("Theirs", (type(mixer),), {"forward": forward, "__module__": "theirs"})
    mixer.__class__ = own
    return model


@pytest.mark.parametrize(
    ("law", "change"),
    [
        ("its own document alone", lambda x, mask, y: y + x.mean(dim=0)),
        ("what stands in padding", lambda x, mask, y: y + x.mean(dim=1, keepdim=True)),
        ("all noise comes from lra.core.dropout", lambda x, mask, y: y + torch.rand(())),
    ],
)
def test_a_broken_law_is_named(law: str, change: Callable) -> None:
    model = theirs(model_of("attention=softmax", "protocol=strict", *SIZES, task=facts()), change)
    with pytest.raises(UserError, match=f"Theirs breaks a law of mixers: .*{law}"):
        laws.check(model)


@pytest.mark.parametrize("name", ["softmax", "reformer", "luna", "performer", "sinkhorn", "s4d", "linformer"])
def test_ours_keep_them_and_are_not_tried(name: str) -> None:
    """With their noise; where the class says that it is somebody else's they are tried, and nothing is drawn."""
    model = model_of(f"attention={name}", *SIZES, "variant=transformer", "model.key_mask=true", task=facts())
    before = torch.random.get_rng_state()
    assert laws.check(model) == []
    assert laws.check(theirs(model)) == list(laws.LAWS)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_mixer_that_cannot_be_tried_is_said_to_be_so(capfd: pytest.CaptureFixture) -> None:
    model = theirs(model_of("attention=softmax", *SIZES, task=facts()), lambda x, mask, y: y.view(1, 2))
    assert laws.check(model) == []
    assert capfd.readouterr().err.startswith(
        "Theirs: not tried whether all noise comes from lra.core.dropout, and none in"
    )
