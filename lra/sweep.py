"""Sweeps: what was declared, where each run lives, and what is said at the end.

`sweep.json` in the results folder lists the declared cells and their seeds, so that the report can show what is
missing. It is written before the first run starts, after every cell's configuration has been checked.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lra import checkpoint, locks, record
from lra.command import CONFIG_ERROR, FAILED, check_packages, composing
from lra.configure import check_value, first_line
from lra.console import say
from lra.errors import UserError
from lra.files import explained
from lra.outcome import complete, nothing_to_do, outcome
from lra.report import write_report
from lra.settings import PLACED, Cell, Seed, Settings, System, assemble, cell_of, check_memory, settings_of
from lra.signals import PAUSED

FILE = "sweep.json"
LOCK_PATIENCE_SECONDS = 60.0
LONG = 1e13  # operations of a training that takes a core minutes
ELSEWHERE = ("submitit_slurm", "ray")  # launchers whose jobs may run on other machines
CHOOSERS = ("system", "case", "experiment")  # act through other keys


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a sweep. `overrides`: the command line that makes it."""

    folder: Path
    settings: Settings
    title: str
    overrides: list[str]

    def to_do(self) -> bool:
        """Whether it would train; says why not."""
        try:
            found = complete(self.folder, self.settings)
        except UserError as error:
            say(f"{self.title}: error: {error}")
            return False
        if found is None:
            return True
        if found["status"] == "finished":
            checkpoint.remove(self.folder)
        say(nothing_to_do(self.title, self.folder, found["status"]))
        return False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell of a sweep and its runs."""

    cell: Cell
    settings: Settings
    system: System
    runs: list[Run]

    @property
    def declared(self) -> dict[str, Any]:
        """As `sweep.json` has it."""
        return {
            **asdict(self.cell),
            "task_name": self.system.builder.facts.name,
            "selection": self.system.recipe.selection,
            "folder": self.cell.folder.as_posix(),
            "seeds": [run.settings.seed for run in self.runs],
        }


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All cells of a sweep, composed and checked. `varied`: what varies besides the levels of a run's path."""

    out: Path
    varied: list[str]
    rows: list[Row]


_current: list[Sweep] = []


def run(config: DictConfig, task: TaskFunction) -> None:
    """The sweep of a composed configuration, which has Hydra's own part; `task` is Hydra's function for each run.

    All cells are declared and checked; then the runs that are to be done are given to the launcher. The outcomes are
    read from the runs' folders, so it does not matter which launcher started them, and where. Raises UserError before
    the first run where anything is wrong, and SystemExit at the end where not all runs are finished.
    """
    _check_launch(config)
    sweep = _planned(config)
    full = [str(row.cell) for row in sweep.rows if row.system.full_pattern]
    if full:
        say(f"= softmax at this length, where nothing is left out: {'; '.join(full)}")
    if sweep.rows[0].settings.describe:
        _launch(config, task, sweep, [run for row in sweep.rows for run in row.runs])
        return
    for row in sweep.rows:
        check_memory(row.system)
    _check_folders(sweep)
    to_do = [(row, [run for run in row.runs if run.to_do()]) for row in sweep.rows]
    _check_cost(config, [(row.settings, row.system, [run.folder for run in runs]) for row, runs in to_do])
    _declare(sweep.out, [row.declared for row in sweep.rows])
    _say_who_sees_locks(sweep.out)
    _current[:] = [sweep]
    broken = _launch_all(config, task, sweep, [run for _, runs in to_do for run in runs])
    conclude(broken=broken)


def _launch_all(config: DictConfig, task: TaskFunction, sweep: Sweep, runs: list[Run]) -> str:
    """Launch the runs; why the launcher gave up, if it did.

    joblib gives up, and kills its other workers, when one is killed: what none of them had begun is launched again.
    """

    def states() -> list[tuple[str, str]]:
        return [outcome(run.folder, run.settings) for run in runs]

    broken = ""
    while runs:
        before = states()
        try:
            _launch(config, task, sweep, runs)
            break
        except Exception as error:
            broken = f"{type(error).__name__}: {error}"
        same = zip(runs, before, states(), strict=True)
        left = [run for run, old, new in same if old == new and new[0] not in ("finished", "killed")]
        if len(left) == len(runs):
            break
        runs = left
    return broken


def _launch(config: DictConfig, task: TaskFunction, sweep: Sweep, runs: list[Run]) -> None:
    """Let the launcher do the runs: all at once, or one by one where it works in this process."""
    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    shared = [f"sweep.varied=[{','.join(sweep.varied)}]", f"sweep.jobs={len(runs)}"]
    if config.hydra.runtime.choices["hydra/launcher"] == "basic" and not runs[0].settings.describe:
        _one_by_one(launcher, runs, shared)
        return
    for result in launcher.launch([[*run.overrides, *shared] for run in runs], initial_job_idx=0):
        _ = result.return_value  # raises what broke the job


