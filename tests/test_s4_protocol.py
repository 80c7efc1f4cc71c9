"""protocol=s4: the configurations of state-spaces/s4, parameter counts, weight decay and batch norm."""

import numpy as np
import pytest
import torch
from support import (
    TINY_MODEL,
    accumulate,
    composed,
    mask_of,
    model_of,
    noise,
    recipe_of,
    small_recipe,
    spec,
    stub_task,
    train_state,
    train_step,
)

from lra.core.errors import UserError
from lra.network.layers import BatchNorm
from lra.runs.build import assemble
from lra.runs.settings import settings_of
from lra.training.optimizer import make_optimizer

S4 = ("protocol=s4", *TINY_MODEL, "attention=s4d", "attention.state=4", "attention.copies=1", "attention.b=ones")
# state-spaces/s4, configs/experiment/lra: width, depth, prenorm, batch, rate, steps, warm-up, state, copies of A and B
RELEASED = {
    "listops": (256, 6, False, 32, 0.01, 120_000, 12_000, 4, 1),      # s4-listops.yaml
    "text": (256, 6, True, 16, 0.01, 50_000, 5_000, 4, 1),            # s4-imdb.yaml
    "acl_matching": (256, 6, True, 64, 0.01, 50_000, 5_000, 4, 1),    # s4-aan.yaml
    "image": (512, 6, False, 50, 0.01, 180_000, 18_000, 64, 1),       # s4-cifar.yaml
    "pathfinder": (256, 6, True, 64, 0.004, 500_000, 50_000, 64, None),  # s4-pathfinder.yaml
    "pathx": (256, 6, True, 16, 0.001, 500_000, 50_000, 64, None),    # s4-pathx.yaml
}  # fmt: skip


@pytest.mark.parametrize("task", RELEASED)
def test_s4d_has_the_released_configuration(task: str) -> None:
    cfg = composed(f"task={task}", "protocol=s4", "system=other/s4d")
    model, train, attention = cfg.model, cfg.train, cfg.attention
    sizes = (model.dim, model.depth, model.norm == "pre", train.batch_size, train.lr, train.steps, train.warmup)
    assert (*sizes, attention.state, attention.copies) == RELEASED[task]
    kinds = (train.weight_decay, train.schedule, model.pooling, model.norm_over)
    assert kinds == (0.05, "cosine_to_zero", "mean", "batch")
    assert (model.final_norm, model.dropout_over) == (model.norm == "pre", "channels")
    assert (attention.init, attention.b, attention.output, model.feed_forward_dim) == ("lin", "ones", "glu", 0)
    assert train.groups["state"] == {"rate": 0.001, "weight_decay": 0}
    seen = task in ("image", "pathfinder", "pathx")
    assert train.groups["step"] == {"rate": 0.001 if seen else None, "weight_decay": 0}
    pixels = {"image": [122.6 / 255, 61 / 255], "pathfinder": [0.5, 0.5], "pathx": [0.5, 0.5]}
    assert model.pixels is None if not seen else list(model.pixels) == pytest.approx(pixels[task], abs=1e-6)
    assert (attention.dt_min, attention.dt_max) == (0.0001 if task == "pathx" else 0.001, 0.1)


def parameters(*overrides: str) -> int:
    return assemble(settings_of(composed("protocol=s4", "system=other/s4d", *overrides))).parameters


@pytest.mark.parametrize(("overrides", "printed"), [([], 3.96e6), (["model.dim=128", "model.depth=4"], 267e3)])
def test_golden_parameter_counts(overrides: list[str], printed: float) -> None:
    """Compare with counts that state-spaces/s4 prints: configs/experiment/mega/lra-image/README.md, large and small."""
    shape = ("task=image", "attention.copies=null", "model.norm=pre", "model.final_norm=true")
    count = parameters(*shape, *overrides)
    assert round(count, -4 if count > 1e6 else -3) == printed


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_norms_biases_and_embeddings_do_not_decay(task: str) -> None:
    """Norms, biases and embeddings; pictures have no table of them, but a map. The state has no decay of its own."""
    words = (*S4, "system=other/s4d", f"task={task}")
    model, recipe = model_of(*words, task=spec(vocab_size=257)), recipe_of(*words)
    groups = make_optimizer(model, recipe).param_groups
    decays = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    free = {name for name, weight in model.named_parameters() if decays[id(weight)] == 0}
    state = set(model.group_by_parameter(recipe.groups))
    assert set(decays.values()) == {0, recipe.weight_decay}
    norms = {name for name, _ in model.named_parameters() if "norm." in name}
    biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    table = {"embedding.tokens.weight"} if task == "listops" else set()
    assert norms and biases and state
    assert free == norms | biases | state | table


