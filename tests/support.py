"""What several tests need: small builds of everything in conf/, and the commands run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from lra import configure
from lra.attention import Mixer, Shape
from lra.model import Model
from lra.paths import conf_dir
from lra.tasks import Facts, Split, Task


def options(group: str) -> list[str]:
    """The options of a configuration group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def composed(*overrides: str, config: str = "train") -> DictConfig:
    """The configuration that a command line of these overrides gives, hydra's own part included."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(config, overrides=list(overrides), return_hydra_config=True)


def mixer_of(name: str, *overrides: str, **shape: object) -> Mixer:
    """A float64 mixer as `attention=name` configures it; dimensions are different primes where they can be."""
    cfg = configure.plain(composed(f"attention={name}", *overrides))
    sizes = {
        "dim": 15,
        "qkv_dim": 15,
        "heads": 3,
        "max_len": 13,
        "bias": True,
        "out_proj": False,
        "dropout": 0.0,
        "causal": False,
        "layer": 0,
    }
    build = configure.build(cfg["attention"], "attention", [], supplied=1)
    return build(Shape(**{**sizes, **shape})).double()


def cases() -> list[tuple[str, list[str]]]:
    """Every attention of conf/ as it stands, and in the settings below, whose blocks are small beside the tests'
    lengths and which take the other branches."""
    return [(name, list(extra)) for name in options("attention") for extra in [(), *SETTINGS.get(name, [])]]


SETTINGS: dict[str, list[tuple[str, ...]]] = {}


def facts(**changes: object) -> Facts:
    known = {"name": "stub", "version": 1, "vocab_size": 17, "max_len": 11, "classes": 5, "documents": 1}
    return Facts(**{**known, **changes})


def model_of(*overrides: str, task: Facts) -> Model:
    cfg = configure.plain(composed(*overrides))
    attention = configure.build(cfg["attention"], "attention", [], supplied=1)
    configure.check(Model, cfg["model"], "model.", supplied=2)
    return Model(attention, task, **cfg["model"])


def stub_task(examples: int = 23, **changes: object) -> Task:
    """Random documents of random lengths with random labels; validation and test are different draws."""
    known = facts(**changes)

    def split(seed: int) -> Split:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, known.max_len + 1, size=examples * known.documents)
        return Split(
            tokens=rng.integers(1, known.vocab_size, size=lengths.sum()).astype(np.uint16),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            index=np.arange(len(lengths)),
            labels=rng.integers(0, known.classes, size=examples).astype(np.uint8),
        )

    splits = {name: split(seed) for seed, name in enumerate(("train", "val", "test"))}
    return Task(**vars(known), **splits, baselines={}, digest="stub", folder=Path("."), source="stub")


class Commands:
    """Runs the commands in this process, in an empty folder with a cache of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(self, main: Callable[[], None], *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        GlobalHydra.instance().clear()
        self._capfd.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["lra", *arguments])
            patch.delenv("HYDRA_FULL_ERROR", raising=False)
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
        out, err = self._capfd.readouterr()
        return code, out, err


def train_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
