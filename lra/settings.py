"""What a composed configuration means: checked settings, the objects they describe, and the cell they belong to."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import Field, PositiveFloat, PositiveInt

from lra import configure, paths
from lra.errors import UserError, did_you_mean
from lra.init import Start
from lra.recipe import Precision, Recipe
from lra.tasks import Builder, Facts

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.loggers import Logger
    from lra.model import Model

RESULT_KEYS = ("task", "attention", "protocol", "model", "train", "seed", "precision")
LONGEST_NAME = 200  # bytes of a folder's name; file systems take 255, some of them 143 of encrypted ones
PLACED = ("task", "protocol", "attention", "variant", "seed")  # have their own level in a run's path

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Cores = Annotated[int, Field(gt=0, le=1024)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked configuration; the fields are the keys of `conf/train.yaml`."""

    task: dict[str, Any]
    attention: dict[str, Any]
    protocol: dict[str, str]
    short: dict[str, dict[str, int]]
    model: dict[str, Any]
    train: dict[str, Any]
    init: dict[str, Any] | None
    seed: Seed
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    threads: Cores | None
    out: str
    describe: bool
    probe: PositiveInt | None
    cache: str
    data_dir: str | None
    workers: Cores | None
    packages: list[str]
    sweep_minutes: PositiveFloat | None
    max_hours: PositiveFloat | None
    isolate: bool
    resume: Literal["exact", "inexact"]
    retry: Literal["none", "failed", "all"]
    checkpoint: dict[str, Any]
    logger: dict[str, Any]
    sweep: dict[str, Any]
    generate: dict[str, Any]

    @cached_property
    def start(self) -> Start | None:
        """Where the first weights come from; None: they are drawn."""
        if self.init is None:
            return None
        with configure.blamed("init", self.packages):
            return configure.build(self.init, "init", self.packages, kind=Start)()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers; paths, time limits and the like do not. Raises UserError where the
        file of first weights is missing, since its digest is part of it."""
        chosen = {key: getattr(self, key) for key in RESULT_KEYS}
        chosen["train"] = {key: value for key, value in self.train.items() if key not in ("minutes", "processes")}
        if self.start is not None:
            options = {key: value for key, value in self.init.items() if key not in ("folder", "_partial_")}
            chosen["init"] = {**options, "sha256": self.start.sha256}
        return chosen


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When a run saves its state, and whether its weights stay; the keys of `checkpoint`."""

    minutes: PositiveFloat
    steps: PositiveInt | None
    keep: bool

    def due(self, step: int, seconds: float) -> bool:
        """After `step`, `seconds` after the last time."""
        return seconds >= 60 * self.minutes or (self.steps is not None and step % self.steps == 0)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """What a language model writes after its training; the keys of `generate`."""

    prompt: Annotated[str, Field(min_length=1)]
    tokens: PositiveInt
    top_p: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a run of a sweep knows of the others; the keys of `sweep`."""

    varied: list[str]
    jobs: PositiveInt


@dataclass(frozen=True, kw_only=True)
class System:
    """What a configuration describes, checked but not yet at work. `full_pattern`: as of its mixers, at this length."""

    builder: Builder
    model: "Callable[[Facts], Model]"
    recipe: "Recipe"
    start: Start | None
    parameters: int
    full_pattern: bool


def settings_of(cfg: DictConfig) -> Settings:
    """Check names and types of a composed configuration."""
    values = configure.plain(cfg)
    configure.check(Settings, values, "")
    configure.check(Generate, values["generate"], "generate.")
    configure.check(Checkpoints, values["checkpoint"], "checkpoint.")
    configure.check(Part, values["sweep"], "sweep.")
    known = yaml.safe_load((paths.conf_dir() / "protocol" / "paper.yaml").read_text())["protocol"]
    for key in values["protocol"]:
        if key not in known:
            raise UserError(f"protocol.{key}: unknown key; {did_you_mean(key, known)}")
    if not values["out"] or values["out"].startswith("~"):
        raise UserError(f"out={values['out']}: expected a folder for the results, written out (without ~)")
    settings = Settings(**values)
    loggers_of(settings)
    return settings


def loggers_of(settings: Settings) -> "dict[str, Logger]":
    """The loggers that are wanted, by name."""
    return {
        name: configure.build(node, f"logger.{name}", settings.packages)() for name, node in settings.logger.items()
    }


def assemble(settings: Settings) -> System:
    """Resolve the task, the attention, the model and the recipe, and check that they fit together."""
    import torch

    with configure.blamed("task", settings.packages):
        builder = configure.build(settings.task, "task", settings.packages, kind=Builder)()
    designed = architecture(settings.attention, settings.model, settings.packages)
    configure.check(Recipe, settings.train, "train.")
    recipe = Recipe(**settings.train)
    start = settings.start

    def model(facts: Facts) -> "Model":
        made = designed(facts)
        made.freeze(recipe.freeze or ())
        return made

    try:
        with torch.device("meta"), configure.blamed("attention", settings.packages):
            made = model(builder.facts)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UserError(f"task, model, attention: no machine has room for such sizes ({error})") from None
    return System(
        builder=builder,
        model=model,
        recipe=recipe,
        start=start,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        full_pattern=made.blocks[0].mixer.full_pattern,
    )


def check_memory(system: System) -> None:
    """Raises UserError where the weights, their gradients and the two means of Adam are more than the machine has."""
    needed, there = 16 * system.parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UserError(
            f"model.dim, model.depth, task.max_length: a model of {system.parameters:,} parameters takes "
            f"{needed / 2**30:,.0f} GiB in training, and this machine has {there / 2**30:,.0f} GiB"
        )


def architecture(attention: dict[str, Any], model: dict[str, Any], packages: list[str]) -> "Callable[[Facts], Model]":
    """The model that these two parts of a configuration describe, for any task."""
    from lra.attention import Mixer
    from lra.model import Model

    mixer = configure.build(attention, "attention", packages, supplied=1, kind=Mixer)
    configure.check(Model, model, "model.", supplied=2)
    return lambda facts: Model(mixer, facts, **model)


@dataclass(frozen=True)
class Cell:
    """One cell of a table; with a seed it is a run. `settings`: whatever else a sweep varies."""

    task: str
    protocol: str
    attention: str
    variant: str
    settings: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Relative to the results folder."""
        levels = [self.task, self.protocol, self.attention, self.variant]
        if self.settings:
            name = ",".join(f"{key}={quote(str(value), safe=' []')}" for key, value in self.settings.items())
            levels.append(_fitting(name))
        return Path(*levels)

    def __str__(self) -> str:
        extra = "".join(f" {key}={value}" for key, value in self.settings.items())
        return f"{self.task} {self.attention}/{self.variant} ({self.protocol}){extra}"


def cell_of(cfg: DictConfig, hydra_cfg: DictConfig, varied: Iterable[str]) -> Cell:
    """The cell that a composed configuration belongs to."""
    choices = hydra_cfg.runtime.choices
    settings = {"case": choices["case"]} if choices["case"] else {}
    for key in sorted(varied):
        settings[key] = choices[key] if key in choices else _named(OmegaConf.select(cfg, key))
    return Cell(*(str(choices[group]) for group in PLACED[:4]), settings)


def _named(value: Any) -> Any:
    """A list or a group of keys as one writes it on the command line, [a, b]: a name has no parts."""
    if not OmegaConf.is_config(value):
        return value
    content = OmegaConf.to_container(value, resolve=True)
    return yaml.safe_dump(content, default_flow_style=True, width=float("inf"), allow_unicode=True).strip()


def _fitting(name: str) -> str:
    """The name of a folder; one that is too long for file systems is cut and has its digest at the end."""
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{name[: LONGEST_NAME // 2]}~{digest}"
