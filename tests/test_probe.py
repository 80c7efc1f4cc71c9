"""Diagnostics of blocks (`probe=`) against their definitions; measuring changes no weight."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support import TINY_MODEL, Commands, model_of, small_recipe, stub_task, train_model, train_state

from lra.cli import train
from lra.mixers import split_heads
from lra.records.names import METRICS
from lra.training.block_probe import probe, score_statistics

TINY = (*TINY_MODEL, "model.depth=3", "model.dropout=0.3")
NAMES = {"residual_norm", "gradient_norm", "attention_std", "score_std", "score_asymmetry"}


def tiny(*overrides: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(3)
    model = model_of(*TINY, *overrides, task=stub_task(**changes)).double()
    torch.nn.init.normal_(model.embedding.positions)
    return model


@pytest.mark.parametrize(
    ("system", "protocol", "norm"),
    [("transformer", "paper", "pre"), ("transformer", "strict", "post"), ("simple", "paper", "post"),
     ("simple", "strict", "pre"), ("simple_resl", "strict", "post")],
)  # fmt: skip
def test_the_numbers_by_their_definitions(system: str, protocol: str, norm: str) -> None:
    """The reference forms the matrix A of single unpadded examples, whose inputs hooks on the mixers collect."""
    task = stub_task()
    model = tiny(f"system={system}", f"protocol={protocol}", f"model.norm={norm}")
    measured = probe(model, task.val, 1, precision="fp32")
    length = int(task.val.lengths(np.array([0]))[0, 0]) if protocol == "strict" else 11
    tokens = torch.from_numpy(task.val.pad(np.array([0]), length).astype(np.int64))
    inputs, streams = [], []
    for block in model.blocks:
        block.mixer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        block.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    loss = torch.nn.functional.cross_entropy(model.eval()(tokens), torch.tensor([int(task.val.labels[0])]))
    loss.backward()
    for place, (block, x, stream) in enumerate(zip(model.blocks, inputs, streams, strict=True)):
        mixer = block.mixer
        q, k, v = (split_heads(project(x), 3) for project in (mixer.query, mixer.key, mixer.value))
        scale = 6**-0.5 if (system, protocol) == ("transformer", "paper") else 2**-0.5
        scores = q @ k.transpose(-2, -1) * (scale if system == "transformer" else (length + 1) ** -0.5)
        heads = (scores.softmax(dim=-1) if system == "transformer" else scores) @ v
        gap = (scores - scores.transpose(-2, -1)).norm(dim=(-2, -1)) / scores.norm(dim=(-2, -1))
        expected = {
            "residual_norm": stream.norm(dim=-1).mean(),
            "gradient_norm": torch.stack([p.grad.norm() for p in block.parameters()]).norm(),
            "attention_std": heads.std(),
            "score_std": scores.flatten(2).std(dim=-1, correction=0).mean(),
            "score_asymmetry": gap.mean(),
        }
        for name, value in expected.items():
            assert measured[name][place] == pytest.approx(value.item(), rel=1e-9), (name, place)


def test_padding_is_left_out_where_it_is_masked() -> None:
    """The numbers of a padded batch are the means of those of its documents."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5)
    real = torch.arange(11) < torch.tensor([[4], [9]])
    together = score_statistics(q, k, real, 0.7)
    alone = [
        score_statistics(q[i : i + 1, :, :n], k[i : i + 1, :, :n], real[i : i + 1, :n], 0.7)
        for i, n in ((0, 4), (1, 9))
    ]
    for first, second, mean in zip(*alone, together, strict=True):
        assert mean == pytest.approx((first + second) / 2, rel=1e-12)


def test_symmetric_scores_and_antisymmetric_ones() -> None:
    x, real = torch.randn(1, 2, 7, 4, dtype=torch.float64), torch.ones(1, 7, dtype=torch.bool)
    turn = torch.tensor([[0.0, 1], [-1, 0]], dtype=torch.float64).kron(torch.eye(2, dtype=torch.float64))
    assert score_statistics(x, x, real, 1.0)[1] == pytest.approx(0, abs=1e-7)
    assert score_statistics(x @ turn, x, real, 1.0)[1] == pytest.approx(2)


@pytest.mark.parametrize("attention", ["simple", "softmax", "linear", "performer", "reformer", "s4d", "mega", "fnet"])
def test_mixers_without_scores_have_the_other_numbers(attention: str) -> None:
    model = tiny(f"attention={attention}", "variant=transformer")
    measured = probe(model, stub_task().val, 3, precision="fp32")
    assert measured.keys() == NAMES
    for name, values in measured.items():
        known = [value is not None for value in values]
        assert len(values) == 3
        expected = not name.startswith("score") or attention in ("simple", "softmax")
        assert known == [expected] * 3, name
        assert not expected or all(np.isfinite(values))


def test_frozen_blocks_have_no_gradient() -> None:
    model = tiny("system=transformer")
    model.freeze(["qkv"])
    some = probe(model, stub_task().val, 3, precision="fp32")["gradient_norm"]
    model.freeze(["mixer", "feed_forward", "norms"])
    assert all(some)
    assert probe(model, stub_task().val, 3, precision="fp32")["gradient_norm"] == [None] * 3


@pytest.mark.parametrize("attention", ["simple", "sinkhorn"])
def test_measuring_changes_no_weight(attention: str) -> None:
    task = stub_task()
    recipe = small_recipe(eval_every=2)
    ends = []
    for measure in (False, True):
        model = tiny(f"attention={attention}")
        train_model(model, task, recipe, probe=2 if measure else None)
        ends.append(train_state(model))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_writes_its_numbers(cli: Commands) -> None:
    assert cli(train.main, "experiment=smoke", "out=with", "probe=2")[0] == 0
    [path] = Path("with").rglob(METRICS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(len(line[name]) == 2 for line in lines for name in NAMES)
    assert "nothing to do" in cli(train.main, "experiment=smoke", "out=with")[2]  # `probe` alone makes no other run
