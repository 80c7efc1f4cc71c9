"""experiment=table1_narrow is experiment=table1 with narrow models, on a CPU in fp32."""

from math import sqrt

import pytest
from omegaconf import OmegaConf
from support import composed

WIDTHS = {f"model.{key}" for key in ("dim", "qkv_dim", "heads", "depth", "mlp_dim")}
CHOICES = {"model.pooling", "train.lr", "train.eval_every", "train.patience"}
PLACE = {"out", "kept", "threads", "device", "precision"}


def flat(config: dict, before: str = "") -> dict[str, object]:
    """Compare every value by its path."""
    values = {}
    for key, value in config.items():
        path = f"{before}{key}"
        values |= flat(value, f"{path}.") if isinstance(value, dict) and value else {path: value}
    return values


def configuration(*overrides: str) -> dict[str, object]:
    config = composed(*overrides)
    values = OmegaConf.to_container(config, resolve=True)
    return flat({key: value for key, value in values.items() if key not in ("hydra", "experiment")})


def other_keys(first: dict[str, object], second: dict[str, object]) -> set[str]:
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


@pytest.mark.parametrize("system", ["simple", "linear", "other/conv", "simple_resl"])
@pytest.mark.parametrize("task", ["listops", "text"])
def test_only_widths_and_what_the_file_says_differ(task: str, system: str) -> None:
    chosen = (f"task={task}", f"system={system}", "protocol=strict", "train.lr=0.07")
    narrow, full = (configuration(f"experiment={name}", *chosen) for name in ("table1_narrow", "table1"))
    filter_width = {"attention.width"} if system == "other/conv" else set()
    assert other_keys(narrow, full) <= WIDTHS | CHOICES | PLACE | filter_width
    assert (narrow["model.dim"], narrow["model.heads"], narrow["model.depth"]) == (64, 1, 2)
    after_warmup = (narrow["train.patience"] or 0) * narrow["train.eval_every"]
    assert after_warmup == (0 if task == "listops" else narrow["train.steps"] / 5)


@pytest.mark.parametrize("system", ["linear", "other/conv"])
@pytest.mark.parametrize("task", ["listops", "text"])
def test_every_system_has_the_peak_of_the_small_models(task: str, system: str) -> None:
    narrow = configuration("experiment=table1_narrow", f"task={task}", f"system={system}")
    small = configuration("size=small", "task=listops")
    narrow_peak, small_peak = (run["train.lr"] / sqrt(run["train.warmup"]) for run in (narrow, small))
    assert narrow_peak == pytest.approx(small_peak, rel=1e-5)
