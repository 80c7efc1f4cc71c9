"""The training loop: schedules, early stopping, gradients in micro-batches, order, evaluation, divergence."""

import math
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from support import (
    TINY_MODEL,
    WITH_KERNELS,
    accumulate,
    model_of,
    options,
    small_recipe,
    stub_task,
    train_model,
    train_state,
    train_step,
)

from lra.core.errors import UserError
from lra.core.signals import Paused, StopFlag
from lra.training.batches import batches, partition_by_cost
from lra.training.early_stopping import StoppingRule, is_better
from lra.training.evaluate import evaluate
from lra.training.optimizer import Diverged, make_optimizer
from lra.training.trainer import Trainer


def model_for(task, *overrides: str, dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(1)
    return model_of(*TINY_MODEL, f"model.dropout={dropout}", *overrides, task=task).double()


def rule_of(**options: object) -> StoppingRule:
    return StoppingRule(small_recipe(steps=97, warmup=11, eval_every=5, schedule="constant", **options))


def test_patience_counts_from_the_best_evaluation_and_from_the_warm_up() -> None:
    rule = rule_of(patience=3)
    ends = {best: next(step for step in range(best, 97, 5) if rule.out_of_patience(step, best)) for best in (5, 10, 15)}
    assert ends == {5: 30, 10: 30, 15: 30}  # the first evaluation at least 15 steps after step 11, or after the best
    assert not rule.out_of_patience(30, 20) and rule.out_of_patience(35, 20)
    assert not rule_of().out_of_patience(95, 5)


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", {5: 0.5, 99: 1}),
        ("cosine", {10: 1, 60: 0.5}),
        ("cosine_to_zero", {0: 0, 10: 1, 32.5: (1 + math.sqrt(0.5)) / 2, 55: 0.5, 100: 0}),
        ("triangular", {10: 1, 55: (1 + 1 / 32) / 2, 100: 1 / 32}),
    ],
)
def test_schedules(schedule: str, shares: dict[float, float]) -> None:
    recipe = small_recipe(steps=100, warmup=10, lr=0.1, schedule=schedule)
    assert {step: recipe.learning_rate(step) / 0.1 for step in shares} == pytest.approx(shares, abs=1e-12)


def test_the_rate_falls_in_a_line_to_its_end_wherever_that_is() -> None:
    recipe = small_recipe(steps=97, warmup=11, lr=0.5, schedule="constant", cooldown=10)
    assert [recipe.learning_rate(step) / 0.5 for step in (11, 50, 87, 88, 92, 96)] == pytest.approx(
        [1, 1, 1, 0.9, 0.5, 0.1]
    )
    assert [recipe.learning_rate(step, 61) / 0.5 for step in (50, 51, 52, 60)] == pytest.approx([1, 1, 0.9, 0.1])
    with pytest.raises(UserError, match="cooldown=10: schedule=cosine falls by itself; expected rsqrt or"):
        small_recipe(steps=97, schedule="cosine", cooldown=10)


def ended(*accuracies: float, **options: object) -> StoppingRule:
    """Simulate 97 steps with an evaluation every 5; each counts this many of 100 examples correct."""
    best, end = 0, rule_of(**options)
    for place, accuracy in enumerate(accuracies):
        best = max(best, place, key=lambda at: (accuracies[at], -at))
        end.update({"step": 5 * place + 5, "accuracy": accuracy}, 5 * best + 5, tokens=7 * place, seconds=0.5 * place)
    return end


def test_two_evaluations_at_the_goal_solve_a_task() -> None:
    assert (ended(50, 99, 98, 99, 97, goal=99).why, ended(50, 99, 98, 99, goal=99).step) == ("steps", 97)
    solved = ended(50.5, 99, 98, 99.5, 99, goal=99)
    assert (solved.step, solved.why) == (25, "solved")
    assert solved.entries()["reached"] == {
        "50": {"step": 5, "tokens": 0, "seconds": 0.0},
        "90": {"step": 10, "tokens": 7, "seconds": 0.5},
        "99": {"step": 10, "tokens": 7, "seconds": 0.5},
    }
    assert "reached" not in ended(99, 99, patience=3).entries() and ended(99, 99).entries() == {}


def test_without_progress_the_rate_falls_before_the_end() -> None:
    flat = (10, 30) + (20,) * 4  # the best after 10 steps, the warm-up of 11 counts; 3 evaluations after that is 30
    assert (ended(*flat, patience=3).step, ended(*flat, patience=3).why) == (30, "no progress")
    cooling = ended(*flat, patience=3, cooldown=20)
    assert (cooling.step, cooling.why) == (50, "no progress")
    assert ended(*flat, 40, 20, patience=3, cooldown=20).step == 50  # it falls already, also where that helps
    assert ended(*flat, 99, 99, patience=3, cooldown=20, goal=99).why == "solved"
    assert ended(*flat, patience=3, cooldown=67).why == "steps"  # which fall from there on by themselves