def _one_by_one(launcher: Launcher, runs: list[Run], shared: list[str]) -> None:
    """Each time the first run that is not at work elsewhere, so that several processes share a sweep."""
    waiting, number = list(runs), 0
    while free := next((run for run in waiting if locks.holder(run.folder / record.LOCK) is None), None):
        waiting.remove(free)
        if not free.to_do():  # another process was faster
            continue
        [result] = launcher.launch([[*free.overrides, *shared]], initial_job_idx=number)
        _ = result.return_value
        number += 1


def conclude(broken: str = "", code: int = 0) -> None:
    """Report the sweep under way, if there is one, and raise SystemExit where not all of its runs are finished.

    `broken`: why its launcher gave up; `code`: with which it was stopped. Every run that is not finished gets one line,
    but for those that wait where the sweep was stopped.
    """
    if not _current:
        return
    sweep = _current.pop()
    runs = [run for row in sweep.rows for run in row.runs]
    found = {run.folder: outcome(run.folder, run.settings) for run in runs}
    counts = Counter(status for status, _ in found.values())
    faults: list[str] = []
    try:
        page = write_report(sweep.out, tell=faults.append)
        print(page.read_text())
        say(f"report: {page}")
    except Exception as error:  # whatever it is, the outcomes below are still said
        say(f"lra-train: error: no report: {first_line(error)}")
        counts["no report"] += 1
    for fault in faults:
        say(f"lra-train: error: {fault}; the report leaves it out")
        counts["left out of the report"] += 1
    if broken:
        say(f"lra-train: the launcher gave up: {broken.splitlines()[0]}")
    others = [f", {number} {status}" for status, number in sorted(counts.items()) if status != "finished"]
    say(f"{counts['finished']} of {len(found)} runs finished{''.join(others)}")
    for folder, (status, reason) in found.items():
        if status == "running":
            say(f"{folder}: at work elsewhere ({reason})")
        elif status != "finished" and not (code and status == "waiting"):
            say(f"{folder}: {status}: {reason}{' (error.log has the traceback)' if status == 'failed' else ''}")
    code = code or _exit_code({status for status in counts if status != "finished"}) or (FAILED if broken else 0)
    if code:
        raise SystemExit(code)


def _exit_code(bad: set[str]) -> int:
    if bad & {"paused", "running"}:
        return PAUSED
    if bad <= {"refused"}:
        return CONFIG_ERROR if bad else 0
    return FAILED


def _check_launch(config: DictConfig) -> None:
    """Raises UserError where the sweep could not be started."""
    from lra import ranks

    processes = ranks.started_with()
    if processes > 1:
        raise UserError(
            f"--multirun in each of {processes} processes would run the sweep {processes} times: start it once, "
            f"without torchrun or srun, with train.processes={processes}"
        )
    space, plugin, *_ = config.hydra.launcher._target_.split(".")
    if find_spec(space) is None or find_spec(f"{space}.{plugin}") is None:
        name = config.hydra.runtime.choices["hydra/launcher"]
        raise UserError(f"hydra/launcher={name}: not installed; pip install 'lra[{name.split('_')[0]}]'")


def _check_cost(config: DictConfig, cells: list[tuple[Settings, System, list[Path]]]) -> None:
    """Say what the sweep will cost, given the runs of each cell that are to be done. Raises UserError where those that
    have not begun would take more than `max_hours` and nothing limits them."""
    from lra.estimate import SECONDS, Work, costs, duration

    cells = [cell for cell in cells if cell[-1]]
    works = [Work(settings=settings, system=system, runs=len(folders)) for settings, system, folders in cells]
    runs = sum(work.runs for work in works)
    said = f"{runs} runs, {sum(work.runs * work.tokens for work in works):.2g} tokens in training"
    if config.hydra.runtime.choices["hydra/launcher"] in ELSEWHERE or not runs:
        say(said)
        return
    each = costs(works, SECONDS)
    if all(cost.seconds is None for cost in each):
        if runs > 1:
            say(f"{said}; how long they take cannot be told, since none of them can be begun")
        return
    seconds = sum(work.runs * (cost.seconds or 0) for work, cost in zip(works, each, strict=True))
    begun = [sum(folder.exists() for folder in folders) for *_, folders in cells]
    new = seconds - sum(number * (cost.seconds or 0) for number, cost in zip(begun, each, strict=True))
    said += f", {duration(seconds)} of this machine one after another"
    reckoned = [cost.speed for cost in each if cost.speed is not None]
    if reckoned:
        basis = "the speed of those measured" if len(reckoned) < len(each) else "an assumed speed"
        said += (
            f" ({len(reckoned)} of {len(each)} cells could not be measured in {SECONDS} s: reckoned from their FLOPs "
            f"at {basis}, {reckoned[0]:.1e} a second)"
        )
    settings = works[0].settings
    if settings.sweep_minutes is None and settings.max_hours is not None and new / 3600 > settings.max_hours:
        raise UserError(
            f"{said}; more than max_hours={settings.max_hours:g}: if that is meant, say max_hours=null, or do it in "
            "parts with sweep_minutes=..."
        )
    say(said)


