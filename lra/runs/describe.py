"""The facts of a run that need neither data nor training."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lra.model.model import Model
from lra.runs.system import System


def describe(system: System) -> dict[str, Any]:
    """The facts of a run that need neither data nor training."""
    recipe, facts = system.recipe, system.builder.facts
    with torch.device("meta"):
        model = system.model(facts).eval()
        tokens = torch.ones(facts.documents, facts.max_len, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens).sum().backward()
    steps = sorted({0, 1, recipe.warmup, recipe.steps})
    return {
        **parameters(model),
        "full_pattern": system.full_pattern,
        "learning_rate": [[step, recipe.learning_rate(step)] for step in steps],
        "tokens_per_step": recipe.batch_size * facts.documents * facts.max_len,
        "flops_per_step": counter.get_total_flops() * recipe.batch_size,
    }


def parameters(model: Model) -> dict[str, int]:
    """How many there are, and how many are trained."""
    every = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in every),
        "trainable_parameters": sum(parameter.numel() for parameter in every if parameter.requires_grad),
    }
