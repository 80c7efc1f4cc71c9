"""Attention layers of other libraries, as they come: pip install 'lra[peers]'."""

from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

from torch import Tensor, nn

from lra.core.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Peer:
    """The distribution, the class, and what it calls the width of a head and the length where it must know them."""

    distribution: str
    module: str
    name: str
    calls: dict[str, str] = field(default_factory=dict)

    def load(self) -> type[nn.Module]:
        return getattr(import_module(self.module), self.name)


PEERS = {
    "performer-pytorch": Peer("performer-pytorch", "performer_pytorch", "SelfAttention", {"head_dim": "dim_head"}),
    "linformer": Peer("linformer", "linformer", "LinformerSelfAttention", {"length": "seq_len"}),
    "linear-attention-transformer": Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        "SelfAttention",
    ),
    "nystrom-attention": Peer("nystrom-attention", "nystrom_attention", "NystromAttention", {"head_dim": "dim_head"}),
    "transformers-nystromformer": Peer("transformers", __name__, "PeerNystromformer", {"length": "length"}),
}


def check(name: str, options: dict[str, Any]) -> None:
    """Raises UserError where there is no such peer, it is not installed, or it has no such option."""
    if name not in PEERS:
        raise UserError(f"peer:{name}: no such peer; {did_you_mean(name, PEERS)}")
    peer = PEERS[name]
    for package in (peer.distribution.replace("-", "_"), peer.module.split(".")[0]):
        if find_spec(package) is None:
            raise UserError(f"peer:{name}: {peer.distribution} is not installed; pip install 'lra[peers]'")
    known = set(signature(peer.load()).parameters) - {"dim", "heads", "dropout", *peer.calls.values()}
    for key in options:
        if key not in known:
            raise UserError(f"peer:{name} {key}: unknown option; {did_you_mean(key, known)}")


def build(name: str, options: dict[str, Any], *, dim: int, heads: int, length: int, dropout: float) -> nn.Module:
    """The layer, with the library's own defaults where no option says otherwise."""
    peer = PEERS[name]
    sizes = {"head_dim": dim // heads, "length": length}
    given = {theirs: sizes[ours] for ours, theirs in peer.calls.items()}
    return peer.load()(dim=dim, heads=heads, dropout=dropout, **given, **options)


class PeerNystromformer(nn.Module):
    """The self-attention of transformers' Nystromformer and an output projection, without its residual sum and norm."""

    def __init__(
        self, dim: int, heads: int, length: int, dropout: float, num_landmarks: int = 64, conv_kernel_size: int = 65
    ) -> None:
        super().__init__()
        if length % num_landmarks:
            raise UserError(
                f"peer:transformers-nystromformer num_landmarks={num_landmarks}: does not divide the length {length}"
            )
        library = import_module("transformers.models.nystromformer.modeling_nystromformer")
        config = library.NystromformerConfig(
            hidden_size=dim,
            num_attention_heads=heads,
            segment_means_seq_len=length,
            num_landmarks=num_landmarks,
            conv_kernel_size=conv_kernel_size,
            attention_probs_dropout_prob=dropout,
        )
        self.attention = library.NystromformerSelfAttention(config)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x)[0])
