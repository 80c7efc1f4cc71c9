"""Hydra sweepers of lra-train.

Every Hydra application imports this module, so lra and Optuna are imported in functions, when they are needed.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


def _refuse_chdir(config: DictConfig) -> None:
    from lra.core.errors import UserError

    if config.hydra.job.chdir:
        raise UserError("hydra.job.chdir=true: paths of lra are relative to the working directory; omit it")


class LraSweeper(Sweeper):
    """Default sweeper, `hydra/sweeper=lra`: it plans all cells, launches unfinished runs and writes the report.

    Args:
        params: default overrides by key, which the command line replaces, as in Hydra's basic sweeper.
    """

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        _refuse_chdir(config)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        from lra.sweep import launch

        launch.run(self.hydra_context, self.task_function, self.config)


class OptunaSearch(Sweeper):
    """Sweeper `hydra/sweeper=optuna`: it runs hydra-optuna-sweeper and prints the best settings of each system.

    Args:
        options: keyword arguments of `OptunaSweeper`.
    """

    def __init__(self, **options: Any) -> None:
        import optuna
        from hydra_plugins.hydra_optuna_sweeper.optuna_sweeper import OptunaSweeper

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweeper = OptunaSweeper(**options)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        _refuse_chdir(config)
        self.config = config
        self.sweeper.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> None:
        from lra.core.console import say
        from lra.core.errors import UserError
        from lra.core.signals import Paused
        from lra.sweep import search

        overrides = [*arguments, *(f"{key}={value}" for key, value in (self.config.hydra.sweeper.params or {}).items())]
        try:
            self.sweeper.sweep(arguments)
        except Paused as pause:
            say(pause.line)
            with suppress(UserError, SystemExit):  # exit with the code of the pause instead
                search.conclude(Path(self.config.out), overrides)
            raise SystemExit(pause.code) from None
        search.conclude(Path(self.config.out), overrides)
