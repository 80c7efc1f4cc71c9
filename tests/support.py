"""Shared helpers: small mixers, models and tasks from conf/, and commands that run in this process."""

import re
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lra.cli import train
from lra.config import configure
from lra.config.cell import cell_of
from lra.config.compose import compose, options
from lra.config.values import parsed
from lra.core.errors import UserError
from lra.core.paths import conf_dir
from lra.core.signals import StopFlag
from lra.mixers import Mixer, MixerConfig
from lra.network.architecture import Architecture
from lra.network.model import Model
from lra.ops.dropout import set_keys
from lra.records.names import METRICS
from lra.runs.build import Job, assemble
from lra.runs.settings import settings_of
from lra.tasks import DataConfig, Split, Task, TaskBuilder, TaskSpec
from lra.training.batches import micro_batches
from lra.training.optimizer import Update, update
from lra.training.recipe import Recipe
from lra.training.trainer import Trainer, compute_gradient

TINY_MODEL = ("model.dim=6", "model.heads=3", "model.depth=2", "model.mlp_dim=10")


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mask_of(lengths: list[int], positions: int) -> Tensor:
    """Return a mask [documents, positions], True at the first `lengths` positions of each document."""
    return torch.arange(positions) < torch.tensor(lengths)[:, None]


def same(actual: Tensor, expected: Tensor, inputs: list[Tensor], tolerance: float = 1e-10) -> None:
    """Compare values, and the gradients of a weighted sum by `inputs`, to `tolerance` of the largest value.

    No gradient counts as one of zeros.
    """
    weights, outcomes = noise(*actual.shape, seed=9), []
    for y in (actual, expected):
        gradients = torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True, allow_unused=True)
        outcomes.append([y, *gradients])
    for mine, theirs in zip(*outcomes, strict=True):
        if mine is None or theirs is None:
            assert all(part is None or not part.any() for part in (mine, theirs))
        else:
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            assert (mine - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max())


def composed(*overrides: str, config: str = "train") -> DictConfig:
    """Return the configuration of a command line with Hydra's own part. Composing it takes a tenth of a second."""
    return deepcopy(_composed(config, *overrides))


@cache
def _composed(config: str, *overrides: str) -> DictConfig:
    return compose(config, *overrides)


def job_of(*overrides: str) -> Job:
    """Return the run that lra-train does with these overrides."""
    cfg = composed(*overrides)
    settings = settings_of(cfg)
    return Job(settings=settings, components=assemble(settings), cell=cell_of(cfg, cfg.hydra, []), title="test")


def laid_over(*overrides: str) -> DictConfig:
    """Compose the options that are chosen once, and merge single values into a copy: that is faster."""
    values = [override for override in overrides if override.startswith(("attention.", "model.", "train."))]
    cfg = composed(*(override for override in overrides if override not in values))
    cfg.merge_with_dotlist(values)
    return cfg


@cache
def _settings(*overrides: str) -> dict[str, dict[str, Any]]:
    values = configure.plain(laid_over(*overrides))
    return {part: values[part] for part in ("attention", "model", "train")}


def settings(*overrides: str) -> dict[str, dict[str, Any]]:
    """Return the plain values from which a mixer, a model and a recipe are built."""
    return deepcopy(_settings(*overrides))


WITH_KERNELS = [
    name for name in options("attention") if "\nbackend:" in (conf_dir() / f"attention/{name}.yaml").read_text()
]


def maker(name: str, *overrides: str) -> Callable[[MixerConfig], Mixer]:
    """Return the factory of the mixers that `attention=name` configures."""
    return configure.build(deepcopy(_attention(f"attention={name}", *overrides)), "attention", supplied=1)


@cache
def _attention(*overrides: str) -> dict[str, Any]:
    """Return the plain values of a mixer. A protocol changes a mixer only by `protocol`, which is merged."""
    protocols = [override for override in overrides if override.startswith("protocol=")]
    cfg = laid_over(*(override for override in overrides if override not in protocols))
    for protocol in protocols:
        cfg.protocol = composed(protocol).protocol
    return configure.plain(cfg)["attention"]


def shape(**changes: object) -> MixerConfig:
    """Return a configuration of a mixer; its dimensions are different primes where they can be."""
    sizes = {
        "dim": 15, "qkv_dim": 15, "heads": 3, "max_positions": 13, "bias": True, "out_proj": True, "dropout": 0.0,
        "dropout_over": "values", "causal": False, "layer": 0,
    }  # fmt: skip
    return MixerConfig(**{**sizes, **changes})


