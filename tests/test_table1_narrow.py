"""experiment=table1_narrow is the rehearsal of experiment=table1: the same but for the widths."""

from math import sqrt

import pytest
from omegaconf import OmegaConf
from support import composed

WIDTHS = {f"model.{key}" for key in ("dim", "qkv_dim", "heads", "depth", "mlp_dim")}
CHOICES = {"model.pooling", "train.lr", "train.eval_every", "train.patience"}
PLACE = {"out", "threads", "device"}
PILOT = {"train.steps", "train.warmup", "train.eval_every", "train.lr", "train.patience", "out"}


def flat(config: dict, before: str = "") -> dict[str, object]:
    """By its path, every value."""
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


@pytest.mark.parametrize("task", ["listops", "text"])
def test_a_pilot_has_a_tenth_of_the_schedule_and_the_same_peak(task: str) -> None:
    chosen = (f"task={task}", "system=linear", "train.lr=0.07")
    pilot, run = (configuration(f"experiment={name}", *chosen) for name in ("table1_narrow_rates", "table1_narrow"))
    assert other_keys(pilot, run) <= PILOT
    assert all(10 * pilot[f"train.{key}"] == run[f"train.{key}"] for key in ("steps", "warmup"))
    published = configuration("experiment=table1", *chosen[:-1])["train.lr"]
    first = {"listops": 0.00158114, "text": 0.0158114}[task]  # of the commands in table1_narrow_rates.yaml
    assert first / sqrt(pilot["train.warmup"]) == pytest.approx(published / sqrt(run["train.warmup"]), rel=1e-5)
