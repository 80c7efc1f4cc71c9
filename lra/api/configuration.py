"""Configurations composed from Python, as from a command line."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.config.cell import Cell, cell_of
from lra.config.compose import compose as composed
from lra.config.compose import with_packages
from lra.config.configure import check_packages, explain, is_mistake
from lra.config.settings import Settings, settings_of
from lra.core.errors import UserError
from lra.runs.build import assemble, run_folder

_ONE_AT_A_TIME = threading.RLock()  # Hydra and PyTorch keep settings of the whole process; threads take turns


@contextmanager
def preserved_sys_path() -> Iterator[None]:
    """Restore `sys.path` afterwards; inside, modules of the working folder are found."""
    before = [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = before


@dataclass(frozen=True)
class Configuration:
    """The checked configuration of a run.

    Attributes:
        overrides: its command line.
        settings: all values.
        folder: folder of the run.
    """

    overrides: tuple[str, ...]
    settings: Settings
    folder: Path

    @preserved_sys_path()
    def describe(self) -> dict[str, Any]:
        """Return parameters, learning rates [step, rate], tokens and floating point operations of a step, as
        `lra-train describe=true` prints them."""
        from lra.runs.describe import describe

        return describe(assemble(self.settings))


@preserved_sys_path()
def compose(*overrides: str) -> Configuration:
    """Compose the run of `lra-train OVERRIDES`. If the preset is a sweep, the overrides select one of its runs.

    Raises:
        UserError: a mistake, with the key, the expected and the found value.
    """
    with composed_command("train", overrides) as config:
        settings, cell = run_of(config)
        return Configuration(overrides, settings, run_folder(settings, cell))


def run_of(config: DictConfig) -> tuple[Settings, Cell]:
    """Return settings and cell of one run. Raises UserError if the overrides of a sweep do not name one."""
    settings = settings_of(config)
    named = [override.partition("=")[0].lstrip("+") for override in config.hydra.overrides.task]
    swept = [key for key in config.hydra.sweeper.params or {} if key not in (*named, "seed")]
    if swept and not (swept == ["system"] and "attention" in named):
        keys = ", ".join(f"{key}=..." for key in swept)
        raise UserError(f"experiment={config.hydra.runtime.choices.experiment}: a sweep; for one run of it add {keys}")
    return settings, cell_of(config, config.hydra, [])


@contextmanager
def composed_command(command: str, overrides: Sequence[str]) -> Iterator[DictConfig]:
    """Compose the configuration of a command with Hydra's own part, which is also set in Hydra's global state.

    That state is restored afterwards. Raises UserError.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"{override!r:.80}: expected a text, as 'task=listops'")
    words = with_packages(list(overrides))
    with _ONE_AT_A_TIME:
        earlier = HydraConfig.instance().cfg
        try:
            config = composed(command, *words)
            HydraConfig.instance().set_config(config)  # for ${hydra:...}
            check_packages(words, config)
            yield config
        except Exception as error:
            if isinstance(error, UserError) or not is_mistake(error):
                raise
            raise UserError(explain(error, command, overrides)) from None
        finally:
            HydraConfig.instance().cfg = earlier