def test_progress_is_so_many_fewer_wrong_answers_than_at_the_last_progress() -> None:
    slow = (10, 30, 32, 34, 36, 38, 40, 42)  # always better; 90, 70, 68 ... 58 of 100 are wrong
    assert ended(*slow, patience=3).why == "steps"
    share = ended(*slow[:6], patience=3, progress=0.2)  # the second has a fifth fewer; 38 does not yet, with 62
    assert (share.step, share.why, share.progress) == (30, "no progress", {"step": 10, "wrong": 70})
    in_time = ended(*slow, patience=4, progress=0.1)  # 38 has a tenth fewer than 30
    assert (in_time.why, in_time.progress) == ("steps", {"step": 30, "wrong": 62})
    assert ended(*(100,) * 6, patience=3, progress=0.2).why == "no progress"  # nothing is less than none
    with pytest.raises(UserError, match="progress=0.2: patience=null"):
        small_recipe(progress=0.2)


def gradients(model, task, micro_batch: int, step: int = 5) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    examples = np.array([3, 19, 4, 0, 11, 7, 22, 13])
    loss, *_ = accumulate(
        model.train(), task.train, examples, micro_batch, seed=2, step=step, precision="fp32"
    ).tolist()
    return loss, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(("system", "protocol"), [("simple", "paper"), ("transformer", "strict")])
def test_every_cut_gives_the_same_gradient(system: str, protocol: str) -> None:
    task = stub_task(documents=2)
    model = model_for(task, f"system={system}", f"protocol={protocol}", dropout=0.3)
    loss, whole = gradients(model, task, 8)
    for micro_batch in (1, 3, 7):
        other, cut = gradients(model, task, micro_batch)
        assert other == pytest.approx(loss, rel=1e-12)
        for of_whole, of_cut in zip(whole, cut, strict=True):
            torch.testing.assert_close(of_whole, of_cut, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("most", [13, 40, 100])
@pytest.mark.parametrize("overhead", [0, 3, 25])
def test_no_cut_is_cheaper(most: int, overhead: int) -> None:
    """Compare with every cut of ten documents; without overhead only documents of one length share a part."""
    lengths = np.array([13, 13, 12, 9, 8, 8, 7, 3, 1, 1])

    def cost(parts: list[slice]) -> float:
        sizes = [(part.stop - part.start, lengths[part.start]) for part in parts]
        if any(count > 1 and count * longest > most for count, longest in sizes):
            return math.inf
        return sum(count * longest + overhead for count, longest in sizes)

    def all_cuts() -> Iterator[list[slice]]:
        for chosen in product([False, True], repeat=9):
            bounds = [0, *(place + 1 for place, cut in enumerate(chosen) if cut), 10]
            yield [slice(*pair) for pair in pairwise(bounds)]

    best = partition_by_cost(lengths, most, overhead)
    assert [place for part in best for place in range(part.start, part.stop)] == list(range(10))
    assert cost(best) == min(map(cost, all_cuts()))
    if overhead == 0:
        assert cost(best) == lengths.sum()


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    task = stub_task()
    model = model_for(task, "protocol=strict")
    loss, grads = gradients(model, task, 3)
    model.zero_grad()
    losses = []
    for example in [3, 19, 4, 0, 11, 7, 22, 13]:
        start, stop = task.train.offsets[example : example + 2]
        document = torch.from_numpy(task.train.tokens[start:stop].astype(np.int64))
        label = torch.tensor([int(task.train.labels[example])])
        losses.append(torch.nn.functional.cross_entropy(model(document[None]), label))
    mean = torch.stack(losses).mean()
    mean.backward()
    assert loss == pytest.approx(mean.item(), rel=1e-12)
    for grad, parameter in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-10, atol=1e-12)


def test_order_is_a_permutation_per_epoch_and_skips_nothing() -> None:
    recipe = small_recipe(steps=23, batch_size=8)
    stream = np.concatenate([examples for _, examples in batches(23, recipe, seed=4)])
    for epoch in range(8):
        assert sorted(stream[23 * epoch : 23 * (epoch + 1)]) == list(range(23))
    assert list(stream[:23]) != list(stream[23:46])
    again = np.concatenate([examples for _, examples in batches(23, recipe, seed=4)])
    other = np.concatenate([examples for _, examples in batches(23, recipe, seed=5)])
    assert (stream == again).all()
    assert (stream != other).any()


