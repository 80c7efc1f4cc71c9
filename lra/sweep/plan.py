"""Plan a sweep: its cells and their runs.

`sweep.json` in the results folder lists the planned cells and their seeds, so that the report can list missing runs.
The file is written before the first run starts, after every cell's configuration has been checked.
"""

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lra.config import rates
from lra.config.cell import PLACED, Cell, cell_of, keys_of
from lra.config.compose import options
from lra.config.settings import Seed
from lra.config.values import check_value
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.core.files import digest, explained, hold, write_json
from lra.datasets.task import DataConfig
from lra.records.names import SWEEP, SWEEP_LOCK
from lra.records.record import DeclaredCell, Sweep, differences
from lra.runs.build import Components, Job, assemble
from lra.runs.run_folder import RunFolder, prepared
from lra.runs.settings import Settings, settings_of

LOCK_PATIENCE_SECONDS = 60.0  # maximum wait while another sweep writes sweep.json
SEED_REFERENCE = re.compile(r"\$\{\.*seed\}")  # interpolation of the seed: ${seed} or, relative, ${..seed}
Compose = Callable[[list[str]], tuple[Settings, DictConfig]]
INDIRECT_KEYS = ("system", "case", "size", "experiment")  # config groups whose options set other keys


@dataclass(frozen=True, kw_only=True)
class PlannedRun(Job):
    """One run of a sweep. `overrides`: the command line from which its configuration is composed."""

    overrides: list[str]

    def to_do(self) -> bool:
        """Return True if the run is not done. If it is refused, print the reason and return False."""
        try:
            return not RunFolder.of(self).is_done
        except UserError as error:
            say(f"{self.title}: error: {error}")
            return False


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One cell of a sweep and its runs. `settings`: settings of the run with the first seed."""

    cell: Cell
    settings: Settings
    components: Components
    runs: list[PlannedRun]

    @property
    def declared(self) -> DeclaredCell:
        """Entry of the cell in `sweep.json`."""
        return DeclaredCell(
            **asdict(self.cell),
            task_name=self.components.builder.spec.name,
            selection=self.settings.train.selection,
            folder=self.cell.folder.as_posix(),
            seeds=[run.settings.seed for run in self.runs],
            reference=self.settings.sweep.reference,
            margin=self.settings.sweep.margin,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of a sweep, composed and checked, and their results folder."""

    out: Path
    varied: list[str]  # swept keys whose values are in the names of the cells' folders
    rows: list[PlannedCell]
    _digests: dict[str, str | None] = field(default_factory=dict)  # SHA-256 of data by digest of the task options

    def data_digest(self, row: PlannedCell) -> str | None:
        """Return the SHA-256 of a cell's data, which the first call prepares; None if they cannot be prepared here."""
        key = digest(row.settings.task)
        if key not in self._digests:
            try:
                self._digests[key] = prepared(row.components.builder, row.settings).digest
            except UserError:
                self._digests[key] = None
        return self._digests[key]


