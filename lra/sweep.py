"""Sweeps: what was declared, where each run lives, and what is said at the end.

`sweep.json` in the results folder lists the declared cells and their seeds, so that the report can show what is
missing. It is written before the first run starts, after every cell's configuration has been checked.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lra import locks, record
from lra.configure import CONFIG_ERROR, FAILED, explain
from lra.console import say
from lra.errors import UserError
from lra.outcome import outcome, to_do
from lra.report import write_report
from lra.settings import PLACED, Settings, System, assemble, cell_of, settings_of
from lra.signals import PAUSED

FILE = "sweep.json"
LOCK_PATIENCE_SECONDS = 60.0
ELSEWHERE = ("submitit_slurm", "ray")  # launchers whose jobs may run on other machines
CHOOSERS = ("system", "case", "experiment", "out")  # act through other keys


class Sweep(Callback):
    """Hydra's hooks around a sweep: declare and check all cells, count the outcomes, write the report.

    The outcomes are read from the runs' folders, so it does not matter which launcher started them, and where.
    """

    def __init__(self) -> None:
        self.out = Path()
        self.runs: dict[Path, Settings] = {}

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Raises SystemExit with one line, since Hydra turns exceptions of callbacks into warnings."""
        try:
            _check_launch(config)
            overrides = _overrides(config)
            varied = [key for key, values in overrides.items() if len(values) > 1]
            varied = [key for key in varied if key not in (*PLACED, *CHOOSERS)]
            cells, works, full = [], [], []
            for combination in _combinations(overrides):
                settings, composed = _composed(config, combination)
                system = assemble(settings)
                self.out = Path(settings.out)
                cell = cell_of(composed, composed.hydra, varied)
                runs = {}
                for seed in overrides.get("seed", [str(settings.seed)]):
                    own = replace(settings, seed=int(seed))
                    if settings.init is not None:  # where its first weights lie may depend on the seed
                        own, _ = _composed(config, [*combination, f"seed={seed}"])
                    runs[self.out / cell.folder / f"seed{seed}"] = own
                self.runs |= runs
                full += [str(cell)] * system.full_pattern
                works.append((settings, system, [folder for folder, own in runs.items() if to_do(folder, own)]))
                cells.append(
                    {
                        **asdict(cell),
                        "task_name": system.builder.facts.name,
                        "selection": system.recipe.selection,
                        "folder": cell.folder.as_posix(),
                        "seeds": [own.seed for own in runs.values()],
                    }
                )
            if full:
                say(f"= softmax at this length, where nothing is left out: {'; '.join(full)}")
            if not OmegaConf.select(config, "describe"):
                _check_cost(config, works)
                _declare(self.out, cells)
                _say_who_sees_locks(self.out)
                _current[:] = [self]
        except (UserError, HydraException, OmegaConfBaseException, OSError, ValueError) as error:
            say(f"lra-train: error: {explain(error, 'train')}")
            raise SystemExit(CONFIG_ERROR) from None
        with open_dict(config):
            _seeds_last(config)
            config.hydra.overrides.task += [f"sweep.varied=[{','.join(varied)}]", f"sweep.jobs={len(self.runs)}"]

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        conclude()


_current: list[Sweep] = []


def conclude(broken: str = "", code: int = 0) -> bool:
    """Report the sweep under way, if there is one, and raise SystemExit where not all of its runs are finished.

    `broken`: why its launcher gave up; `code`: with which it was stopped. Every run that is not finished gets one line,
    but for those that wait where the sweep was stopped.
    """
    if not _current:
        return False
    sweep = _current.pop()
    found = {folder: outcome(folder, settings) for folder, settings in sweep.runs.items()}
    counts = Counter(status for status, _ in found.values())
    faults: list[str] = []
    try:
        page = write_report(sweep.out, tell=faults.append)
        print(page.read_text())
        say(f"report: {page}")
    except (UserError, OSError) as error:
        say(f"lra-train: error: no report: {error}")
        counts["no report"] += 1
    for fault in faults:
        say(f"lra-train: error: {fault}; the report leaves it out")
        counts["left out of the report"] += 1
    if broken:
        say(f"lra-train: the launcher gave up: {broken.splitlines()[0]}")
    others = [f", {number} {status}" for status, number in sorted(counts.items()) if status != "finished"]
    say(f"{counts['finished']} of {len(found)} runs finished{''.join(others)}")
    for folder, (status, reason) in found.items():
        if status != "finished" and not (code and status == "waiting"):
            say(f"{folder}: {status}: {reason}{' (error.log has the traceback)' if status == 'failed' else ''}")
    code = code or _exit_code({status for status in counts if status != "finished"})
    if code:
        raise SystemExit(code)
    return True


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


def _seeds_last(config: DictConfig) -> None:
    """The last key varies fastest: all seeds of a row are done before the next row begins."""
    task, preset = config.hydra.overrides.task, config.hydra.sweeper.params or {}
    seeds = [override for override in task if override.startswith("seed=")]
    if "seed" in preset:
        seeds.insert(0, f"seed={preset.pop('seed')}")
    config.hydra.overrides.task = [override for override in task if override not in seeds] + seeds[-1:]


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


def _combinations(overrides: dict[str, list[str]]) -> Iterable[list[str]]:
    """The overrides of every cell, with the first of its seeds."""
    chosen = (
        [f"{key}={value}" for value in values[: 1 if key == "seed" else None]] for key, values in overrides.items()
    )
    return map(list, product(*chosen))


def _composed(config: DictConfig, overrides: list[str]) -> tuple[Settings, DictConfig]:
    composed = GlobalHydra.instance().config_loader().load_sweep_config(config, overrides)
    HydraConfig.instance().set_config(composed)  # for ${hydra:...} in the configuration
    return settings_of(composed), composed


def _declare(out: Path, cells: list[dict[str, Any]]) -> None:
    """Add the cells to `out`/sweep.json; seeds declared earlier stay declared."""
    folders = [cell["folder"] for cell in cells]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice:
        raise UserError(f"two runs of this sweep would share {out / twice}: sweep over one key only once")
    out.mkdir(parents=True, exist_ok=True)
    path = out / FILE
    try:
        with locks.hold(out / ".sweep.lock", LOCK_PATIENCE_SECONDS):
            declared = {cell["folder"]: cell for cell in record.declared(path)} if path.exists() else {}
            for cell in cells:
                earlier = declared.get(cell["folder"], cell)["seeds"]
                declared[cell["folder"]] = {**cell, "seeds": sorted({*earlier, *cell["seeds"]})}
            record.declare(path, [declared[folder] for folder in sorted(declared)])
    except locks.Held as other:
        raise UserError(f"{path}: {other} is writing it, for more than a minute; try again") from None


def _say_who_sees_locks(out: Path) -> None:
    option = locks.of_one_host(out)
    if option:
        say(f"{out}: other machines do not see its locks (mount option {option}); give it to one at a time")
