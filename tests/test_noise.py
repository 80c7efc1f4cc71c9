"""Training of every mixer: noise and gradients do not depend on padding, micro-batches or the number of ranks."""

from typing import Any

import numpy as np
import pytest
import torch
from support import (
    TINY_MODEL,
    accumulate,
    case_id,
    cases,
    every_setting,
    maker,
    mask_of,
    mixer_of,
    noise,
    settings,
    stub_task,
)

from lra.mixers import Mixer
from lra.network.architecture import Architecture
from lra.network.model import Model
from lra.ops.dropout import set_keys
from lra.training import batches, distributed

OF_CHANNELS = ["conv", "extractor", "hyena", "lru", "s4d", "s5"]  # they drop vectors of positions, not weights


def model_settings() -> dict[str, Any]:
    """Return settings of a small model with a mask and with dropout everywhere."""
    dropout = ("model.dropout=0.3", "model.embedding_dropout=true", "model.mixer_dropout=true")
    return settings("protocol=strict", "variant=transformer", *TINY_MODEL, "model.pooling=mean", *dropout)["model"]


def mixer_for(name: str, *extra: str, **changes: object) -> Mixer:
    """Return a mixer in training for 67 positions of width 6."""
    sizes = {"dim": 6, "qkv_dim": 6, "max_positions": 67, **changes}
    return mixer_of(name, *extra, "protocol=strict", **sizes).train()


def differences(name: str, extra: list[str], max_len: int, **changes: object) -> dict[str, float]:
    """Relative distances of the gradients in micro-batches and of two ranks from that of the whole batch.

    The largest of all parameters; gradients that are zero but for rounding count as a thousandth of all.
    """
    torch.manual_seed(1)
    task, maskable = stub_task(max_len=max_len), mixer_for(name).maskable
    architecture = Architecture(**{**model_settings(), **changes, "key_mask": maskable})
    model = Model(maker(name, *extra, "protocol=strict"), task, architecture).double().train()
    model.redraw(2, 5)
    by_length = np.argsort(task.train.lengths(np.arange(len(task.train))).max(axis=1), kind="stable")
    examples = by_length[[7, 0, 22, 3, 11, 1, 17, 5]]

    def gradient(micro_batch: int, processes: int) -> list[torch.Tensor]:
        of_ranks = []
        for rank in range(processes):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(batches, "OVERHEAD", {"cpu": 1 << 30})  # as few parts as `micro_batch` allows
                patch.setattr(distributed, "shard", lambda examples, rank=rank: examples[rank::processes])
                accumulate(model, task.train, examples, micro_batch, seed=2, step=5, precision="fp32")
            of_ranks.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        return [torch.stack(grads).sum(dim=0) for grads in zip(*of_ranks, strict=True)]

    whole = gradient(len(examples), 1)
    least = 1e-3 * torch.nn.utils.get_total_norm(whole)
    worst = {}
    for label, micro_batch, processes in [*((f"cut {size}", size, 1) for size in (3, 5)), ("2 ranks", 8, 2)]:
        pairs = zip(gradient(micro_batch, processes), whole, strict=True)
        worst[label] = max(((split - full).norm() / torch.maximum(full.norm(), least)).item() for split, full in pairs)
    return worst


@every_setting
def test_every_cut_and_any_number_of_ranks_gives_the_same_gradient(name: str, extra: list[str]) -> None:
    assert max(differences(name, extra, 67).values()) <= 1e-10


@pytest.mark.parametrize("name", ["softmax", *OF_CHANNELS])
def test_the_gradient_of_a_cut_batch_where_channels_are_dropped(name: str) -> None:
    assert max(differences(name, [], 67, dropout_over="channels").values()) <= 1e-10


@pytest.mark.parametrize("name", OF_CHANNELS)
def test_a_mixer_drops_a_channel_at_all_positions(name: str) -> None:
    mixer = mixer_for(name, dropout=0.5, dropout_over="channels")
    set_keys(mixer, seed=1, step=3, documents=range(11))
    gone = mixer(noise(11, 67, 6)) == 0
    share = gone.double().mean(dim=1)  # a GELU of a very negative number is zero, too
    assert ((share == 1) | (share < 0.1)).all()
    assert 0 < (share == 1).double().mean() < 1


@every_setting
def test_padding_does_not_change_real_positions_in_training(name: str, extra: list[str]) -> None:
    """Noise is on, two-sided and causal. Some documents are no longer than the memories of Luna and Linformer."""
    if not mixer_for(name, *extra).maskable:
        pytest.skip(f"{name} declares that it cannot mask")
    for causal in (False, True) if mixer_for(name, *extra).can_be_causal else (False,):
        on_output = ["attention.dropout_on=output"] * (name == "simple" and causal)  # the causal form has no one state
        mixer = mixer_for(name, *extra, *on_output, dropout=0.3, causal=causal)
        for lengths, paddings in (([2, 1], (2, 3, 7)), ([40, 17], (40, 61, 67))):
            outputs = []
            for padded in paddings:
                mixer.redraw(1, 3)
                set_keys(mixer, seed=1, step=3, documents=[4, 0])
                mask = mask_of(lengths, padded)
                outputs.append(mixer(noise(2, 67, 6)[:, :padded], mask)[mask])
            for other in outputs[1:]:
                torch.testing.assert_close(other, outputs[0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extra"), cases(), ids=case_id)
def test_the_gradients_of_long_texts(name: str, extra: list[str]) -> None:
    assert max(differences(name, extra, 601).values()) <= 1e-10