def planned(config: DictConfig, loader: ConfigLoader) -> Plan:
    """Return the plan of the sweep that a command line describes; the loader composes every cell.

    Raises:
        UserError: a mistake in a configuration, or two cells that would share a folder.
    """
    now = time.localtime()  # the same for all runs, because `out` may contain ${now:...}
    OmegaConf.register_new_resolver("now", lambda pattern: time.strftime(pattern, now), replace=True)
    overrides = _overrides(config, loader)
    seeds = overrides.pop("seed", None)  # not part of a cell: each cell has one run per seed
    several = {key: [_parsed(text) for text in texts] for key, texts in overrides.items() if len(texts) > 1}
    named = {key: None for parsed in several.values() for each in parsed for key in keys_of(each)}
    varied = [key for key in named if key not in (*PLACED, *INDIRECT_KEYS)]
    indirect = [key for key in INDIRECT_KEYS if key in several]

    def compose(overrides: list[str]) -> tuple[Settings, DictConfig]:
        composed = loader.load_sweep_config(config, overrides)
        HydraConfig.instance().set_config(composed)  # resolves ${hydra:...} in the configuration
        rates.apply(composed, composed.hydra)
        return settings_of(composed), composed

    # The options of indirect keys set other keys, whose values may already be in the cells' names. Indirect keys are
    # added to the names only if two cells would have the same name without them.
    for keys in (varied, [*varied, *indirect]):
        rows = [_planned_cell(compose, list(combination), seeds, keys) for combination in product(*overrides.values())]
        clash = _clash(rows)
        if clash is None or not indirect:
            break
    outs = sorted({run.settings.out for row in rows for run in row.runs})
    written = str(_unresolved(config)["out"])
    if len(outs) > 1 or "${hydra:job." in written:
        raise UserError(
            f"out={written}: differs between the runs of this sweep ({', '.join(outs[:2])}); a sweep has one results "
            "folder: set out=FOLDER, without keys that the sweep varies"
        )
    if clash is not None:
        (key, one, two), *_ = differences(clash[0].settings.config_key, clash[1].settings.config_key)
        raise UserError(
            f"{clash[0].cell}: two cells of this sweep would share this name, with {key}={one} and {key}={two}; "
            "set another task.name for each data set, or train them in two sweeps with different out=..."
        )
    _check_rates(rows)
    return Plan(out=Path(outs[0]), varied=keys, rows=rows)


def _overrides(config: DictConfig, loader: ConfigLoader) -> dict[str, list[str]]:
    """Return the overrides by key, several for a swept key. The command line replaces overrides of the preset."""
    hydra = _unresolved(config)["hydra"]  # unresolved: ${seed} differs between runs
    preset = [f"{key}={value}" for key, value in (hydra["sweeper"]["params"] or {}).items()]
    choices: dict[str, list[str]] = {}
    parser = OverridesParser.create(config_loader=loader)
    for override in parser.parse_overrides([*preset, *hydra["overrides"]["task"]]):
        key, texts = override.get_key_element(), [override.input_line]
        if override.is_sweep_override():
            listed = override.sweep_string_iterator() if override.is_discrete_sweep() else ()
            texts = [f"{key}={value}" for value in listed]
        if not texts:
            raise UserError(f"{override.input_line}: expected a list of values, or a glob that matches an option")
        choices[key.lstrip("+")] = texts
    # Add the names in `also` to the overrides of `system` or, if the sweep has none, to those of `attention`.
    for text in choices.pop("also", []):
        names = yaml.safe_load(text.partition("=")[2])
        check_value(list[str] | str, names, "also")
        key = next((key for key in ("system", "attention") if key in choices), None)
        if key is None:
            raise UserError(f"{text}: this sweep has no list of attentions to extend; set attention=... instead")
        for name in [names] if isinstance(names, str) else names:
            of_table = key == "system" and name in options("system")
            choices[key].append(f"{'system' if of_table else 'attention'}={name}")
    return choices


def _unresolved(config: DictConfig) -> Any:
    """Return a configuration as plain values, with interpolations such as ${seed} unresolved."""
    return OmegaConf.to_container(config, resolve=False)


@cache  # because every cell parses the overrides of the same seeds
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def _planned_cell(compose: Compose, overrides: list[str], seeds: list[str] | None, varied: list[str]) -> PlannedCell:
    """Return the cell of one combination of overrides, with one run for each override in `seeds`, such as `seed=1`.

    If `seeds` is None, the cell has one run, with the seed of the configuration.
    """
    settings, composed = compose([*overrides, *(seeds or [])[:1]])
    components = assemble(settings)
    cell = cell_of(composed, composed.hydra, varied)
    # Composing takes 0.1 s: the seeds of a cell share one composition unless another value depends on the seed.
    differs = settings.init is not None or SEED_REFERENCE.search(str(_unresolved(composed)))
    runs = []
    for override in seeds or [f"seed={settings.seed}"]:
        seed = _parsed(override).value()  # parsed by Hydra, because YAML would read 010 as 8
        check_value(Seed, seed, "seed")
        seeded = replace(settings, seed=seed)
        if differs:
            seeded, _ = compose([*overrides, override])
            # Ignore `init`: each seed may start from different weights, and `config_key` would read their file, which a
            # run of this sweep may have yet to write.
            here, there = (replace(each, seed=settings.seed, init=None).config_key for each in (settings, seeded))
            for key, one, two in differences(here, there):
                raise UserError(
                    f"{key}: {one} with seed={settings.seed}, {two} with seed={seed}; the seeds of a cell are pooled "
                    "in one mean, so they may differ in nothing else"
                )
        runs.append(
            PlannedRun(
                settings=seeded,
                components=components,
                cell=cell,
                title=f"{cell} seed {seed}",
                overrides=[*overrides, override],
            )
        )
    return PlannedCell(cell=cell, settings=settings, components=components, runs=runs)


