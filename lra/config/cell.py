"""Determine the table cell to which a configuration belongs, and the cell's folder."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lra.core.names import data_name, file_name, quoted

SWEEPER = "lra"  # option of hydra/sweeper: lra's own sweeper, which plans its runs in advance
# Keys and sections whose values can change results.
DECIDING = ("task", "attention", "protocol", "model", "train", "init", "pretrain", "precision")
PLACED = ("task", "protocol", "attention", "variant", "seed")  # keys whose values are levels of a run's path
DATA = ("task.data", "task.name")  # keys that determine the name of the task's folder in a run's path
ROUNDING = ("train.micro_batch", "train.eval_batch")  # keys that change results by rounding only


@dataclass(frozen=True)
class Cell:
    """A cell of a table: the runs of one system on one task, which differ in their seed."""

    task: str
    protocol: str
    attention: str
    variant: str
    settings: dict[str, Any]  # values by key, of further keys that the command line, `rates` or a sweep sets

    @property
    def folder(self) -> Path:
        """Path of the cell's folder relative to the results folder."""
        levels = [self.task, self.protocol, self.attention, self.variant]
        if self.settings:
            settings = (f"{key}={quoted(str(value), safe=' []')}" for key, value in self.settings.items())
            levels.append(file_name(",".join(settings)))
        return Path(*levels)

    def __str__(self) -> str:
        extra = "".join(f" {key}={value}" for key, value in self.settings.items())
        return f"{self.task} {self.attention}/{self.variant} ({self.protocol}){extra}"


def cell_of(cfg: DictConfig, hydra_cfg: DictConfig, varied: Iterable[str]) -> Cell:
    """Return the cell of a composed configuration, with the values of the keys `varied` as its settings."""
    choices = hydra_cfg.runtime.choices
    settings = {"case": choices["case"]} if choices["case"] else {}  # one name for all keys that the case sets
    task, protocol, attention, variant = (str(choices[group]) for group in PLACED[:4])
    for key in sorted(varied):
        value = choices[key] if key in choices else OmegaConf.select(cfg, key)
        if OmegaConf.is_config(value):  # converted to text in YAML's flow style, such as [a, b]
            content = OmegaConf.to_container(value, resolve=True)
            value = yaml.safe_dump(content, default_flow_style=True, width=float("inf"), allow_unicode=True).strip()
        settings[key] = value
    data = cfg.task.get("data")
    if isinstance(data, str | DictConfig):  # else the task has no `data`, or building it will refuse the type
        # Two data sets under one option of `task` are two tasks, in two folders.
        task = file_name(f"{task}-{quoted(data_name(data, cfg.task.get('name')))}")
    return Cell(task, protocol, attention, variant, settings)


def is_planned(hydra_cfg: DictConfig) -> bool:
    """Return True if a run belongs to a sweep of lra's own sweeper."""
    return hydra_cfg.mode == RunMode.MULTIRUN and hydra_cfg.runtime.choices.get("hydra/sweeper") == SWEEPER


def varied_keys(cfg: DictConfig, hydra_cfg: DictConfig) -> list[str]:
    """Return the keys in a cell's name.

    They are the keys that lra's sweeper varies or, without this sweeper, the overridden keys that can change results.
    """
    if is_planned(hydra_cfg):
        return list(cfg.sweep.varied)
    # In a search, names also contain keys that only change rounding, because trials that differ in such a key would
    # otherwise share a folder, which could hide that one of them was refused.
    others = ROUNDING if hydra_cfg.mode == RunMode.MULTIRUN else ()
    return [key for key in typed_keys(hydra_cfg.overrides.task) if names_a_cell(key) or key in others]


def open_keys(config: DictConfig) -> list[str]:
    """Return the keys, except the seed, that a preset sweeps and the command line does not set; empty for one run."""
    named = typed_keys(config.hydra.overrides.task)
    swept = [key for key in config.hydra.sweeper.get("params") or {} if key not in (*named, "seed")]
    return [] if swept == ["system"] and "attention" in named else swept  # attention=... replaces the swept systems


def typed_keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys that a command line sets."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [*{key: None for override in parsed if not override.is_delete() for key in keys_of(override)}]


def names_a_cell(key: str) -> bool:
    """Return True for a key that can change results by more than rounding and is not a level of a run's path."""
    return key.partition(".")[0] in DECIDING and key not in (*PLACED, *ROUNDING)


def keys_of(override: Override) -> list[str]:
    """Return the keys that an override sets: `model.depth` for model={depth:1}.

    Keys in `DATA` are left out, because the name of the task's folder in a run's path depends on their values.
    """
    # A sweep override has a list of values, none of which is a section with keys.
    key, value = override.key_or_group, None if override.is_sweep_override() else override.value()
    keys = _leaves(key, value) if isinstance(value, dict) and value else [key]
    return [key for key in keys if not key.startswith(DATA)]


def _leaves(key: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [key]
    return [leaf for name, part in value.items() for leaf in _leaves(f"{key}.{getattr(name, 'text', name)}", part)]