def test_training_is_adamw_by_hand() -> None:
    """Seven steps against a loop with the formulas written out; the first update moves nothing, its rate is 0."""
    task = stub_task()
    recipe = small_recipe(weight_decay=0.1)
    model, reference = model_for(task), model_for(task)
    start = train_state(model)
    history = train_model(model, task, recipe).lines
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in reference.parameters()]
    for step, examples in batches(23, recipe, seed=3):
        reference.zero_grad()
        accumulate(reference, task.train, examples, 8, seed=3, step=step, precision="fp32")
        rate = recipe.lr * min(1, step / 2) / math.sqrt(max(step, 2))
        with torch.no_grad():
            for p, (m, v) in zip(reference.parameters(), moments, strict=True):
                p.mul_(1 - rate * 0.1)
                m.mul_(0.9).add_(0.1 * p.grad)
                v.mul_(0.999).add_(0.001 * p.grad**2)
                corrected = (v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                p.sub_(rate / (1 - 0.9 ** (step + 1)) * m / corrected)
        if step == 0:
            for name, value in reference.state_dict().items():
                assert torch.equal(value, start[name])
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name], rtol=1e-9, atol=1e-11)
    assert [line["step"] for line in history] == [3, 6, 7]
    assert [line["lr"] for line in history] == [recipe.learning_rate(step) for step in (2, 5, 6)]
    assert history[-1]["epoch"] == pytest.approx(7 * 8 / 23)
    assert [line["tokens"] for line in history] == [3 * 8 * 11, 3 * 8 * 11, 8 * 11]


def test_clipping_bounds_the_gradient() -> None:
    task = stub_task()
    model = model_for(task)
    train_model(model, task, small_recipe(clip_norm=1e-3))
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("batch", "protocol"), [(1, "paper"), (5, "strict"), (64, "strict")])
def test_evaluation_counts_every_example(batch: int, protocol: str) -> None:
    task = stub_task()
    model = model_for(task, f"protocol={protocol}", dropout=0.3).eval()
    correct, losses = 0, []
    for example in range(23):
        row = torch.from_numpy(task.val.pad(np.array([example]), 11).astype(np.int64))
        logits = model(row)[0]
        label = int(task.val.labels[example])
        correct += int(logits.argmax()) == label
        losses.append(-logits.log_softmax(0)[label].item())
    score = evaluate(model.train(), task.val, batch, precision="fp32")
    assert (score.correct, score.examples) == (correct, 23)
    assert score.loss == pytest.approx(sum(losses) / 23, rel=1e-12)
    assert score.accuracy == 100 * correct / 23


def test_evaluating_more_often_changes_nothing() -> None:
    task = stub_task()
    ends = []
    for every in (1, 7):
        model = model_for(task, dropout=0.3)
        train_model(model, task, small_recipe(eval_every=every))
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_seconds_of_a_training_are_those_of_its_evaluations_and_are_kept() -> None:
    task = stub_task()
    began = time.perf_counter()
    trainer = train_model(model_for(task), task, small_recipe())
    took, lines = time.perf_counter() - began, trainer.lines
    assert trainer.seconds["train"] == pytest.approx(sum(line["train_seconds"] for line in lines))
    assert sum(trainer.seconds.values()) == pytest.approx(sum(line["seconds"] for line in lines))
    assert min(trainer.seconds.values()) > 0 and sum(trainer.seconds.values()) < took
    resumed = Trainer(model_for(task), task, small_recipe(), seed=3, precision="fp32")
    resumed.load_state_dict(*trainer.state_dict())
    assert resumed.seconds == trainer.seconds


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    task = stub_task()
    model = model_for(task)
    trainer, seen = Trainer(model, task, small_recipe(), seed=3, precision="fp32"), {}

    def poison(*_: object) -> None:
        if trainer.step == 4:
            with torch.no_grad():
                model.head[0].bias[0] = float("nan")
            seen.update(train_state(model))

    with pytest.raises(Diverged, match="the loss of step 4 is nan"):
        trainer.train(StopFlag(), poison)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, seen[name], rtol=0, atol=0, equal_nan=True)


def test_a_signal_during_the_last_checkpoint_pauses_the_run() -> None:
    class Signalled(Trainer):
        def save(self) -> None:
            super().save()
            os.kill(os.getpid(), signal.SIGTERM)

    task = stub_task()
    trainer = Signalled(model_for(task), task, small_recipe(), seed=3, precision="fp32")
    with StopFlag() as stop, pytest.raises(Paused, match="SIGTERM"):
        trainer.train(stop)
    assert trainer.step == 7


def diverging(model: torch.nn.Module, step: int) -> None:
    """Make the gradient infinite in this step only."""
    redraw, now = model.redraw, []
    model.redraw = lambda seed, at: now.append(at) or redraw(seed, at)
    model.head[0].bias.register_hook(lambda gradient: gradient * (torch.inf if now[-1] == step else 1))