def mixer_of(name: str, *overrides: str, **changes: object) -> Mixer:
    """Return a float64 mixer as `attention=name` configures it, without output projection."""
    return maker(name, *overrides)(shape(**{"out_proj": False, **changes})).double().eval()


# Options of attentions, beside those of conf/, that take their other branches; blocks are small beside the tests'
# lengths. Only the first setting of each is tested by default; "" is that of conf/.
SETTINGS = {
    "local": ["window=3", "window=3 kind=sliding"],
    "longformer": ["window=4", "window=2 global_positions=2", "window=4 global_positions=0"],
    "sparse": ["stride=4 summary=1", "stride=3 summary=2 cls_global=false"],
    "bigbird": ["block=2 random_blocks=1", "block=2", "block=1 random_blocks=2"],
    "synthesizer": ["rank=2 dot_product=true", "kind=random", "kind=dense", "kind=dense dot_product=true"],
    "linformer": ["rank=2"],
    "nystromformer": [
        "landmarks=3 conv_kernel=5", "landmarks=3 conv_kernel=null", "landmarks=5 iterations=12",
    ],
    "luna": ["memory=2"],
    "mixer": ["hidden=7"],
    "sinkhorn": ["block=3", "block=3 gumbel=false iterations=2", "block=5 temperature=0.1"],
    "reformer": [
        "chunk=3", "chunk=3 hashes=3 within_bucket=true", "chunk=4 hashes=1 redraw_every=3", "chunk=1",
        "chunk=2 scale=head_dim", "chunk=5 scale=qkv_dim",
    ],
    "performer": ["features=7", "kernel=relu", "features=3 redraw_every=2"],
    "extractor": [
        "lags=3 rank=null groups=1", "lags=3 rank=null groups=3 adjust=false", "lags=4 rank=6 groups=2",
    ],
    "conv": ["width=3"],
    "hyena": ["width=3 bands=2"],
    "s4d": ["state=2 init=inv", "state=6 b=normal copies=3 output=glu"],
    "gated_deltanet": ["", "gated=false conv=1", "negative_eigenvalues=true"],
    "mamba2": ["state=3 conv=2"],
    "lru": ["state=3"],
    "s5": ["state=4 blocks=2"],
    "mega": ["chunk=3 width=2 averages=2"],
    "based": ["width=3"],
    "gmm_rks": ["samples=3", "smoothing=0.36 redraw_every=5"],
    "gmm_prf": ["samples=3"],
    "fastfood_rks": ["init=released"],
    "fastfood_prf": ["init=released"],
    "generative_rks": ["samples=7 noise_width=0.5 hidden_widths=[2.0,4.0]"],
    "generative_prf": ["samples=7 noise_width=0.5 hidden_widths=[2.0,4.0]"],
}  # fmt: skip


def options_of(name: str) -> list[list[str]]:
    """Return the overrides of each of SETTINGS of an attention, and none of them for conf/."""
    chosen = SETTINGS.get(name, [])
    lines = chosen if "" in chosen else [*chosen, ""]
    return [[f"attention.{option}" for option in line.split()] for line in lines]


def protocols_of(name: str) -> tuple[str, ...]:
    """Return the protocols that change an attention's options: strict alone if none does."""
    return ("strict", "paper", "lra") if _asks_the_protocol(name) else ("strict",)


def _asks_the_protocol(name: str) -> bool:
    text = (conf_dir() / f"attention/{name}.yaml").read_text()
    bases = set(re.findall(r"^  - (\w+)$", text, re.MULTILINE)) - {"_self_"}
    return "${protocol." in text or any(map(_asks_the_protocol, bases))


def cases() -> list[tuple[str, list[str]]]:
    """Return every attention of conf/ in each of its settings."""
    return [(name, extra) for name in options("attention") for extra in options_of(name)]


def case_id(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value).replace("attention.", "")


every_setting = pytest.mark.parametrize(
    ("name", "extra"),
    [
        pytest.param(name, extra, marks=[pytest.mark.slow] if place else [])
        for name in options("attention")
        for place, extra in enumerate(options_of(name))
    ],
    ids=case_id,
)
"""The first setting of every attention; the others are slow tests."""


def spec(**changes: object) -> TaskSpec:
    known = {"name": "stub", "version": 1, "vocab_size": 17, "max_len": 11, "classes": 5, "documents": 1}
    return TaskSpec(**{**known, **changes})


def model_of(*overrides: str, task: TaskSpec) -> Model:
    cfg = settings(*overrides)
    attention = configure.build(cfg["attention"], "attention", supplied=1)
    return Model(attention, task, parsed(Architecture, cfg["model"], "model."))


def stub_task(examples: int = 23, **changes: object) -> Task:
    """Return a task of random documents of random lengths with random labels; its splits are different draws."""
    known = spec(**changes)

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


