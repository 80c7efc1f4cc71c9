"""Sweeper plugin of lra-train, `hydra/sweeper: lra`. Every Hydra application imports it, so it imports lra late."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LraSweeper(Sweeper):
    """Plan all cells, skip finished runs, launch the others, and write the report.

    Args:
        params: overrides by key that the command line replaces, as for Hydra's basic sweeper.
    """

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        from lra.cli import sweep

        sweep.run(self.hydra_context, self.task_function, self.config)
