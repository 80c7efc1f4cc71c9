"""The mechanisms of `lra` as layers of other people's models."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from lra.api.configuration import composed_command, preserved_sys_path
from lra.cli.check import settings_of
from lra.config import configure
from lra.config.compose import options as choices
from lra.config.user_options import user_options_folder
from lra.core.errors import UserError
from lra.ops.dropout import set_keys
from lra.ops.mixer import Card, Mixer, Shape


class AttentionLayer(nn.Module):
    """forward(x [B, L, D], mask [B, L] or None) -> [B, L, D]: B documents of at most `max_len` positions, of width D.

    The mask is True at real positions and must not be given to a mechanism that is not `maskable`. No residual and no
    norm. `options`: all of the mechanism's, with their values; `card`: its paper, formula and time.

    In training every call takes one number from torch's generator, and with it draws dropout, and every `redraw_every`
    calls random features; in evaluation nothing is drawn.
    """

    def __init__(self, name: str, options: Mapping[str, Any], mixer: Mixer) -> None:
        super().__init__()
        self.name, self.options, self.mixer = name, dict(options), mixer
        self._calls = 0

    @property
    def card(self) -> Card:
        return self.mixer.card

    @property
    def maskable(self) -> bool:
        return self.mixer.maskable

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Raises UserError where the input is of another form."""
        shape = self.mixer.shape
        if x.dim() != 3 or x.shape[2] != shape.dim or not 1 <= x.shape[1] <= shape.max_positions:
            sizes = f"[documents, at most {shape.max_positions} positions, {shape.dim}]"
            raise UserError(f"{self.name}: expected x {sizes}, found {list(x.shape)}")
        if mask is not None and not self.maskable:
            raise UserError(f"{self.name} cannot mask padding: call it without a mask, on documents of one length")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise UserError(
                f"{self.name}: expected a mask {list(x.shape[:2])} in bool, True at real positions, found "
                f"{list(mask.shape)} in {str(mask.dtype).removeprefix('torch.')}"
            )
        if self.training:
            self._draw(len(x))
        return self.mixer.mix(x, mask, None)

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def _draw(self, documents: int) -> None:
        """Name the noise of this call."""
        seed = int(torch.randint(2**62, ()))
        set_keys(self.mixer, seed=seed, step=0, rows=range(documents))
        if self.mixer.redraw_every is not None and self._calls % self.mixer.redraw_every == 0:
            self.mixer.redraw(seed, 0)
        self._calls += 1


def attentions() -> list[str]:
    """Return the names that `attention` takes: those of this package, and your own below `lra_options`."""
    folder = user_options_folder()
    own = (folder / "attention").glob("*.yaml") if folder else ()
    return sorted([*choices("attention"), *(path.stem for path in own)])


@preserved_sys_path()
def attention(
    name: str,
    *,
    width: PositiveInt,
    heads: PositiveInt,
    max_len: PositiveInt,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    causal: bool = False,
    bias: bool = True,
    out_proj: bool = True,
    options: Mapping[str, Any] | None = None,
) -> AttentionLayer:
    """A layer of the mechanism `attention=NAME`, one that `lra` lists or your own.

    `width`: of the model, which `heads` divides; `max_len`: the most positions of an input; `dropout`: a probability,
    of mechanisms that have it; `causal`: no output depends on a later position; `bias`: of the projections; `out_proj`:
    whether the heads are projected at the end; `options`: of the mechanism, as {"window": 32}, in place of those in its
    YAML file. Weights are drawn from torch's generator. Raises UserError where these do not fit together.
    """
    sizes = {"width": width, "heads": heads, "max_len": max_len, "dropout": dropout, "causal": causal, "bias": bias}
    configure.check(attention, {"name": name, **sizes, "out_proj": out_proj, "options": options}, "")
    with composed_command("check", (f"attention={name}",)) as config:
        settings = settings_of(config)
    if width % heads:
        raise UserError(f"heads={heads} does not divide width={width}")
    shape = Shape(
        dim=width, qkv_dim=width, heads=heads, max_positions=max_len, bias=bias, out_proj=out_proj, dropout=dropout,
        dropout_over="values", causal=causal, layer=0, layers=1,
    )  # fmt: skip
    node = {**settings.attention, **(options or {})}
    make = configure.build(node, "attention", settings.packages, supplied=1, kind=Mixer)
    with configure.blamed("attention", settings.packages):
        mixer = make(shape)
    if causal and not mixer.can_be_causal:
        raise UserError(f"{name} has no causal form: leave causal=True out, or choose another attention")
    if not out_proj and not mixer.projects_out:
        raise UserError(f"{name} has no output projection to leave out: leave out_proj=False out")
    return AttentionLayer(name, {key: value for key, value in node.items() if not key.startswith("_")}, mixer)
