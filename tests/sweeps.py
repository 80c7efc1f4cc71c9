"""Sweeps of tiny runs by the launchers that are there, and what they leave."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import strip_times

from lra.records import record

SMOKE = ("--multirun", "experiment=smoke", "out=runs")
SIX = (*SMOKE, "system=simple,transformer,linear", "seed=1,2")
PLUGINS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
SLURM = ("hydra.launcher.cpus_per_task=1",)


def installed(plugin: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is not None


def launcher(name: str) -> tuple[str, ...]:
    """The overrides of a launcher; the test is skipped where it is not there."""
    if name == "basic":
        return ()
    if not installed(PLUGINS[name]):
        pytest.skip(f"hydra-{PLUGINS[name]}-launcher is not installed")
    if name == "submitit_slurm" and (
        not shutil.which("sinfo") or subprocess.run(["sinfo"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no SLURM answers")
    return (f"hydra/launcher={name}", *(SLURM if name == "submitit_slurm" else ()))


def left(folder: Path) -> dict[str, tuple]:
    """Records and measurements by path, times left out."""
    by_path = {}
    for path in sorted(folder.rglob(record.NAME)):
        lines = [json.loads(line) for line in (path.parent / record.METRICS).read_text().splitlines()]
        by_path[path.relative_to(folder).as_posix()] = (
            strip_times(record.read(path)),
            [strip_times(line) for line in lines],
        )
    return by_path
