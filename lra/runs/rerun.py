"""Train a kept run again and compare its results, except times and probe measurements.

Results are equal to the last bit only with the same packages, number of threads and kind of processor. Differences in
these are printed.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lra.config import configure
from lra.config.cell import Cell
from lra.config.values import parsed
from lra.core.console import say
from lra.core.errors import UserError
from lra.datasets.task import DataConfig
from lra.records import record
from lra.records.names import METRICS, RECORD, RUNS, WEIGHTS
from lra.records.record import RunRecord
from lra.records.runs import Run, read_kept
from lra.runs.build import Job, assemble
from lra.runs.run_folder import RunFolder
from lra.runs.settings import RESULT_KEYS, Settings

RERUNS = "reruns"  # folder in which `default_out` puts the results folders of reruns
RESULTS = ("status", "test", "validation", "parameters", "tokens", "task")  # record entries that a rerun must reproduce
MACHINE = ("python", "threads", "cpu", "cpu_model", "instructions", "device", "backend", "products", "precision")
CONDITIONS = ("commit", "dirty", "packages", *MACHINE)  # provenance entries whose differences are printed
PROBES = ("attention_std", "score_std", "score_asymmetry", "residual_norm", "gradient_norm")
ASIDE = {"seconds", "train_seconds", *PROBES}  # entries of an evaluation that are not compared


def rerun(path: Path, current: Settings, default_out: bool = False) -> bool:
    """Train a kept run once more, below `current.out`, and print the differences.

    Args:
        path: a run's folder or its `record.json`, or `FOLDER/runs.jsonl/RUN`.
        current: settings of this command, which give what a record lacks, such as folders and packages, and the device
            unless it is `auto`.
        default_out: write to `reruns/NAME` instead of `current.out`, where NAME is that of the run's results folder.

    Returns:
        True if both runs have equal evaluations, and their records equal `comparable_results`.

    Raises:
        UserError: the run cannot be read or trained, its code or data have changed, or it was rerun before.
    """
    kept = read_kept(path)
    earlier, folder = kept.record, path.parent if path.name == RECORD else path
    if default_out:
        above = folder.absolute().parts[: -_levels(earlier)]  # may end with runs.jsonl, which is skipped below
        current = replace(current, out=str(Path(RERUNS, [part for part in above if part != RUNS][-1])))
    job = _job(earlier, folder, _settings(folder, earlier, current))
    if job.folder.resolve() == folder.resolve():
        raise UserError(
            f"out={current.out}: the rerun would get the folder of the kept run, {job.folder}; choose another out=..."
        )
    # Compare code and data before training, since the numbers cannot be equal if these differ.
    sources = (earlier.config.get("code", {}), job.settings.config_key.get("code", {}))
    for file, *_ in record.differences(*sources):
        raise UserError(f"the code in {file} has changed since the run; restore it")
    expected = earlier.provenance.data_sha256
    found = job.components.builder.build(DataConfig.of(job.settings)).digest
    if expected not in (None, found):
        raise UserError(f"data: expected SHA-256 {expected}, as the run recorded, found {found}")
    if RunFolder.of(job).is_done:
        raise UserError(f"{job.folder}: holds an earlier rerun; delete it, or choose another out=...")
    from lra.runs.run import run  # not at the top, because it imports torch

    run(job)
    made = read_kept(job.folder)
    numbers = differing(measurements(kept), measurements(made))
    was, now = comparable_results(earlier), comparable_results(made.record)
    numbers += _lines(record.differences(was, now))
    conditions = [each.provenance.model_dump() for each in (earlier, made.record)]
    noise = [each["noise"] for each in conditions]
    if numbers and noise[0] != noise[1] and (job.settings.model.dropout > 0 or job.settings.attention.get("gumbel")):
        verdict = f"the noise algorithm changed from version {noise[0]} to {noise[1]}, so the results cannot be equal"
        say(f"{path}: {verdict} ({job.folder})", to_stdout=True)
        return False
    say(f"{path}: {'not ' if numbers else ''}equal to the last bit ({job.folder})", to_stdout=True)
    there, here = ({key: each.get(key) for key in CONDITIONS} for each in conditions)
    others = _lines(record.differences(there, here))
    for line in [*numbers, *others]:
        say(f"  {line}", to_stdout=True)
    return not numbers


def _settings(path: Path, earlier: RunRecord, current: Settings) -> Settings:
    """Return the settings of the rerun: values in the record of the kept run, and all others from `current`.

    A device that `current` names takes precedence over the one in the record.

    Raises:
        UserError: the record lacks keys or has unexpected ones, or `current.init` does not name the initial weights of
            the kept run.
    """
    config = earlier.config
    others = [
        f"unexpected key {key!r} in config" for key in config if key not in (*RESULT_KEYS, "init", "pretrain", "code")
    ]
    if wrong := [*others, *(f"no value for key {key!r} in config" for key in RESULT_KEYS if config.get(key) is None)]:
        raise UserError(f"{path}: {wrong[0]}; expected the config of a run")
    configure.refuse_untrusted(config, current.packages)
    device = "cpu" if earlier.provenance.device == "cpu" else "cuda"
    values = {
        **asdict(current),
        **{key: value for key, value in config.items() if key not in ("init", "code")},
        "init": None,
        "threads": earlier.provenance.threads,  # another number of threads would round sums differently
        "products": earlier.provenance.products or current.products,  # as would another library of matrix products
        "device": device if current.device == "auto" else current.device,
        # The files of both runs are compared, so save the weights if the earlier run did.
        "checkpoint": {**asdict(current.checkpoint), "keep": WEIGHTS in earlier.files},
    }
    settings = parsed(Settings, values, f"{path}: ")
    if not config.get("init"):
        return settings
    sha256 = config["init"]["sha256"]
    if not current.init:
        raise UserError(
            f"{path}: it started from weights with SHA-256 {sha256}; set init=checkpoint or init=bert, and "
            "init.folder=... to their folder"
        )
    options = {key: value for key, value in config["init"].items() if key != "sha256"}
    settings = replace(settings, init={**options, "_partial_": True, "folder": str(current.init["folder"])})
    if (found := settings.start and settings.start.sha256) != sha256:
        raise UserError(
            f"init.folder={current.init['folder']}: expected weights with SHA-256 {sha256}, from which the run "
            f"started, found {found}"
        )
    return settings


def _job(earlier: RunRecord, path: Path, settings: Settings) -> Job:
    """Return the job that trains a kept run again; its pretraining is computed again, too, not read from the cache."""
    task = path.absolute().parts[-_levels(earlier)]
    cell = Cell(task, earlier.protocol, earlier.attention, earlier.variant, earlier.settings)
    if ".." in cell.folder.parts:
        raise UserError(f"{cell.folder}: expected a path inside a results folder, found '..' in it")
    components = assemble(settings)
    if (phase := components.pretraining) is not None:
        elsewhere = replace(phase.settings, out=f"{phase.settings.out}_again")
        components = replace(components, pretraining=replace(phase, settings=elsewhere))
    return Job(settings=settings, components=components, cell=cell, title=f"again: {cell} seed {settings.seed}")


def _levels(run: RunRecord) -> int:
    """Return the number of folder names in a run's path relative to its results folder."""
    return 5 + bool(run.settings)  # task, protocol, attention, variant, settings if any, seed


def comparable_results(whole: RunRecord) -> dict[str, Any]:
    """Return the entries of a record that a rerun must reproduce, with the digests of files that contain no times."""
    values = whole.values()
    files = {name: digest for name, digest in whole.files.items() if name != METRICS}
    return {**{key: values.get(key) for key in RESULTS}, "config": whole.config, "files": files}


def measurements(kept: Run) -> list[dict[str, Any]]:
    """Return the evaluations of a run without times and probe measurements."""
    return [{key: value for key, value in line.items() if key not in ASIDE} for line in kept.metrics]


def differing(kept_lines: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[str]:
    """Return a list with one line: unequal numbers of evaluations, or the first evaluation that differs; else []."""
    if len(kept_lines) != len(made):
        return [f"{len(kept_lines)} evaluations then, {len(made)} now"]
    for old, new in zip(kept_lines, made, strict=True):
        if changes := record.differences(old, new):
            return [f"step {old.get('step')}: {', '.join(_lines(changes))}"]
    return []


def _lines(changes: list[tuple[str, Any, Any]]) -> list[str]:
    """Return a line for each change: key, earlier value, value now."""
    return [f"{key}: {old} then, {new} now" for key, old, new in changes]
