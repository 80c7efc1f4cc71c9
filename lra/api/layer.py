"""`lra.attention`: build an attention layer for any PyTorch model; `lra.check`: run its correctness checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from lra.api.training import composed_command
from lra.checks import CheckResult
from lra.checks.report import CheckSettings, examine, maker
from lra.config import configure
from lra.config.compose import options as choices
from lra.config.values import check as check_values
from lra.core.errors import UserError
from lra.core.paths import USER_OPTIONS
from lra.mixers.base import Mixer, MixerConfig, MixerInfo
from lra.ops.dropout import set_keys

REPEATABLE = 1_000  # number of the latest training calls whose random features can be drawn again


class AttentionLayer(nn.Module):
    """Attention layer without residual connection and norm.

    Its weights can have any floating-point type; a layer with bf16 or fp16 weights computes as under autocast. In
    training each call takes one number from torch's generator as the seed of dropout and, every `mixer.redraw_every`
    calls, of random features. In evaluation mode nothing is drawn.

    Attributes:
        name: name of the option of `attention=`.
        options: values of all options of the mechanism.
        mixer: the module that computes the outputs.
    """

    def __init__(self, name: str, options: Mapping[str, Any], mixer: Mixer) -> None:
        super().__init__()
        self.name, self.options, self.mixer = name, dict(options), mixer
        self._calls = 0
        self._features: dict[int, int] = {}  # seed of the random features by seed of the call

    @property
    def info(self) -> MixerInfo:
        return self.mixer.info

    @property
    def maskable(self) -> bool:
        return self.mixer.maskable

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the positions of each document.

        Args:
            x: [B, L, D], L at most `max_len`.
            mask: bool [B, L], True at real positions; None if there is no padding or the mechanism is not `maskable`.

        Returns:
            [B, L, D], with the dtype of x or that of autocast.

        Raises:
            UserError: x or mask has another shape or dtype, or there is a mask and the mechanism is not `maskable`.
        """
        config = self.mixer.config
        if x.dim() != 3 or x.shape[2] != config.dim or not 1 <= x.shape[1] <= config.max_positions:
            sizes = f"[documents, at most {config.max_positions} positions, {config.dim}]"
            raise UserError(f"{self.name}: expected x {sizes}, found {list(x.shape)}")
        if mask is not None and not self.maskable:
            raise UserError(f"{self.name} cannot mask padding: call it without a mask, on documents of one length")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise UserError(f"{self.name}: expected a bool mask {list(x.shape[:2])}, True at real positions")
        if self.training:
            self._draw(len(x))
        return self.mixer.mix(x, mask, None)

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def _draw(self, documents: int) -> None:
        """Seed dropout and random features for a training call on a batch of `documents` documents."""
        seed = int(torch.randint(2**62, ()))  # the only draw from torch's generator, so manual_seed repeats calls
        set_keys(self.mixer, seed=seed, step=0, documents=range(documents))
        if self.mixer.redraw_every is None:
            return
        # Activation checkpointing restores torch's generator and repeats a call. The repeated call draws the same seed,
        # by which its features are found.
        if seed not in self._features:
            is_due = self._calls % self.mixer.redraw_every == 0
            self._features[seed] = seed if is_due else next(reversed(self._features.values()))
            self._calls += 1
            if len(self._features) > REPEATABLE:  # remove the oldest: dicts keep insertion order
                del self._features[next(iter(self._features))]
        self.mixer.redraw(self._features[seed], 0)


def attentions() -> list[str]:
    """Return the names that `attention` accepts: those of this package, and your own in `lra_options/attention`."""
    return sorted([*choices("attention"), *choices("attention", USER_OPTIONS)])


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
    """Return a layer of the mechanism `attention=NAME`; its weights are drawn from torch's generator.

    Args:
        name: one of `attentions()`.
        width: D of the model.
        heads: number of heads; divides `width`.
        max_len: maximum number of positions of an input.
        dropout: probability, for mechanisms with dropout.
        causal: compute the causal form: an output depends on no later position.
        bias: add biases to the projections.
        out_proj: apply an output projection to the heads.
        options: options of the mechanism, such as {"window": 32}; the others have the values of its YAML file.

    Raises:
        UserError: a value is out of range, or the values do not fit together.
    """
    sizes = {"width": width, "heads": heads, "max_len": max_len, "dropout": dropout, "causal": causal, "bias": bias}
    check_values(attention, {"name": name, **sizes, "out_proj": out_proj, "options": options}, "")
    with composed_command("check", (f"attention={name}",)) as config:
        settings = configure.part(CheckSettings, config)
    if width % heads:
        raise UserError(f"heads={heads} does not divide width={width}")
    mixer_config = MixerConfig(
        dim=width, qkv_dim=width, heads=heads, max_positions=max_len, bias=bias, out_proj=out_proj, dropout=dropout,
        causal=causal,
    )  # fmt: skip
    node = {**settings.attention, **(options or {})}
    make = configure.build(node, "attention", supplied=1, kind=Mixer)
    with configure.blamed("attention", node):
        mixer = make(mixer_config)
    # After the mixer is built, because its options may decide whether it has a causal form.
    if causal and not mixer.can_be_causal:
        raise UserError(f"{name} has no causal form: omit causal=True, or choose another attention")
    if not out_proj and not mixer.projects_out:
        raise UserError(f"{name} needs its output projection: omit out_proj=False")
    return AttentionLayer(name, {key: value for key, value in node.items() if not key.startswith("_")}, mixer)


@dataclass(frozen=True)
class CheckReport:
    """Results of `check`.

    Args:
        results: one result per check that ran; its `verdict` is passed, failed or skipped (the check does not apply).
        text: output of `lra-check`.
    """

    results: tuple[CheckResult, ...]
    text: str

    @property
    def failed(self) -> list[str]:
        """Names of the failed checks."""
        return [result.check.name for result in self.results if result.verdict == "failed"]

    def __repr__(self) -> str:
        return self.text


def check(attention: str | AttentionLayer | Callable[[MixerConfig], Mixer], *overrides: str) -> CheckReport:
    """Run the correctness checks on an attention, as `lra-check` does, and return their results.

    Args:
        attention: option of `attention=`, layer that `lra.attention` returned, or subclass of `lra.mixers.Mixer`.
        overrides: as on the command line of `lra-check`.

    Raises:
        UserError: the mixer cannot be built.
    """
    # A layer or a class brings its own options; the configuration then gives sizes and lengths only.
    chosen = f"attention={attention}" if isinstance(attention, str) else "variant=transformer"
    with composed_command("check", (chosen, *overrides)) as config:
        settings = configure.part(CheckSettings, config)
    if isinstance(attention, str):
        name, make = attention, maker(settings)
    elif isinstance(attention, AttentionLayer):
        name, make = attention.name, partial(type(attention.mixer), **attention.options)
    else:
        name, make = getattr(attention, "__name__", type(attention).__name__), attention
    lines: list[str] = []
    with torch.random.fork_rng(devices=[]):  # building a mixer draws numbers; this restores the caller's random state
        results = examine(name, make, settings, lines.append)
    return CheckReport(tuple(results), "\n".join(lines))
