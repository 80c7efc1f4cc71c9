"""Build the model for a task and an attention: embedding, blocks and head.

Legend: B examples, P documents per example, L tokens, N positions (L, or L + 1 with a CLS), D width.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lra.core.errors import UserError
from lra.datasets.task import OF_INPUTS, PADDING, TaskSpec
from lra.mixers.base import Attention, Mixer, MixerConfig, without_padding
from lra.network.architecture import GROUPS, Architecture, Group, belongs
from lra.network.block import Block
from lra.network.embedding import Embedding
from lra.network.heads import head_of, pair_features, pooled
from lra.network.layers import make_norm, normed
from lra.ops.packing import Packed

CUT_OFF = 0.87962566103423978  # standard deviation of N(0, 1) truncated at -2 and 2


class Model(nn.Module):
    """Encoder with a head: tokens [B P, L] -> logits.

    If `key_mask` is true, padding is masked, and batches may be padded to any length up to `max_len` or, if `can_pack`
    is True, packed.
    Otherwise mixers treat padding as tokens, as in the papers, and batches must be padded to `max_len`.

    Attributes:
        whole_batches: True if norms are over the batch, so that a step must not be cut into micro-batches.
        masks_padding: True if the task has padding and the model masks it.
    """

    def __init__(self, attention: Callable[[MixerConfig], Mixer], spec: TaskSpec, architecture: Architecture) -> None:
        super().__init__()
        _check(spec, architecture)
        self.architecture = architecture
        self.dim = architecture.dim
        self.max_len = spec.max_len
        self.documents = spec.documents
        self.key_mask = architecture.key_mask
        self.pooling = architecture.pooling if spec.objective == "classify" else "none"
        of_documents = spec.objective in ("classify", *OF_INPUTS)
        self.cls = architecture.pooling == "cls" and of_documents
        self.masks_padding = architecture.key_mask and of_documents and not spec.fixed_length
        self.reconstructs = spec.objective == "reconstruct"
        self.interaction = architecture.pair_features == "interaction"
        # The order of these parts is the order in which their weights are drawn.
        self.embedding = Embedding(spec, architecture, cls=self.cls)
        config = MixerConfig(
            dim=architecture.dim,
            qkv_dim=architecture.qkv_dim,
            heads=architecture.heads,
            max_positions=spec.max_len + self.cls,
            bias=architecture.attention_bias,
            out_proj=architecture.out_proj,
            dropout=architecture.dropout,
            dropout_over=architecture.dropout_over,
            causal=spec.causal,
            layer=0,
        )
        self.blocks = nn.ModuleList(
            Block(attention(replace(config, layer=layer)), architecture) for layer in range(architecture.depth)
        )
        for earlier, later in pairwise(self.blocks):
            if hasattr(later.mixer, "follow"):
                later.mixer.follow(earlier.mixer)
        _check_mixer(self.blocks[0].mixer, masks=self.masks_padding, pooling=self.pooling)
        self.final_norm = make_norm(architecture, there=architecture.final_norm)
        self.whole_batches = architecture.norm_over == "batch"
        self.head = head_of(spec, architecture)
        if architecture.weight_init == "xavier":
            _redraw_linear_layers(self)
        for value in (*self.parameters(), *self.buffers()):
            # Copy expanded tensors: weights cannot be loaded into them, because their elements share memory.
            if value.layout == torch.strided and 0 in value.stride():
                value.data = value.data.contiguous()

    def forward(self, tokens: Tensor, scored: Tensor | None = None, packed: Packed | None = None) -> Tensor:
        """Return logits of tokens [B P, L]: [B, classes] for examples, or [B, L, classes] for positions.

        Args:
            scored: [m] flat indices into [B, L]; the logits are [m, classes], for these positions only.
            packed: layout of a packed batch, including the CLS of each document; None for a padded batch.
        """
        mask = None
        if self.masks_padding and packed is None:  # the mask of a packed batch is `packed.mask`
            mask = pad(tokens != PADDING, (int(self.cls), 0), value=True)  # [B P, N], True at the CLS and real tokens
        x = self.embedding(tokens, packed)  # [B P, N, D], or packed rows [R, D]
        x = without_padding(x, mask)  # mixers expect finite numbers at padding
        for block in self.blocks[:-1]:
            x = block(x, mask, None, packed)
        # If the head reads only position 0, the last block need not compute the other positions.
        few = self.pooling in ("cls", "first") and not self.whole_batches
        x = self.blocks[-1](x, mask, 1 if few else None, packed)  # [B P, N or 1, D], or [R, D]
        if packed is not None:
            x, mask = x if few else packed.pad(x), packed.mask
        if self.reconstructs:
            return self.head(self.final_norm(x[:, -1]), scored)  # the state [B, D] after the whole input
        if self.pooling == "none":
            x = x[:, int(self.cls) :]
            # The head reads [B, L, D] or [m, D].
            return self.head(self.final_norm(x if scored is None else x.flatten(0, 1)[scored]))
        x = normed(self.final_norm, x, mask)  # before pooling, because a batch norm averages over all positions
        documents = pooled(x, mask, self.pooling).unflatten(0, (-1, self.documents))  # [B, P, D]
        return self.head(pair_features(documents, self.interaction))

    @cached_property
    def every_parameter(self) -> list[nn.Parameter]:
        """List of all parameters; cached, because `parameters` walks through all modules."""
        return list(self.parameters())

    @property
    def can_pack(self) -> bool:
        """True if `forward` takes packed batches: padding is masked, and only mixers combine positions."""
        mixes_elsewhere = self.whole_batches or self.architecture.short_conv is not None or self.reconstructs
        return self.masks_padding and not mixes_elsewhere

    def packs(self, dtype: torch.dtype) -> bool:
        """Return True if `can_pack` is True and the mixers need not convert packed rows to a padded batch.

        `dtype` is the type of the mixers' matrix products.
        """
        mixer, device = self.blocks[0].mixer, self.every_parameter[0].device
        return self.can_pack and isinstance(mixer, Attention) and mixer.can_pack(dtype, device)

    def freeze(self, groups: Iterable[Group]) -> None:
        """Exclude the weights of `groups` from training.

        Raises:
            UserError: a group has no weights, or no weights are left to train.
        """
        for group in groups:
            frozen = [parameter for name, parameter in self.named_parameters() if belongs(name, [group])]
            if not frozen:
                raise UserError(f"train.freeze: this model has no weights of the group {group}: {GROUPS[group]}")
            for parameter in frozen:
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError("train.freeze: nothing is left to train, remove a group")

    def group_by_parameter(self, groups: Iterable[str]) -> dict[str, str]:
        """Return a dict from parameter name to group, for parameters that their mixer assigns to one of `groups`.

        Raises:
            UserError: a group has no parameters.
        """
        group_of: dict[str, str] = {}
        for group in groups:
            members = [
                f"blocks.{number}.mixer.{name}"
                for number, block in enumerate(self.blocks)
                for name, _ in block.mixer.named_parameters()
                if any(f"{name}.".startswith(f"{member}.") for member in block.mixer.parameter_groups.get(group, ()))
            ]
            if not members:
                mixer = self.blocks[0].mixer
                known = ", ".join(mixer.parameter_groups) or "none"
                raise UserError(f"train.groups.{group}: {type(mixer).__name__} has no such group; it has {known}")
            group_of |= dict.fromkeys(members, group)
        return group_of

    def redraw(self, seed: int, step: int) -> None:
        """Draw the mixers' random features for this training step."""
        for block in self.blocks:
            block.mixer.redraw(seed, step)