def test_a_step_that_is_not_finite_moves_nothing_nor_do_those_after_it() -> None:
    """Nor in any of several groups of parameters."""
    task, recipe = stub_task(), small_recipe(clip_norm=0.5, layer_decay=0.5)
    model = model_for(task)
    trainer = Trainer(model, task, recipe, seed=2, precision="fp32")
    diverging(model, 3)
    kept = []
    for step in range(6):
        train_step(model, trainer.optimizer, task.train, np.arange(8), recipe, seed=2, step=step, precision="fp32")
        kept.append({name: value.clone() for name, value in trainer.state_dict()[0].items()})
    for earlier, later in pairwise(kept[2:]):
        torch.testing.assert_close(later, earlier, rtol=0, atol=0)
    assert not torch.equal(kept[1]["model/head.0.weight"], kept[2]["model/head.0.weight"])


@pytest.mark.parametrize(
    ("now", "best", "metric", "better"),
    [
        ((50.0, 9.0), (40.0, 1.0), "accuracy", True),
        ((50.0, 1.0), (50.0, 2.0), "accuracy", False),
        ((10.0, 2.0), (50.0, 3.0), "perplexity", True),
        ((10.0, 2.0), (10.0, math.nan), "perplexity", True),
        ((10.0, math.nan), (10.0, 2.0), "perplexity", False),
        ((10.0, None), (10.0, math.nan), "perplexity", False),
    ],
)
def test_the_better_of_two_evaluations(now: tuple, best: tuple, metric: str, better: bool) -> None:
    """Each evaluation has an accuracy and a loss."""
    first, second = (dict(zip(("accuracy", "loss"), each, strict=True)) for each in (now, best))
    assert is_better(first, second, metric) == better and is_better(first, None, metric)


def test_bf16_is_near_fp32() -> None:
    task = stub_task()
    losses = []
    for precision in ("fp32", "bf16"):
        model = model_for(task).float()
        losses.append(train_model(model, task, small_recipe(), precision=precision).lines[-1]["train_loss"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the compiler
def test_compiled_blocks_give_the_same_losses() -> None:
    task = stub_task(max_len=61)
    losses = []
    for compiled in (False, True):
        model = model_for(task, "protocol=strict", dropout=0.3)
        for module in model.modules():
            module.hashed = True  # as compiled blocks do
        names = list(model.state_dict())
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        recipe = small_recipe(compile=compiled)
        losses.append([(line["train_loss"], line["val_loss"]) for line in train_model(model, task, recipe).lines])
        assert list(model.state_dict()) == names
        assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs) == compiled
    for first, second in zip(*losses, strict=True):
        assert first == pytest.approx(second, rel=1e-9)


@pytest.mark.gpu
def test_a_gpu_gives_the_losses_of_the_cpu() -> None:
    task = stub_task()
    losses = []
    for device in ("cpu", "cuda"):
        model = model_for(task).to(device)
        losses.append([line["train_loss"] for line in train_model(model, task, small_recipe()).lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("backend", ["torch", "fla"])
@pytest.mark.parametrize("name", options("attention"))
def test_a_gpu_is_not_waited_for(name: str, backend: str) -> None:
    """After a warm-up step PyTorch reports every wait as an error."""
    if backend == "fla":
        pytest.importorskip("fla.ops")
        if name not in WITH_KERNELS:
            pytest.skip("it has no other kernels")
    task, recipe = stub_task(), small_recipe(batch_size=5, micro_batch=3, clip_norm=1.0)
    chosen = [f"attention.backend={backend}"] * (name in WITH_KERNELS)
    words = ("model.dropout=0.3", "protocol=paper", "model.pooling=mean", f"attention={name}", *chosen)
    model = model_of(*TINY_MODEL, *words, task=task).cuda()
    optimizer = make_optimizer(model, recipe)
    for step, mode in enumerate(("default", "error")):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            started = train_step(
                model, optimizer, task.train, np.arange(5), recipe, seed=2, step=step, precision="bf16"
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
        started.read()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_rates_decay_from_layer_to_layer() -> None:
    """Every weight moves as in a run whose one rate is the factor of its layer; the first step's moments are equal."""
    task = stub_task()

    def moved(**changes: object) -> dict[str, torch.Tensor]:
        model = model_for(task)
        start = train_state(model)
        recipe = small_recipe(steps=2, warmup=1, weight_decay=0.1, **changes)
        train_model(model, task, recipe)
        return {name: value - start[name] for name, value in model.state_dict().items()}

    decayed, plain = moved(layer_decay=0.5), moved()
    for name, change in decayed.items():
        factor = {"embedding": 1 / 8, "blocks.0": 1 / 4, "blocks.1": 1 / 2, "final_norm": 1, "head": 1}
        [share] = [value for part, value in factor.items() if name.startswith(part)]
        torch.testing.assert_close(change, share * plain[name], rtol=1e-9, atol=1e-15)
        assert change.any() == plain[name].any()
