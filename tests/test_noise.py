"""Training of every mixer: noise and gradients depend neither on padding nor on the cut of a batch nor on ranks."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from support import accumulate, case_id, cases, composed, every_setting, mask_of, noise, stub_task

from lra.config import configure
from lra.mixers import Mixer, MixerConfig
from lra.network.architecture import Architecture
from lra.network.model import Model
from lra.ops.dropout import set_keys
from lra.training import batches, distributed

OF_CHANNELS = ["conv", "extractor", "hyena", "lru", "s4d", "s5"]  # they drop vectors of positions, not weights


@cache
def configuration(name: str) -> DictConfig:
    """Small, masked, with dropout everywhere."""
    sizes = ("model.dim=6", "model.heads=3", "model.depth=2", "model.mlp_dim=5", "model.pooling=mean")
    dropout = ("model.dropout=0.3", "model.embedding_dropout=true", "model.mixer_dropout=true")
    return composed(f"attention={name}", "protocol=strict", *sizes, *dropout)


def settings(name: str, extra: list[str]) -> tuple[Callable[[MixerConfig], Mixer], dict]:
    """Constructor of the mixer, and the settings of the model."""
    cfg = configuration(name).copy()
    cfg.merge_with_dotlist(extra)
    plain = configure.plain(cfg)
    return configure.build(plain["attention"], "attention", supplied=1), plain["model"]


def differences(name: str, extra: list[str], max_len: int) -> dict[str, float]:
    """Relative distances of the gradients in micro-batches and of two ranks from that of the whole batch.

    The largest of all parameters; gradients that are zero but for rounding count as a thousandth of all.
    """
    torch.manual_seed(1)
    build, model_settings = settings(name, extra)
    task = stub_task(max_len=max_len)
    maskable = build.func.maskable
    model = Model(build, task, Architecture(**{**model_settings, "key_mask": maskable})).double().train()
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
    assert max(differences(name, ["model.dropout_over=channels"], 67).values()) <= 1e-10


@pytest.mark.parametrize("name", OF_CHANNELS)
def test_a_mixer_drops_a_channel_at_all_positions(name: str) -> None:
    build, _ = settings(name, [])
    sizes = {"dim": 6, "qkv_dim": 6, "heads": 3, "max_positions": 67, "bias": True, "out_proj": False}
    sizes |= {"layer": 0, "layers": 2}
    mixer = build(MixerConfig(**sizes, dropout=0.5, dropout_over="channels", causal=False)).double().train()
    set_keys(mixer, seed=1, step=3, rows=range(11))
    gone = mixer(noise(11, 67, 6)) == 0
    share = gone.double().mean(dim=1)  # a GELU of a very negative number is zero, too
    assert ((share == 1) | (share < 0.1)).all()
    assert 0 < (share == 1).double().mean() < 1


@every_setting
def test_padding_does_not_change_real_positions_in_training(name: str, extra: list[str]) -> None:
    """With noise, two-sided and causal; 2 positions are as many as Luna's and Linformer's short memories."""
    build, _ = settings(name, extra)
    if not build.func.maskable:
        pytest.skip(f"{name} declares that it cannot mask")
    sizes = {"dim": 6, "qkv_dim": 6, "heads": 3, "max_positions": 67, "bias": True, "out_proj": False}
    sizes |= {"dropout_over": "values", "layer": 0, "layers": 2}
    for causal in (False, *([True] if build(MixerConfig(**sizes, dropout=0.0, causal=False)).can_be_causal else [])):
        if name == "simple" and causal:
            build.keywords["dropout_on"] = "output"  # the causal form has no one state
        mixer = build(MixerConfig(**sizes, dropout=0.3, causal=causal)).double().train()
        for lengths, paddings in (([2, 1], (2, 3, 7)), ([40, 17], (40, 61, 67))):
            outputs = []
            for padded in paddings:
                mixer.redraw(1, 3)
                set_keys(mixer, seed=1, step=3, rows=[4, 0])
                mask = mask_of(lengths, padded)
                outputs.append(mixer(noise(2, 67, 6)[:, :padded], mask)[mask])
            for other in outputs[1:]:
                torch.testing.assert_close(other, outputs[0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extra"), cases(), ids=case_id)
def test_the_gradients_of_long_texts(name: str, extra: list[str]) -> None:
    assert max(differences(name, extra, 601).values()) <= 1e-10