def check_cost_of_one(settings: Settings, folder: Path) -> None:
    """As for a sweep, of a single run that would take minutes; a short one is not worth measuring."""
    from lra import ranks
    from lra.estimate import Work

    system = assemble(settings)
    check_memory(system)
    if ranks.started_with() > 1 or system.recipe.minutes is not None or complete(folder, settings) is not None:
        return
    operations = 6 * system.parameters * Work(settings=settings, system=system, runs=1).tokens
    if operations > LONG:
        _check_cost(HydraConfig.instance().cfg, [(settings, system, [folder])])


def _planned(config: DictConfig) -> Sweep:
    """Every cell, checked. Raises UserError for the first that is wrong."""
    overrides = _overrides(config)
    seeds = overrides.pop("seed", None)
    varied = [key for key, values in overrides.items() if len(values) > 1 and key not in (*PLACED, *CHOOSERS)]
    rows = [_row(config, list(combination), seeds, varied) for combination in product(*overrides.values())]
    outs = {row.settings.out for row in rows}
    if len(outs) > 1:
        raise UserError(f"the cells of this sweep lie in {' and '.join(sorted(outs))}: say out=... for all of them")
    return Sweep(out=Path(outs.pop()), varied=varied, rows=rows)


def _row(config: DictConfig, overrides: list[str], seeds: list[str] | None, varied: list[str]) -> Row:
    settings, composed = _composed(config, [*overrides, *(seeds or [])[:1]])
    system = assemble(settings)
    cell = cell_of(composed, composed.hydra, varied)
    runs = []
    for override in seeds or [f"seed={settings.seed}"]:
        seed = yaml.safe_load(override.partition("=")[2])
        check_value(Seed, seed, "seed")
        seeded = replace(settings, seed=seed)
        if settings.init is not None:  # where its first weights lie may depend on the seed
            seeded, _ = _composed(config, [*overrides, override])
        runs.append(
            Run(
                folder=Path(settings.out) / cell.folder / f"seed{seed}",
                settings=seeded,
                title=f"{cell} seed {seed}",
                overrides=[*overrides, override],
            )
        )
    return Row(cell=cell, settings=settings, system=system, runs=runs)


def _overrides(config: DictConfig) -> dict[str, list[str]]:
    """What the command line says of each key: one override, or those that a sweep tries one after another. It replaces
    the preset's, key by key."""
    preset = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    choices: dict[str, list[str]] = {}
    for override in parser.parse_overrides([*preset, *config.hydra.overrides.task]):
        key = override.get_key_element()
        texts = [override.input_line]
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise UserError(f"{override.input_line}: expected a list of values to sweep over")
            texts = [f"{key}={value}" for value in override.sweep_string_iterator()]
        if not texts:
            raise UserError(f"{override.input_line}: there is no such value, so there is nothing to run")
        if key == "out" and len(texts) > 1:
            raise UserError(f"{override.input_line}: a sweep has one folder of results")
        choices[key.lstrip("+")] = texts
    seeds = choices.get("seed", [])
    if len(seeds) != len(set(seeds)):
        raise UserError(f"seed={','.join(seed.partition('=')[2] for seed in seeds)}: a seed stands there twice")
    return choices


def _composed(config: DictConfig, overrides: list[str]) -> tuple[Settings, DictConfig]:
    with composing(overrides):
        composed = GlobalHydra.instance().config_loader().load_sweep_config(config, overrides)
    check_packages(composed)
    HydraConfig.instance().set_config(composed)  # for ${hydra:...} in the configuration
    return settings_of(composed), composed


def _check_folders(sweep: Sweep) -> None:
    """Raises UserError where two runs would write into one folder."""
    folders = Counter(run.folder for row in sweep.rows for run in row.runs)
    [(folder, times)] = folders.most_common(1)
    if times > 1:
        raise UserError(f"{times} runs of this sweep would share {folder}: sweep over one key only once")


def _declare(out: Path, cells: list[dict[str, Any]]) -> None:
    """Add the cells to `out`/sweep.json; seeds declared earlier stay declared."""
    path = out / FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
        with locks.hold(out / ".sweep.lock", LOCK_PATIENCE_SECONDS):
            declared = {cell["folder"]: cell for cell in record.declared(path)} if path.exists() else {}
            for cell in cells:
                earlier = declared.get(cell["folder"], cell)["seeds"]
                declared[cell["folder"]] = {**cell, "seeds": sorted({*earlier, *cell["seeds"]})}
            record.declare(path, [declared[folder] for folder in sorted(declared)])
    except locks.Held as other:
        raise UserError(f"{path}: {other} is writing it, for more than a minute; try again") from None
    except ValueError as error:
        raise UserError(f"{error}; delete it to declare the sweep anew") from None
    except OSError as error:
        raise explained(error, out, None) from error


def _say_who_sees_locks(out: Path) -> None:
    option = locks.of_one_host(out)
    if option:
        say(f"{out}: other machines do not see its locks (mount option {option}); give it to one at a time")