def _redraw_linear_layers(model: Model) -> None:
    """Set all biases of linear layers to zero; draw all weights but those of the head by Xavier's uniform rule.

    The weights of the head are drawn with variance 1 / in_features, as in Google's code, from a normal truncated at
    two standard deviations. Parameters in `Mixer.own_values` are not changed.
    """
    kept = {value for block in model.blocks for value in block.mixer.own_values()}
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            if layer.weight not in kept:
                nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None and layer.bias not in kept:
                nn.init.zeros_(layer.bias)
    for layer in model.head.modules():
        if isinstance(layer, nn.Linear):
            uncut = layer.in_features**-0.5 / CUT_OFF
            nn.init.trunc_normal_(layer.weight, std=uncut, a=-2 * uncut, b=2 * uncut)


def _check(spec: TaskSpec, architecture: Architecture) -> None:
    """Raise UserError if settings of the architecture contradict each other or the task."""
    dim, qkv_dim = architecture.dim, architecture.qkv_dim
    if not architecture.out_proj and qkv_dim != dim:
        raise UserError(f"model.qkv_dim={qkv_dim}: expected model.dim={dim} in a variant without output projection")
    if architecture.norm_over == "batch" and spec.objective != "classify":
        raise UserError(f"model.norm_over=batch: expected a classification task, {spec.name} is not one; use null")
    if architecture.positions == "sinusoidal" and dim % 2:
        raise UserError(f"model.positions=sinusoidal: expected an even model.dim, got {dim}")


def _check_mixer(mixer: Mixer, *, masks: bool, pooling: str) -> None:
    """Raise UserError if the mixer does not support this model."""
    name = type(mixer).__name__
    if not isinstance(getattr(mixer, "config", None), MixerConfig):
        raise UserError(f"{name}: its __init__ does not call super().__init__(config) with the config that it is given")
    if mixer.config.causal and not mixer.can_be_causal:
        raise UserError(f"{name} has no causal form, which this task needs: choose another attention")
    if mixer.causal and pooling in ("cls", "first"):
        raise UserError(f"{name} is causal, so model.pooling={pooling} reads only the first position: use mean or last")
    if masks and pooling != "none" and not mixer.maskable:
        raise UserError(f"{name} cannot mask padding: use model.key_mask=false (protocol=paper) or another attention")
    if not mixer.config.out_proj and not mixer.projects_out:
        raise UserError(f"{name} has no output projection to leave out: use variant=transformer or simple_resl")
