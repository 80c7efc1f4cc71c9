"""What one run is given: settings, the system that they describe, and where it lives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra.config.cell import Cell
from lra.config.settings import Settings
from lra.records.names import seed_folder
from lra.runs.system import System


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run. `title`: what people read in front of its lines; `number`: of the job in its sweep."""

    settings: Settings
    system: System
    cell: Cell
    title: str
    number: int = 0

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return run_folder(self.settings, self.cell)

    @property
    def labels(self) -> dict[str, Any]:
        """What a record says of the run before it is trained."""
        facts = self.system.builder.facts
        return {
            "task": facts.name,
            "task_version": facts.version,
            "attention": self.cell.attention,
            "variant": self.cell.variant,
            "protocol": self.cell.protocol,
            "settings": self.cell.settings,
            "seed": self.settings.seed,
            "selection": self.system.recipe.selection,
            "metric": facts.metric,
            **({"row": self.system.row} if self.system.row else {}),
        }


def run_folder(settings: Settings, cell: Cell) -> Path:
    """Of the run with these settings."""
    return Path(settings.out) / cell.folder / seed_folder(settings.seed)