# ---------------------------------------------------------------- norms over a batch


def test_batch_norm_is_torchs() -> None:
    """Compare with statistics of the real positions in training, and with the running moments in evaluation."""
    ours, theirs = BatchNorm(5, 1e-5).double(), torch.nn.BatchNorm1d(5, eps=1e-5).double()
    with torch.no_grad():
        for norm in (ours, theirs):
            norm.weight.copy_(noise(5, seed=3)), norm.bias.copy_(noise(5, seed=4))
    for seed in (1, 2):
        x, mask = noise(3, 7, 5, seed=seed), mask_of([7, 2, 3], 7)
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.mean, theirs.running_mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.variance, theirs.running_var, rtol=1e-10, atol=1e-12)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, None).flatten(0, 1), theirs(x.flatten(0, 1)), rtol=1e-10, atol=1e-12)


def test_a_block_is_that_of_s4() -> None:
    """x + mixer(norm(x)) before norms and norm(x + mixer(x)) after them; no feed-forward net, and one linear map."""
    x, mask = noise(2, 7, 6), mask_of([7, 4], 7)
    for norm in ("pre", "post"):
        model = model_of(*S4, f"model.norm={norm}", task=spec()).double().eval()
        block = model.blocks[0]
        before = block.mixer_norm(x, mask) if norm == "pre" else x
        expected = x + block.mixer(before, mask)
        expected = expected if norm == "pre" else block.mixer_norm(expected, mask)
        torch.testing.assert_close(block(x, mask), expected, rtol=1e-12, atol=1e-12)
        assert [tuple(layer.weight.shape) for layer in model.head] == [(5, 6)]
        assert model.embedding.positions is None


def test_a_step_takes_its_moments_of_the_whole_batch() -> None:
    """Documents of many lengths are one part; the padding of a batch changes no gradient."""
    task, recipe = stub_task(max_len=11), small_recipe(micro_batch=8)
    model = model_of(*S4, "model.dropout=0", task=task).double()
    parts = []
    model.blocks[0].register_forward_hook(lambda _, inputs, output: parts.append(output.shape[0]))
    accumulate(model.train(), task.train, np.arange(8), 8, seed=2, step=1, precision="fp32")
    assert parts == [8]
    optimizer, before = make_optimizer(model, recipe), train_state(model)
    train_step(model, optimizer, task.train, np.arange(8), recipe, seed=2, step=2, precision="fp32")
    moved = {name for name, value in train_state(model).items() if not torch.equal(value, before[name])}
    assert "blocks.0.mixer_norm.mean" in moved and "blocks.1.mixer_norm.variance" in moved


def test_a_batch_that_is_cut_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.micro_batch=.*batch; use train.micro_batch=32"):
        assemble(settings_of(composed("protocol=s4", "attention=s4d", "train.micro_batch=8")))


def test_pixels_are_scaled_and_projected() -> None:
    """(x / 255 - mean) / deviation, by hand; ids begin with 1. A hidden pixel is zero and has a vector of its own."""
    masked = spec(vocab_size=258, classes=1, objective="values")
    pixels = model_of(*S4, "model.pixels=[0.5,0.25]", "model.norm_over=null", task=masked).double().embedding.tokens
    vectors = pixels(torch.tensor([[1, 256, 52, 257]]))[0]
    for place, value in enumerate((-2.0, 2.0, (51 / 255 - 0.5) / 0.25)):
        torch.testing.assert_close(vectors[place], value * pixels.weight[:, 0] + pixels.bias, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vectors[3], pixels.hidden + pixels.bias, rtol=1e-12, atol=1e-12)
    with pytest.raises(UserError, match=r"model.pixels=\[0.5, 0.25\]: expected a task of 256 grey values, stub has 16"):
        model_of(*S4, "model.pixels=[0.5,0.25]", task=spec())
