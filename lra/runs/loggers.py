"""Send the lines of `metrics.jsonl` to TensorBoard, Weights & Biases or a user's logger while a run trains.

No result depends on a logger. If one fails, a line is printed, and the run continues with its other loggers.

A logger is any class with the methods `start`, `log` and `finish` of `TensorBoard`. A logger that writes files into
a run's folder has an attribute `files`, a glob pattern for them. A resumed run starts its loggers again and logs every
line again, so a logger must replace or skip what an earlier process logged. A finished run is logged only to loggers
that have no files in its folder.
"""

import json
import math
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest
from lra.core.names import shortened
from lra.datasets.task import best_baseline
from lra.records.runs import read_kept
from lra.runs.settings import Settings

if TYPE_CHECKING:  # not at run time, because lra.runs.build imports this module
    from lra.runs.build import Job

TAGS = ("task", "attention", "variant", "protocol")  # attributes of a cell that become tags
TAG_CHARACTERS, NAME_CHARACTERS = 64, 128  # maximum lengths in Weights & Biases


class TensorBoard:
    """Logger that writes event files into the run's folder: scalars, and a row of the HPARAMS tab."""

    files = "events.out.tfevents.*"

    def __init__(self) -> None:
        _require("tensorboard")

    def start(self, job: "Job") -> None:
        """Open the event file; `purge_step=0` hides what an earlier process wrote."""
        from torch.utils.tensorboard import SummaryWriter

        first = {name.title(): getattr(job.cell, name) for name in TAGS} | {"Seed": job.settings.seed}
        options = {
            # HPARAMS takes only values of these types
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in configure.dotted(job.settings.config_key)
            if not isinstance(value, dict) and not key.endswith("_partial_")
        }
        self._config = first | options  # HPARAMS lists capitalised names first, so the cell precedes the options
        self._writer = SummaryWriter(job.folder, purge_step=0)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of a step as scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, step: int, test: dict[str, float | str]) -> None:
        """Write the test scores of the weights after `step` updates; `test` is empty if the run did not finish."""
        if test:
            numbers = {name: value for name, value in test.items() if not isinstance(value, str)}
            self._writer.add_hparams(self._config, numbers, run_name=".", global_step=step)
        self._writer.close()


@dataclass(kw_only=True)
class Wandb:
    """Logger for Weights & Biases; by default it writes logs, which `wandb sync` uploads, into the run's folder."""

    files: ClassVar = "wandb/*run-*"
    mode: Literal["offline", "online", "shared", "disabled"]
    project: str
    entity: str | None
    tags: list[str]

    def __post_init__(self) -> None:
        _require("wandb")

    def start(self, job: "Job") -> None:
        """Start the Weights & Biases run; when training resumes, it gets the same id again."""
        import wandb

        tags = {name: getattr(job.cell, name) for name in TAGS}
        config = {"cell": tags | job.cell.settings, **job.settings.config_key}
        run_id = digest({"config": config, "folder": job.folder.as_posix()})[:16]
        # Delete earlier offline logs: a resumed run logs every line again, so `wandb sync` would upload lines twice.
        for earlier in (job.folder / "wandb").glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(earlier)
        self._run = wandb.init(
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            tags=[*dict.fromkeys(shortened(tag, TAG_CHARACTERS) for tag in [*tags.values(), *self.tags])],
            id=run_id,
            resume="allow",
            reinit="create_new",
            group=shortened(str(job.cell), NAME_CHARACTERS),  # the seeds of a cell form one group
            name=shortened(f"{job.cell} seed {job.settings.seed}", NAME_CHARACTERS),
            job_type="train",
            config=config,
            dir=job.folder,
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log the values of a step, unless they were sent before the run resumed."""
        if step >= self._run.step:
            self._run.log(values, step=step)

    def finish(self, step: int, test: dict[str, float | str]) -> None:
        """Add the test scores of the weights after `step` updates to the summary, and end the run."""
        if test:
            self._run.summary.update({**test, "test/step": step})
        self._run.finish(exit_code=0 if test else 1)


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise UserError(f"logger={package}: {package} is not installed; pip install {package}")


def loggers_of(settings: Settings) -> list[Any]:
    """Return the loggers of a configuration. Raises UserError for a mistake in their options.

    A logger whose constructor raises another error is left out, and a line is printed.
    """
    made = []
    for name, node in settings.logger.items():
        make = configure.build(node, f"logger.{name}")
        try:
            made.append(make())
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            say(f"logger.{name} failed: {type(error).__name__}: {configure.first_line(error)}; the run continues")
    return made


class Loggers:
    """Loggers of one run, as a context manager that finishes them on exit, after the record is written."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._loggers: list[Any] = []  # loggers that have not failed
        self._started: list[Any] = []
        self._step = 0
        self._test: dict[str, Any] = {}

    def start(self, lines: list[dict[str, Any]], new: bool = False) -> None:
        """Start the loggers, or only those that are `new` to this run, and log the lines of `metrics.jsonl` so far."""
        made = loggers_of(self._job.settings)
        if new:  # a logger with files in the folder has logged this run
            made = [
                logger for logger in made if not (hasattr(logger, "files") and any(self._job.folder.glob(logger.files)))
            ]
        self._started = [logger for logger in made if self._called(logger, "start", self._job)]
        self._loggers = self._started
        for line in lines:
            if "phase" not in line:  # pretraining counts its steps from 0, too, and loggers have only one step axis
                self.log(line)

    def log(self, line: dict[str, Any]) -> None:
        """Send a line of `metrics.jsonl` to all loggers that have not failed."""
        self._loggers = [logger for logger in self._loggers if self._called(logger, "log", line["step"], grouped(line))]

    def _called(self, logger: Any, method: str, *arguments: Any) -> bool:
        """Call a method of a logger and return True; if it fails, print the error and return False."""
        try:
            getattr(logger, method)(*arguments)
        except (Exception, SystemExit) as error:  # no error of a logger may stop the run
            reason = f"{type(error).__name__}: {configure.first_line(error)}"
            say(f"{self._job.title}: logger {type(logger).__name__}.{method} failed: {reason}; the run continues")
            return False
        return True

    def tested(self, score: dict[str, Any], baseline: tuple[str, float] | None) -> None:
        """Store for the loggers' `finish` a test score, as in the record, and the best baseline (name, value)."""
        self._step = score["step"]
        self._test = _finite({f"test/{name}": score[name] for name in ("accuracy", "loss")})
        if baseline is not None:
            self._test |= {"test/best_baseline_name": baseline[0], "test/best_baseline": baseline[1]}

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._started:
            self._called(logger, "finish", self._step, self._test)


def log_finished(job: "Job") -> None:
    """Log a finished run to those of its loggers that have no files in its folder."""
    if not job.settings.logger:
        return
    run = read_kept(job.folder)
    with Loggers(job) as loggers:
        score = run.record.test[run.record.selection].model_dump()
        loggers.tested(score, best_baseline(run.record.baselines, run.record.metric))
        loggers.start(run.metrics, new=True)


def grouped(line: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line by name: train/..., val/... or speed/..., and blocks/... for each block."""
    values: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, list):
            values |= {f"blocks/{name}/{block}": number for block, number in enumerate(value, 1)}
        elif name.startswith("val_"):
            values[f"val/{name.removeprefix('val_')}"] = value
        elif name == "seconds":
            values["speed/seconds"] = value
        elif name not in ("step", "train_seconds"):
            values[f"train/{name.removeprefix('train_')}"] = value
    if line.get("train_seconds"):
        values["speed/tokens_per_second"] = line["tokens"] / line["train_seconds"]
    return _finite(values)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}
