"""Local, Longformer and BigBird attention beside local-attention and transformers."""

import pytest
import torch
from support import mask_of, mixer_of, noise, same

from lra.mixers._sparse import PatternAttention

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def copy(mixer: PatternAttention, other: torch.nn.Module, names: dict[str, str]) -> None:
    """Their weights for ours; `names`: ours to theirs."""
    for ours, theirs in names.items():
        getattr(mixer, ours).load_state_dict(getattr(other, theirs).state_dict())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "length"), [(3, 29), (7, 29), (5, 4), (1, 13)])
def test_local_attention(window: int, length: int, causal: bool) -> None:
    """A mask is always given: theirs lets the positions that it pads with take part otherwise."""
    lib = pytest.importorskip("local_attention")
    other = lib.LocalAttention(
        window_size=window, causal=causal, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False
    )
    options = ("attention.kind=sliding", f"attention.window={window}", "protocol=strict")
    mixer = mixer_of("local", *options, causal=causal, max_positions=29)
    q, k, v = (noise(2, 3, length, 5, seed=seed).requires_grad_() for seed in (1, 2, 3))
    mask = mask_of([length, max(1, length // 2)], length)
    real = mask[:, None, :, None]
    same(mixer.attend(q, k, v, mask) * real, other(q, k, v, mask=mask) * real, [q, k, v], tolerance=1e-12)


@pytest.mark.parametrize("global_positions", [0, 1, 3])
def test_longformer(global_positions: int) -> None:
    """Theirs has the softmax in fp32, whatever the input, and projections for global positions: here copies."""
    lib = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = lib.LongformerConfig(
        hidden_size=15, num_attention_heads=3, attention_window=[16], attention_probs_dropout_prob=0.0
    )
    torch.manual_seed(5)
    other = lib.LongformerSelfAttention(config, layer_id=0).double()
    options = ["attention.window=16", f"attention.global_positions={global_positions}"]
    mixer = mixer_of("longformer", *options, "protocol=strict", max_positions=48)
    names = {"query": "query", "key": "key", "value": "value"}
    copy(mixer, other, names)
    for name in names:
        getattr(other, f"{name}_global").load_state_dict(getattr(other, name).state_dict())
    x, mask = noise(2, 48, 15), mask_of([48, 37], 48)
    everywhere = (torch.arange(48) < global_positions).expand(2, -1)
    (expected, *_) = other(
        x,
        attention_mask=torch.where(mask, everywhere * 10_000.0, -10_000.0).double(),
        is_index_masked=~mask,
        is_index_global_attn=everywhere,
        is_global_attn=global_positions > 0,
    )
    torch.testing.assert_close(mixer(x, mask)[mask], expected[mask], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lengths", [[30, 30], [30, 21]])
def test_bigbird(lengths: list[int]) -> None:
    """In training mode, where theirs draws random blocks: in evaluation its table is zeros, and block 0 counts r
    times more. We take its table; the masks are -1e4 there, which is as good as none in float64."""
    lib = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    config = lib.BigBirdConfig(
        hidden_size=15,
        num_attention_heads=3,
        block_size=2,
        num_random_blocks=3,
        max_position_embeddings=30,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(5)
    other = lib.BigBirdBlockSparseAttention(config, seed=7).double().train()
    draw, drawn = other._bigbird_block_rand_mask_with_head, []
    other._bigbird_block_rand_mask_with_head = lambda **options: drawn.append(draw(**options)) or drawn[-1]
    mixer = mixer_of("bigbird", "attention.block=2", "attention.random_blocks=3", "protocol=strict", max_positions=30)
    copy(mixer, other, {"query": "query", "key": "key", "value": "value"})
    x, mask = noise(2, 30, 15), mask_of(lengths, 30)
    blocked, band, rows, columns = lib.BigBirdModel.create_masks_for_block_sparse_attn(mask.double(), 2)
    result = other(
        x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked, to_blocked_mask=blocked
    )
    mixer.table[:, 1:-1] = torch.stack([torch.from_numpy(rows) for rows in drawn[0]])
    expected = result[0].reshape(2, 30, 15)
    torch.testing.assert_close(mixer(x, mask)[mask], expected[mask], rtol=1e-10, atol=1e-10)
