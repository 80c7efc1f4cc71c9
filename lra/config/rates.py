"""Apply the best settings that a search found for each system: `rates=FILE`.

The file is a list of `{task: , protocol: , attention: , variant: , settings: {KEY: value}}`, where `task` is the first
level of a run's path. Keys set on the command line take precedence.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from lra.config.cell import PLACED, Cell, cell_of, is_planned, typed_keys, varied_keys
from lra.core.errors import UserError
from lra.core.files import read_yaml

SYSTEM = PLACED[:4]  # task, protocol, attention, variant
System = tuple[str, ...]


def apply(cfg: DictConfig, hydra_cfg: DictConfig) -> Cell:
    """Set the values that `overrides` returns in the configuration `cfg`, and return its cell. Raises UserError."""
    values = {} if cfg.rates is None else overrides(cfg, hydra_cfg)
    for key, value in values.items():
        OmegaConf.update(cfg, key, value)
    # All cells of a planned sweep use `rates`, so the cells' names need not contain its values.
    keys = [] if is_planned(hydra_cfg) else values
    return cell_of(cfg, hydra_cfg, [*varied_keys(cfg, hydra_cfg), *keys])


def overrides(cfg: DictConfig, hydra_cfg: DictConfig) -> dict[str, Any]:
    """Return the values in file `rates` for the system of a configuration, except for keys set on the command line.

    Raises:
        UserError: if the file cannot be read, or sets an unknown key or a config group; for a run that does not belong
            to a sweep of lra's sweeper, also if the file has no entry for the system.
    """
    cell = cell_of(cfg, hydra_cfg, [])  # without settings, which the file is to set
    settings = settings_for(cfg.rates, cell)
    if settings is None:
        if is_planned(hydra_cfg):
            return {}
        raise UserError(no_row(cfg.rates, [cell]))
    typed = typed_keys(hydra_cfg.overrides.task)
    values = {key: value for key, value in settings.items() if key not in typed}
    for key, value in values.items():
        if key in hydra_cfg.runtime.choices:
            raise UserError(f"rates={cfg.rates}: {key} is a config group; set it on the command line: {key}={value}")
        if OmegaConf.select(cfg, key, default=...) is ...:
            raise UserError(f"rates={cfg.rates}: {key}: unknown key")
    return values


def settings_for(path: str, cell: Cell) -> dict[str, Any] | None:
    """Return the settings in file `path` for the system of a cell; None if the file has none. Raises UserError."""
    return _rows(str(path)).get(tuple(getattr(cell, name) for name in SYSTEM))


def no_row(path: str, cells: list[Cell]) -> str:
    """Return the error message for cells whose systems have no entry in file `path`."""
    known = ", ".join("/".join(system) for system in _rows(str(path)))
    return f"rates={path}: no settings for {', '.join(map(str, cells))}; the file has settings for {known}"


@cache  # the cells of a sweep ask for the same file
def _rows(path: str) -> dict[System, dict[str, Any]]:
    """Return the settings in file `path` by system. Raises UserError."""
    try:
        return {tuple(row[name] for name in SYSTEM): dict(row["settings"]) for row in read_yaml(Path(path))}
    except OSError as error:
        raise UserError(f"rates={path}: {error.strerror}; expected the best.yaml of a search") from None
    except (yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"rates={path}: expected a list of {', '.join(SYSTEM)} and settings: {reason}") from None
