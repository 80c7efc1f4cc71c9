"""Is a kept number what this code gives? Trains a record's run again and compares everything but times.

    python -m lra.tools.rerun results/table1_small/listops/paper/linear/transformer/seed1 ...

The runs may lie in folders or in the receipts file of their results folder. Bits are equal only with the same packages,
number of threads and kind of processor; what differs there is told, too.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from lra.config.cell import Cell
from lra.config.compose import compose
from lra.config.settings import Settings, settings_of
from lra.core.console import say
from lra.core.errors import UserError
from lra.records import record
from lra.records.names import METRICS, RECEIPTS, RECORD, SWEEP
from lra.records.run_files import RunFiles
from lra.runs.folder import run
from lra.runs.job import Job
from lra.runs.system import assemble

RESULTS = ("status", "test", "validation", "parameters", "tokens", "config", "task")  # what a run computes
CONDITIONS = ("commit", "packages", "threads", "cpu", "instructions", "device", "data_sha256")


def settings_from(kept: dict[str, Any], out: Path, packages: list[str]) -> Settings:
    """The settings of a record's run, to be done in `out`. Raises UserError where its first weights were another's."""
    identity = kept["config"]
    if "init" in identity:
        raise UserError(f"it began with the weights {identity['init']['sha256']}, which a record does not hold")
    default = settings_of(compose("train"))
    chosen = {key: value for key, value in identity.items() if key != "train"}
    train = {**default.train, **identity["train"]}
    return replace(
        default, **chosen, train=train, out=str(out), threads=kept["provenance"]["threads"], packages=packages
    )


def kept_files(run_folder: Path) -> tuple[RunFiles, str]:
    """What the results folder around a run keeps, and the path of the run below it. Raises UserError."""
    for folder in run_folder.parents:
        if (folder / SWEEP).exists() or (folder / RECEIPTS).exists():
            return RunFiles(folder), run_folder.relative_to(folder).as_posix()
    raise UserError(f"{run_folder}: no folder around it has a {SWEEP} or a {RECEIPTS}")


def again(run_folder: Path, packages: list[str]) -> list[str]:
    """What differs between a kept run and the same run now; empty where nothing does. Raises UserError, ValueError and
    OSError where it cannot be read or done."""
    files, name = kept_files(run_folder)
    kept = record.parse(files.read(f"{name}/{RECORD}"))
    earlier = measurements(files.read(f"{name}/{METRICS}"))
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_from(kept, Path(folder), packages)
        cell = Cell(*(kept[key] for key in ("task", "protocol", "attention", "variant")), kept["settings"])
        job = Job(settings=settings, system=assemble(settings), cell=cell, title=f"{cell} seed {settings.seed}")
        run(job)
        made = record.read(job.folder / RECORD)
        lines = differing(earlier, measurements((job.folder / METRICS).read_bytes()))
    changes = record.differences(chosen(kept), chosen(made))
    differences = [*lines, *(f"{key}: {old} then, {new} now" for key, old, new in changes)]
    if differences:
        conditions = ({key: each["provenance"].get(key) for key in CONDITIONS} for each in (kept, made))
        differences += [f"{key}: {old} then, {new} now" for key, old, new in record.differences(*conditions)]
    return differences


def chosen(whole: dict[str, Any]) -> dict[str, Any]:
    """What a record says of results; the digests are those of files that hold no times."""
    files = {name: digest for name, digest in whole["files"].items() if name != METRICS}
    return {**{key: whole[key] for key in RESULTS}, "files": files}


def measurements(lines: bytes) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, without their seconds."""
    whole = [json.loads(line) for line in lines.splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in whole]


def differing(kept: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[str]:
    """The first evaluation that is not the same, in one line; none where all are."""
    if len(kept) != len(made):
        return [f"{len(kept)} evaluations then, {len(made)} now"]
    for old, new in zip(kept, made, strict=True):
        changes = record.differences(old, new)
        if changes:
            told = ", ".join(f"{key} {before} then, {now} now" for key, before, now in changes)
            return [f"step {old['step']}: {told}"]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.tools.rerun", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, below their results folder")
    parser.add_argument("--packages", nargs="*", default=[], help="packages whose code the runs use")
    arguments = parser.parse_args()
    unequal = 0
    for path in arguments.runs:
        try:
            differences = again(path, arguments.packages)
        except (UserError, ValueError, OSError) as error:
            differences = [str(error)]
        say(f"{path}: {'not ' if differences else ''}equal to the last bit", to_stdout=True)
        for line in differences:
            say(f"  {line}", to_stdout=True)
        unequal += bool(differences)
    sys.exit(1 if unequal else 0)


if __name__ == "__main__":
    main()
