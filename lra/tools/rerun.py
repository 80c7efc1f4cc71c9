"""Is a kept number what this code gives? Trains a record's run again and compares everything but times.

Bits are equal only with the same packages, number of threads and kind of processor, so what differs there is told, too.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from lra.config.cell import Cell
from lra.config.settings import RESULT_KEYS, Settings, checked
from lra.core.errors import UserError
from lra.core.files import parse_json
from lra.core.paths import conf_dir
from lra.data import Place
from lra.records import record
from lra.records.names import METRICS, RECEIPTS, RECORD, SWEEP, WEIGHTS
from lra.records.run_files import RunFiles
from lra.report.read.records import PROBES, read_record
from lra.runs.build import Job, assemble
from lra.runs.folder import run
from lra.runs.status import completed_record

RESULTS = ("status", "test", "validation", "parameters", "tokens", "config", "task")  # what a run computes
MACHINE = ("python", "threads", "cpu", "cpu_model", "instructions", "device", "backend", "precision")
CONDITIONS = ("commit", "dirty", "packages", *MACHINE)
ONCE = {"backend": "torch"}  # where a record does not say: before there was another
ASIDE = {"seconds", "train_seconds", *PROBES}  # of an evaluation: not the same twice, and no result


@dataclass(frozen=True)
class KeptRun:
    """A record among the files of its results folder; `name`: the folder of its run below that."""

    files: RunFiles
    name: str

    @property
    def record(self) -> dict[str, Any]:
        """Raises ValueError."""
        return read_record(self.files, f"{self.name}/{RECORD}")

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Raises UserError."""
        try:
            return measurements(self.files.read(f"{self.name}/{METRICS}"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.files.shown(f'{self.name}/{METRICS}')}: not what a run measured: {error}") from None

    def source(self, sha256: str) -> "KeptRun | None":
        """The run beside it that left the weights with this digest."""
        for path in self.files.find(RECORD):
            other = KeptRun(self.files, Path(path).parent.as_posix())
            if other.record.get("files", {}).get(WEIGHTS) == sha256:
                return other
        return None


@dataclass(frozen=True)
class RerunComparison:
    """A run that was trained again into `folder`: the `numbers` and `conditions` that were others, each in a line."""

    folder: Path
    numbers: list[str]
    conditions: list[str]


def find_kept_run(path: Path) -> KeptRun:
    """The run of a record: its folder, that below a receipts file (`FOLDER/receipts.zip/CELL/seed1`), or that which was
    packed (`FOLDER/CELL/seed1`). Raises UserError where there is none."""
    folder = path.parent if path.name == RECORD else path
    if folder.name in ("", ".."):  # of the working folder
        folder = folder.resolve()
    roots = [root for root in folder.parents if root.is_file() or (root / SWEEP).exists() or (root / RECEIPTS).exists()]
    if not roots and (folder / RECORD).exists():  # a run that no sweep declared
        levels = len(_cell(read_record(RunFiles(folder), RECORD), folder).folder.parts) + 1
        roots = [*folder.parents[levels - 1 : levels]]
    runs = [KeptRun(RunFiles(root), folder.relative_to(root).as_posix()) for root in roots[:1]]
    if not runs or not runs[0].files.exists(f"{runs[0].name}/{RECORD}"):
        raise UserError(f"rerun={path}: no {RECORD} there, nor in a {RECEIPTS}; expected the folder of a run")
    return runs[0]


def rerun(run_kept: KeptRun, asked: Settings) -> RerunComparison:
    """Train a kept run once more, below `asked.out`. Of `asked` only what decides no number is taken: places, packages.

    Raises UserError, ValueError and OSError where it cannot be read or done, or was done there before.
    """
    earlier = run_kept.record
    job = _job(earlier, run_kept.name, _settings(run_kept, earlier, asked))
    if job.folder.resolve() == (run_kept.files.folder / run_kept.name).resolve():
        raise UserError(f"out={asked.out}: {job.folder} is the kept run itself; choose another out=...")
    _refuse_other_data(job, earlier)
    if completed_record(job.folder, job.settings):
        raise UserError(f"{job.folder}: it was trained again there before; delete it, or choose another out=...")
    evaluations = run_kept.evaluations  # before the training, which may be long
    run(job)
    made = record.read(job.folder / RECORD)
    numbers = differing(evaluations, measurements((job.folder / METRICS).read_bytes()))
    was, now = comparable_results(earlier), comparable_results(made)
    now["config"] = _known(now["config"], was["config"])
    numbers += _told(record.differences(was, now))
    conditions = (ONCE | each["provenance"] for each in (earlier, made))
    told = _told(record.differences(*({key: each.get(key) for key in CONDITIONS} for each in conditions)))
    return RerunComparison(job.folder, numbers, told)


def _settings(run_kept: KeptRun, earlier: dict[str, Any], asked: Settings) -> Settings:
    """Those of a record's run. The weights that it began with are those of `asked.init`, or of a run that lies beside
    it and is trained again first. Raises UserError where the record has others than such as decide numbers."""
    identity, provenance = earlier["config"], earlier["provenance"]
    others = [f"has {key}" for key in identity if key not in (*RESULT_KEYS, "init", "pretrain")]
    lacking = [key for key in RESULT_KEYS if not isinstance(identity.get(key), type(getattr(asked, key)))]
    wrong = [*others, *(f"has no {key}" for key in lacking)]
    if wrong:
        raise UserError(f"{run_kept.files.shown(run_kept.name)}: its config {wrong[0]}; that of a run has not")
    values = {
        **{field.name: getattr(asked, field.name) for field in fields(asked)},
        **{key: value for key, value in identity.items() if key != "init"},
        "model": asked.model | identity["model"],  # keys that came later are null, and say what was before
        "attention": _nulls(earlier["attention"]) | identity["attention"],
        "train": asked.train | _numbers(earlier),
        "init": None,
        "threads": provenance["threads"],
        "device": ("cpu" if provenance["device"] == "cpu" else "cuda") if asked.device == "auto" else asked.device,
        "checkpoint": {**asked.checkpoint, "keep": WEIGHTS in earlier.get("files", {})},
    }
    settings = checked(values)
    if not identity.get("init"):
        return settings
    options = {key: value for key, value in identity["init"].items() if key != "sha256"}
    sha256 = str(identity["init"].get("sha256"))
    folder = asked.init["folder"] if asked.init else _source(run_kept, sha256, asked)
    settings = replace(settings, init={**options, "_partial_": True, "folder": str(folder)})
    if settings.start.sha256 != sha256:
        raise UserError(
            f"init.folder={folder}: expected the weights {sha256} that the run began with, found "
            f"{settings.start.sha256}"
        )
    return settings


def _nulls(attention: str) -> dict[str, None]:
    """The keys that are null in our option of this name."""
    option = conf_dir() / "attention" / f"{attention}.yaml"
    values = yaml.safe_load(option.read_text()) if option.exists() else {}
    return {key: None for key, value in values.items() if value is None or str(value).endswith(", null}")}


def _source(run_kept: KeptRun, sha256: str, asked: Settings) -> Path:
    """The folder of the run whose weights these are, trained again."""
    source = run_kept.source(sha256)
    if source is None:
        raise UserError(
            f"it began with the weights {sha256}, which no record beside it left; give them with init=checkpoint or "
            "init=bert, and init.folder=..."
        )
    earlier = source.record
    job = _job(earlier, source.name, _settings(source, earlier, asked))
    run(job)
    return job.folder


def _cell(earlier: dict[str, Any], folder: Path) -> Cell:
    """That of a record. The option of its task is in the path of the folder alone; one that was moved has the name of
    the task."""
    task = earlier["task"].split(" (")[0]
    cell = Cell(task, *(earlier[key] for key in ("protocol", "attention", "variant", "settings")))
    levels, names = cell.folder.parts, folder.parts[:-1]
    if names[-len(levels) :][1:] == levels[1:] and len(names) >= len(levels):
        cell = replace(cell, task=names[-len(levels)])
    if cell.folder.is_absolute() or ".." in cell.folder.parts:
        raise UserError(f"{cell.folder}: expected names of a folder for each run, found a path that leads elsewhere")
    return cell


def _job(earlier: dict[str, Any], name: str, settings: Settings) -> Job:
    """The run as it is trained again. Its pretraining is done again, too: not with the weights that are to be held
    against it, which runs share in the cache."""
    cell, system = _cell(earlier, Path(name)), assemble(settings)
    if (phase := system.pretraining) is not None:
        elsewhere = replace(phase.settings, out=f"{phase.settings.out}_again")
        system = replace(system, pretraining=replace(phase, settings=elsewhere))
    return Job(settings=settings, system=system, cell=cell, title=f"again: {cell} seed {settings.seed}")


def _refuse_other_data(job: Job, earlier: dict[str, Any]) -> None:
    """Raises UserError, before anything is trained."""
    expected, task = earlier["provenance"]["data_sha256"], job.system.builder.build(Place.of(job.settings))
    if expected is None or task.digest == expected:
        return
    fault = f"data: the run was trained on {expected} (SHA-256), found {task.digest}"
    if earlier["task_version"] != task.version:
        fault += f"; those are version {earlier['task_version']} of the task's data, these are version {task.version}"
    raise UserError(fault)


def comparable_results(whole: dict[str, Any]) -> dict[str, Any]:
    """What a record says of results; the digests are those of files that hold no times."""
    files = {name: digest for name, digest in whole.get("files", {}).items() if name != METRICS}
    config = {**whole["config"], "train": _numbers(whole)}
    return {**{key: whole.get(key) for key in RESULTS}, "config": config, "files": files}


def _known(config: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that came later than an earlier one: whether they count, numbers show."""
    return {
        key: _known(value, earlier[key]) if isinstance(value, dict) and isinstance(earlier[key], dict) else value
        for key, value in config.items()
        if key in earlier
    }


def _numbers(whole: dict[str, Any]) -> dict[str, Any]:
    """How a run trained, with what `auto` said."""
    return {**whole["config"]["train"], **whole.get("auto", {})}


def measurements(lines: bytes) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, without their seconds and probes. Raises ValueError."""
    whole = [parse_json(line) for line in lines.splitlines()]
    if not all(isinstance(line, dict) for line in whole):
        raise ValueError(f"{METRICS}: expected objects, found another line")
    return [{key: value for key, value in line.items() if key not in ASIDE} for line in whole]


def differing(kept_lines: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[str]:
    """The first evaluation that is not the same, in one line; none where all are."""
    if len(kept_lines) != len(made):
        return [f"{len(kept_lines)} evaluations then, {len(made)} now"]
    for old, new in zip(kept_lines, made, strict=True):
        changes = record.differences(old, new)
        if changes:
            return [f"step {old.get('step')}: {', '.join(_told(changes))}"]
    return []


def _told(changes: list[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {old} then, {new} now" for key, old, new in changes]
