"""The optimiser asks for less than torch's, and moves every weight to the same bit."""

import numpy as np
import pytest
import torch
from support import TINY_MODEL, model_of, small_recipe, stub_task

from lra.training.adamw import AdamW, total_norm
from lra.training.update import update

OWN = {"step": {"rate": 0.002, "weight_decay": 0.0}, "state": {"rate": None, "weight_decay": 0.3}}
S4D = (*TINY_MODEL, "attention=s4d", "attention.state=10", "model.pooling=mean")


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_every_step_is_that_of_torch_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, clip_norm: float | None) -> None:
    """With groups, before and after a loaded state, with a weight that has no gradient at times, and with a step that
    moves nothing."""
    recipe, task = small_recipe(groups=OWN, weight_decay=0.1, lr=0.05, clip_norm=clip_norm), stub_task()

    def of_torch(optimizer: AdamW, lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        optimizer.step()

    def trained() -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        model = model_of(*S4D, task=task)
        optimizer = AdamW(model, recipe)
        for step in range(6):
            model.head[-1].bias.requires_grad_(step not in (0, 4))
            optimizer.found_inf.fill_(float(step == 3))
            update(model, optimizer, task.train, np.arange(8), recipe, seed=2, step=step, precision="fp32")
            optimizer.load_state_dict(optimizer.state_dict())
        kept = {
            f"{name} {key}": value
            for name, weight in model.named_parameters()
            for key, value in optimizer.state[weight].items()
        }
        return {**model.state_dict(), **kept}

    actual = trained()
    monkeypatch.setattr(AdamW, "step_at", of_torch)
    expected = trained()
    assert {key.split()[-1] for key in actual if " " in key} == {"step", "exp_avg", "exp_avg_sq"}
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert {actual[name].item() for name in actual if name.endswith(" step")} == {5.0, 3.0}


def test_the_norm_is_that_of_torch_to_the_last_bit() -> None:
    numbers = torch.Generator().manual_seed(1)
    gradients = [torch.randn(size, generator=numbers) for size in ((7, 11), (13,), (), (2, 3, 5), (10_007,))]
    assert torch.equal(total_norm(gradients), torch.nn.utils.get_total_norm(gradients))
