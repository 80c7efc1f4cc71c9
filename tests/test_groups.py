"""Groups of parameters that mixers name, with a learning rate and a weight decay of their own."""

import numpy as np
import pytest
import torch
from support import (
    TINY_MODEL,
    accumulate,
    cases,
    composed,
    mixer_of,
    model_of,
    recipe_of,
    small_recipe,
    stub_task,
    train_state,
    train_step,
)

from lra.core.errors import UserError
from lra.network.architecture import belongs
from lra.runs.build import assemble
from lra.runs.settings import settings_of
from lra.training.optimizer import make_optimizer
from lra.training.recipe import Recipe

OWN = {"step": {"rate": 0.002, "weight_decay": 0.0}, "state": {"rate": None, "weight_decay": 0.3}}
OF_SOURCES = ("gated_deltanet", "hyena", "lru", "mamba2", "rwkv7", "s4d", "s5")  # in case=own_rates
S4D = (*TINY_MODEL, "attention=s4d", "attention.state=10", "model.pooling=mean")


def s4d() -> torch.nn.Module:
    torch.manual_seed(1)
    return model_of(*S4D, "model.dropout=0", task=stub_task()).double()


def stepped(model: torch.nn.Module, recipe: Recipe, steps: int = 3) -> dict[str, torch.Tensor]:
    optimizer, task = make_optimizer(model, recipe), stub_task()
    for step in range(steps):
        train_step(model, optimizer, task.train, np.arange(8), recipe, seed=2, step=step, precision="fp32")
    return train_state(model)


def test_steps_are_those_of_one_optimiser_for_each_group() -> None:
    """Against torch's own AdamW, one for each group, whose rates are set by hand."""
    recipe = small_recipe(groups=OWN, weight_decay=0.1, lr=0.05, schedule="constant", clip_norm=None)
    actual, model, task = stepped(s4d(), recipe), s4d(), stub_task()
    rates = {"log_dt": (0.002, 0.0), "log_decay": (0.05, 0.3), "frequency": (0.05, 0.3)}
    optimizers = []
    for name, parameter in model.named_parameters():
        rate, decay = rates.get(name.split(".")[-1], (0.05, 0.1))
        kind = torch.optim.AdamW([parameter], betas=tuple(recipe.betas), eps=recipe.eps, weight_decay=decay)
        optimizers.append((rate, kind))
    for step in range(3):
        model.zero_grad(set_to_none=True)
        accumulate(model.train(), task.train, np.arange(8), 3, seed=2, step=step, precision="fp32")
        for rate, optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate * recipe.learning_rate(step) / recipe.lr
            optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("schedule", ["rsqrt", "constant", "cosine", "cosine_to_zero", "triangular"])
def test_a_rate_of_its_own_is_the_peak_of_a_group(schedule: str) -> None:
    groups = {"step": {"rate": 0.002, "weight_decay": None}}
    recipe = small_recipe(lr=0.05, schedule=schedule, warmup=7, steps=31, groups=groups)
    factor, _ = recipe.rate_factor_and_decay("blocks.0.mixer.log_dt", "step")
    rates = [recipe.learning_rate(step) for step in range(31)]
    assert max(rates) == pytest.approx(recipe.peak, rel=1e-12)
    assert max(factor * rate for rate in rates) == pytest.approx(0.002, rel=1e-12)


def test_a_group_with_the_rates_of_the_rest_changes_no_bit() -> None:
    same = {name: {"rate": None, "weight_decay": None} for name in OWN}
    plain, grouped = (stepped(s4d(), small_recipe(weight_decay=0.1, groups=groups)) for groups in (None, same))
    assert all(torch.equal(plain[name], grouped[name]) for name in plain)


@pytest.mark.parametrize(("double", "half"), [("2x", "0.5x"), ("2.0x", "0.50x"), ("02x", ".5x")])
def test_a_rate_may_be_a_multiple_of_the_rest(double: str, half: str) -> None:
    twice = {"step": {"rate": double, "weight_decay": 0.0}, "state": {"rate": half, "weight_decay": None}}
    given = {"step": {"rate": 0.1, "weight_decay": 0.0}, "state": {"rate": 0.025, "weight_decay": None}}
    relative, absolute = (
        stepped(s4d(), small_recipe(groups=groups, lr=0.05, schedule="constant")) for groups in (twice, given)
    )
    assert all(torch.equal(relative[name], absolute[name]) for name in relative)


@pytest.mark.parametrize("attention", sorted({name for name, _ in cases()}))
def test_a_mixer_groups_parameters_of_its_own_each_once(attention: str) -> None:
    """Every named parameter exists in some setting of the tests, and case=own_rates has the values of its source."""
    grouped: set[str] = set()
    for name, extra in cases():
        if name == attention:
            mixer = mixer_of(name, *extra)
            places = [place for group in mixer.parameter_groups.values() for place in group]
            for parameter, _ in mixer.named_parameters():
                holding = [place for place in places if f"{parameter}.".startswith(f"{place}.")]
                assert len(holding) <= 1, (parameter, holding)
                grouped.update(holding)
    assert grouped == set(places)
    assert bool(places) == (attention in OF_SOURCES)


@pytest.mark.parametrize(("attention", "extra"), cases())
def test_norms_and_biases_of_every_mixer_are_called_so(attention: str, extra: list[str]) -> None:
    """They are found by the modules that hold them, and two vectors of conv and Mega by name."""
    mixer = mixer_of(attention, *extra)
    held = {
        f"blocks.0.mixer.{place}.{name}": type(module)
        for place, module in mixer.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }
    for name, kind in held.items():
        assert belongs(name, ["norms"]) >= ("Norm" in kind.__name__), name
        assert belongs(name, ["biases"]) >= (name.endswith(".bias") and issubclass(kind, torch.nn.Linear)), name
    added = {"conv": "shift", "mega": "shifts"}.get(attention)
    assert added is None or belongs(f"blocks.0.mixer.{added}", ["biases"])
    assert added is None or hasattr(mixer, added)


@pytest.mark.parametrize("attention", OF_SOURCES)
def test_the_s4_protocol_has_the_rates_of_sources(attention: str) -> None:
    """Except the step of S4D, which has the rate of other weights in tasks without pictures."""
    for task in ("text", "image") if attention == "s4d" else ("text",):
        overrides = (f"attention={attention}", f"task={task}")
        expected = recipe_of(*overrides, "case=own_rates").groups
        if attention == "s4d" and task != "image":
            expected["step"]["rate"] = None
        assert recipe_of(*overrides, "protocol=s4").groups == expected
    assert recipe_of("attention=softmax", "task=text", "protocol=s4").groups is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{sate: {rate: 0.1, weight_decay: 0}}", "train.groups.sate: S4D has no such group; it has step, state"),
        ("{state: {rate: 0.1}}", "train.groups.state.weight_decay: missing"),
        ("{state: {rate: 0, weight_decay: 0}}", "train.groups.state.rate=0: should be greater than 0"),
        ("{state: {rate: twice, weight_decay: 0}}", "train.groups.state.rate=twice: "),
        ("{state: {rat: 1, weight_decay: 0}}", "train.groups.state.rat: unknown key; did you mean 'rate'"),
        ("{state: 0.001}", "train.groups"),
    ],
)
def test_a_mistake_in_groups_is_named(value: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        assemble(settings_of(composed(*S4D, f"train.groups={value}")))
