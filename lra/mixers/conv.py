"""Gated convolution over a few positions: BaseConv of Zoology with a short filter for each channel.

The filter is centred at the position of the output; in the causal form it ends at this position. This is a local
baseline, because an output of a layer reads no position outside its filter.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.convolution import short_convolution
from lra.ops.dropout import Dropout


class Conv(Mixer):
    """Short gated convolution.

    Args:
        width: odd number of positions that an output reads, including the output's position.
    """

    info = MixerInfo(
        paper="Arora et al. 2023, Zoology (BaseConv)",
        formula="(X Wg) ⊙ (h ∗ X + b) W, h of {width} positions",
        complexity="L D width",
        linear_memory=True,
        reference="explicit loops; torch's grouped conv1d",
        deviations=("the filter has only a few taps, and an output projection follows",),
    )
    can_be_causal = True
    projects_out = True

    def __init__(self, config: MixerConfig, *, width: Annotated[int, Field(ge=3)]) -> None:
        super().__init__(config)
        if width % 2 == 0:
            raise UserError(f"attention.width={width}: expected an odd number, so that the filter can be centred")
        self.info = replace(self.info, formula=self.info.formula.format(width=width))
        # Number of later positions that an output reads.
        self.later = 0 if self.causal else width // 2
        self.gate = nn.Linear(config.dim, config.dim, bias=config.bias)
        bound = width**-0.5
        self.taps = nn.Parameter(torch.empty(width, config.dim).uniform_(-bound, bound))
        self.shift = nn.Parameter(torch.zeros(config.dim)) if config.bias else None
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.out = nn.Linear(config.dim, config.dim, bias=config.bias) if config.out_proj else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        # The parameter is [width, D], the convolution takes [D, width].
        y = short_convolution(without_padding(x, key_mask), self.taps.T, self.later)
        if self.shift is not None:
            y = y + self.shift
        return self.out(self.dropout(self.gate(x) * y))