def _clash(rows: list[PlannedCell]) -> tuple[PlannedCell, PlannedCell] | None:
    """Remove duplicate cells from `rows`, in place. Return two different cells with the same folder, or None."""
    known: dict[Path, PlannedCell] = {}
    for row in [*rows]:
        other = known.setdefault(row.cell.folder, row)
        if other is not row:
            if other.settings.out != row.settings.out or other.settings.config_key != row.settings.config_key:
                return other, row
            rows.remove(row)
    return None


def _check_rates(rows: list[PlannedCell]) -> None:
    """Print the cells whose system has no settings in the file `rates`. Raises UserError if no cell has any."""
    path = rows[0].settings.rates
    if path is None:
        return
    without = [row.cell for row in rows if rates.settings_for(path, row.cell) is None]
    if without and len(without) == len(rows):
        raise UserError(rates.no_row(path, without))
    if without:
        say(f"{rates.no_row(path, without)}; cells without settings there keep those of their configuration")


def check_data(rows: list[PlannedCell]) -> None:
    """Raise UserError if data of these cells are missing, or differ between cells of one column of the report."""
    lacking: dict[str, str] = {}
    located: dict[str, str | None] = {}  # digest that `locate` returns, by digest of the task options
    columns: dict[tuple[str, str, str], tuple[str | None, Cell]] = {}
    for row in rows:
        builder, task = row.components.builder, digest(row.settings.task)
        name = builder.spec.name
        if name in lacking:
            continue
        try:
            if task not in located:
                located[task] = builder.locate(DataConfig.of(row.settings))
        except UserError as error:
            lacking[name] = str(error)
            continue
        column = (name, row.cell.protocol, row.settings.train.selection)
        data, cell = columns.setdefault(column, (located[task], row.cell))
        if located[task] != data:
            raise UserError(
                f"{cell} and {row.cell}: different data under the name {name!r}, which would share a column of the "
                "report; set another task.name or another out=... for one of them"
            )
    for name, message in lacking.items():  # print all missing data sets, not only the first
        say(f"{name}: {message}")
    if lacking:
        others = dict.fromkeys(row.cell.task for row in rows if row.components.builder.spec.name not in lacking)
        remedy = f"add the files above{', or train the others: task=' if others else ''}{','.join(others)}"
        runs = [len(row.runs) for row in rows if row.components.builder.spec.name in lacking]
        total = sum(len(row.runs) for row in rows)
        raise UserError(f"no data for {', '.join(lacking)} ({sum(runs)} of {plural(total, 'run')}); {remedy}")


def declare(plan: Plan) -> None:
    """Add the cells of a plan to `sweep.json`; cells and seeds that are already in the file stay there."""
    path = plan.out / SWEEP
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        with hold(plan.out / SWEEP_LOCK, LOCK_PATIENCE_SECONDS):
            # Under the lock the file is read, merged and written, so that no cells of another sweep are lost.
            whole = Sweep.read(path).merged(Sweep(cells=[row.declared for row in plan.rows]))
            write_json(path, whole.model_dump())
    except OSError as error:
        raise explained(error, plan.out, written=False) from error
