"""Sweeps: what was declared, where each run lives, and what is said at the end.

`sweep.json` in the results folder lists the declared cells and their seeds, so that the report can show what is
missing. It is written before the first run starts, after every cell's configuration has been checked.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobStatus
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lra import record
from lra.configure import CONFIG_ERROR, FAILED, explain
from lra.console import say
from lra.errors import UserError
from lra.report import write_report
from lra.settings import PLACED, assemble, cell_of, settings_of

FILE = "sweep.json"
CHOOSERS = ("system", "case", "experiment", "out")  # act through other keys


class Sweep(Callback):
    """Hydra's hooks around a sweep: declare and check all cells, count the outcomes, write the report."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Raises SystemExit with one line, since Hydra turns exceptions of callbacks into warnings."""
        try:
            overrides = _overrides(config)
            varied = [key for key, values in overrides.items() if len(values) > 1]
            varied = [key for key in varied if key not in (*PLACED, *CHOOSERS)]
            jobs = 1
            for values in overrides.values():
                jobs *= len(values)
            out = None
            cells = []
            for composed in _compose_without_seeds(config, overrides):
                HydraConfig.instance().set_config(composed)  # for ${hydra:...} in the configuration
                settings = settings_of(composed)
                system = assemble(settings)
                out = settings.out
                cell = cell_of(composed, composed.hydra, varied)
                cells.append(
                    {
                        **asdict(cell),
                        "task_name": system.builder.facts.name,
                        "selection": system.recipe.selection,
                        "folder": cell.folder.as_posix(),
                        "seeds": [int(value) for value in overrides.get("seed", [settings.seed])],
                    }
                )
            if not OmegaConf.select(config, "describe"):
                _declare(Path(out), cells)
        except (UserError, HydraException, OmegaConfBaseException, OSError, ValueError) as error:
            say(f"lra-train: error: {explain(error, 'train')}")
            raise SystemExit(CONFIG_ERROR) from None
        with open_dict(config):
            config.hydra.overrides.task += [f"sweep.varied=[{','.join(varied)}]", f"sweep.jobs={jobs}"]

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:
        failed = job_return.status != JobStatus.COMPLETED
        self.outcomes.append("failed" if failed else job_return.return_value)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        if OmegaConf.select(config, "describe"):
            return
        bad = {outcome for outcome in self.outcomes if outcome not in ("finished", "skipped")}
        try:
            page = write_report(Path(config.out))
            print(page.read_text())
            say(f"report: {page}")
        except (UserError, OSError) as error:
            say(f"lra-train: error: no report: {error}")
            bad.add("no report")
        good = sum(outcome in ("finished", "skipped") for outcome in self.outcomes)
        say(f"{good} of {len(self.outcomes)} runs finished")
        if bad:
            raise SystemExit(CONFIG_ERROR if bad == {"refused"} else FAILED)


def _overrides(config: DictConfig) -> dict[str, list[str]]:
    """Every override of the sweep with its values; the command line replaces the preset's, key by key."""
    preset = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    values: dict[str, list[str]] = {}
    for override in parser.parse_overrides([*preset, *config.hydra.overrides.task]):
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise UserError(f"{override.input_line}: expected a list of values to sweep over")
            values[override.get_key_element()] = list(override.sweep_string_iterator())
        else:
            values[override.get_key_element()] = [override.get_value_element_as_str()]
    if len(values.get("seed", [])) != len(set(values.get("seed", []))):
        raise UserError(f"seed={','.join(values['seed'])}: a seed stands there twice")
    return values


def _compose_without_seeds(config: DictConfig, overrides: dict[str, list[str]]) -> Iterable[DictConfig]:
    """The configuration of every cell; the seed does not change which cell it is."""
    loader = GlobalHydra.instance().config_loader()
    combinations: list[list[str]] = [[]]
    for key, values in overrides.items():
        chosen = values[:1] if key == "seed" else values
        combinations = [[*one, f"{key}={value}"] for one in combinations for value in chosen]
    for combination in combinations:
        yield loader.load_sweep_config(config, combination)


def _declare(out: Path, cells: list[dict[str, Any]]) -> None:
    """Add the cells to `out`/sweep.json; seeds declared earlier stay declared."""
    folders = [cell["folder"] for cell in cells]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice:
        raise UserError(f"two runs of this sweep would share {out / twice}: sweep over one key only once")
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".sweep.lock"):
        path = out / FILE
        declared = {cell["folder"]: cell for cell in record.declared(path)} if path.exists() else {}
        for cell in cells:
            earlier = declared.get(cell["folder"], cell)["seeds"]
            declared[cell["folder"]] = {**cell, "seeds": sorted({*earlier, *cell["seeds"]})}
        record.declare(path, [declared[folder] for folder in sorted(declared)])