def recipe_of(*overrides: str, **changes: object) -> Recipe:
    """Return the recipe of a command line, with some values changed."""
    return parsed(Recipe, {**settings(*overrides)["train"], **changes}, "train.")


def accumulate(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: str
) -> Tensor:
    """Compute the gradient of a step in micro-batches of `size` examples."""
    parts = micro_batches(model, split, examples, size, precision)
    return compute_gradient(model, split, examples, parts, seed=seed, step=step, precision=precision)


def train_step(model, optimizer, split, examples, recipe, *, seed: int, step: int, precision: str) -> Update:
    """Do a step of the training loop."""
    totals = accumulate(model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision)
    return update(model, optimizer, totals, recipe, step=step)


def train_model(model: Model, task: Task, recipe: Recipe, *, seed: int = 3, **options: Any) -> Trainer:
    """Train to the end without writing a file."""
    trainer = Trainer(model, task, recipe, seed=seed, **{"precision": "fp32", **options})
    trainer.train(StopFlag())
    return trainer


def small_recipe(**changes: object) -> Recipe:
    """Return a recipe of seven steps."""
    sizes = {"steps": 7, "batch_size": 8, "micro_batch": 3, "eval_batch": 5, "eval_every": 3, "warmup": 2, "lr": 0.05}
    return recipe_of(**{**sizes, **changes})


def built_under_one_name(builder: TaskBuilder, at: DataConfig) -> Task:
    """Build a task. Its spec is the same before, in the built task, and afterwards."""
    before = asdict(builder.at(at).spec)
    assert not [*at.cache.rglob("manifest.json")]
    task = builder.build(at)
    assert {name: getattr(task, name) for name in before} == before == asdict(builder.at(at).spec)
    return task


class Commands:
    """Runs commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture) -> None:
        self._capfd = capfd

    def __call__(self, main: Callable[[], None], *arguments: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self._capfd.readouterr()
        code = performed(main, *arguments)
        out, err = self._capfd.readouterr()
        return code, out, err


def performed(main: Callable[[], None], *arguments: str) -> int:
    """Run a command in this process and return its exit code."""
    GlobalHydra.instance().clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lra", *arguments])
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
    return 0


def train_in(folder: Path, cache: Path, *arguments: str) -> Path:
    """Run lra-train in a folder, for fixtures of a module; returns the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LRA_CACHE", str(cache))
        assert performed(train.main, *arguments) == 0
    return folder


@cache
def _task_values(option: str) -> dict[str, Any]:
    return OmegaConf.to_container(composed(f"task={option}").task, resolve=True)  # a required option stays "???"


def builder_of(option: str, **changes: object) -> TaskBuilder:
    """Return the builder of an option in conf/task, with some values changed."""
    return configure.build(deepcopy(_task_values(option)) | changes, "task")()


def data_config(cache: Path, data_dir: Path | None = None, workers: int = 1) -> DataConfig:
    """Return a cache and a data folder, without a progress bar."""
    return DataConfig(cache=cache, data_dir=data_dir, workers=workers)


def refuses(builder: TaskBuilder, at: DataConfig, message: str) -> None:
    """Assert that the build ends in one line that matches `message`, and that nothing is cached."""
    with pytest.raises(UserError, match=message) as error:
        builder.build(at)
    assert "\n" not in error.value.args[0]  # `str` escapes line breaks
    assert not [*at.cache.rglob("manifest.json")]


def examples_of(split: Split) -> list[tuple[list[int], int]]:
    """Return token ids and label of each example."""
    return [(split.document(row).tolist(), int(split.labels[row])) for row in range(len(split))]


def train_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def saved_bytes(name: str, extra: list[str], length: int) -> int:
    """Return the bytes that a training step keeps for its backward pass, without the weights."""
    mixer = mixer_of(name, *extra, max_positions=length, dropout=0.1).float().train()
    set_keys(mixer, seed=1, step=0, documents=range(1))
    kept: dict[int, Tensor] = {}  # by storage: views of one tensor count once

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _ = mixer(noise(1, length, 15).float().requires_grad_())
    for weight in mixer.state_dict().values():
        kept.pop(weight.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def strip_times(value: object) -> object:
    """Return a record without the entries that depend on the clock, on memory or on a commit during the tests."""
    if isinstance(value, dict):
        gone = {"seconds", "train_seconds", "tokens_per_second", "peak_memory_bytes", "started", "finished", METRICS}
        gone |= {"commit", "dirty"}
        return {key: strip_times(item) for key, item in value.items() if key not in gone}
    return value
