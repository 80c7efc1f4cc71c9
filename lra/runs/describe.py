"""The facts of a run that need neither data nor training."""

from typing import Any

import torch

from lra.model.model import Model
from lra.runs.build import System
from lra.runs.operations import counter
from lra.training.recipe import Recipe


def describe(system: System) -> dict[str, Any]:
    """The facts of a run that need neither data nor training."""
    recipe, facts = system.recipe, system.builder.facts
    with torch.device("meta"):
        model = system.model(facts).eval()
        tokens = torch.ones(facts.documents, facts.max_len, dtype=torch.long)
        with counter() as counted:
            model(tokens).sum().backward()
    before = {} if system.pretraining is None else {"pretrain_learning_rate": _rates(system.pretraining.system.recipe)}
    return {
        **parameters(model),
        "full_pattern": system.full_pattern,
        **before,
        "learning_rate": _rates(recipe),
        **_ends(recipe),
        "tokens_per_step": recipe.batch_size * facts.documents * facts.max_len,
        "flops_per_step": counted.get_total_flops() * recipe.batch_size,
    }


def _ends(recipe: Recipe) -> dict[str, str]:
    """What may end the training before its steps."""
    ends = []
    if recipe.goal is not None:
        ends.append(f"solved: {recipe.goal:g} % of validation in two evaluations running")
    if recipe.patience is not None:
        cooled = f", and {recipe.cooldown} steps more" * (recipe.cooldown is not None)
        better = "a better one" if recipe.progress is None else f"{100 * recipe.progress:g} % fewer wrong answers"
        ends.append(f"no progress: {recipe.patience} evaluations of {recipe.eval_every} steps without {better}{cooled}")
    return {"ends": "; ".join([*ends, f"all {recipe.steps:,} steps"])} if ends else {}


def _rates(recipe: Recipe) -> list[list[float]]:
    """[step, learning rate] at the steps where the course of the rate changes."""
    turns = {0, 1, recipe.warmup, recipe.steps - (recipe.cooldown or 0), recipe.steps}
    return [[step, recipe.learning_rate(step)] for step in sorted(turns)]


def parameters(model: Model) -> dict[str, int]:
    """How many there are, and how many are trained."""
    every = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in every),
        "trainable_parameters": sum(parameter.numel() for parameter in every if parameter.requires_grad),
    }
