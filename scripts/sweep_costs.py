"""results/sweeps.md: what a sweep costs besides training, measured with many short runs, and what follows for more.

python scripts/sweep_costs.py results/sweeps.md
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

from lra.bench.page import measured
from lra.core.console import say
from lra.core.files import write_atomic
from lra.data import default_workers
from lra.records import provenance, record

SHORT = ("experiment=smoke", "system=simple,simple_res,simple_resl,transformer", "train.steps=10", "model.depth=1")
SEEDS = 15
KINDS = {"basic": (), "joblib": ("hydra/launcher=joblib",)}
RATES = [f"{0.001 * (1 + number):.3f}" for number in range(SEEDS)]
MANY, CELLS = 10_000, 500


@dataclass(frozen=True, kw_only=True)
class MeasuredSweep:
    """What was measured of one sweep: seconds, and bytes of the driver after each finished run."""

    runs: int
    first: float
    wall: float
    training: float
    memory: list[int]

    @property
    def each(self) -> float:
        """Wall seconds per run, from the start of the first."""
        return (self.wall - self.first) / self.runs


def measure(seeds: int, *overrides: str, rates: int = 1) -> MeasuredSweep:
    """Run a sweep of short runs in a folder that is removed: four systems, each with so many rates and seeds."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        swept = f"seed=range(1,{seeds + 1})", f"train.lr={','.join(RATES[:rates])}"
        command = [sys.executable, "-m", "lra", "train", "--multirun", *SHORT, *swept]
        start, first, memory = time.monotonic(), None, []
        driver = subprocess.Popen(
            [*command, f"out={out}", *overrides], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while driver.poll() is None:
            time.sleep(0.05)
            if first is None and next(out.rglob("config.json"), None) is not None:
                first = time.monotonic() - start
            resident = _resident(driver.pid)
            memory += [resident] * (sum(1 for _ in out.rglob(record.NAME)) - len(memory)) if resident else []
        wall = time.monotonic() - start
        records = [record.read(path) for path in out.rglob(record.NAME)]
    if driver.returncode or len(records) != 4 * seeds * rates:
        raise RuntimeError(f"{' '.join(command)}: exit code {driver.returncode}, {len(records)} records")
    training = sum(sum(run["seconds"].values()) for run in records)
    return MeasuredSweep(runs=len(records), first=first, wall=wall, training=training, memory=memory)


def _resident(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def page(
    sweeps: dict[str, MeasuredSweep], few: MeasuredSweep, cells: MeasuredSweep, single: float, plot: str, started: str
) -> Iterator[str]:
    """The lines of the page. `few`, `cells`: sweeps whose runs are one cell each; `single`: one run by itself."""
    basic = sweeps["basic"]
    compose = max(0.0, (cells.first - few.first) / (cells.runs - few.runs))
    yield "# What a sweep costs besides training\n"
    yield f"By `python scripts/sweep_costs.py results/sweeps.md`: {basic.runs} runs of 10 steps on"
    yield f"{default_workers()} cores that others used, too, so seconds are upper bounds.\n"
    heads = (
        "launcher",
        "wall, s",
        "first run after, s",
        "a run, s",
        "training in it, s",
        "driver, MB, after 5",
        "after all",
    )
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for name, sweep in sweeps.items():
        early, late = (f"{bytes / 1e6:.0f}" for bytes in (sweep.memory[4], sweep.memory[-1]))
        training = f"{sweep.training / sweep.runs:.2f}"
        yield f"| {name} | {sweep.wall:.0f} | {sweep.first:.1f} | {sweep.each:.2f} | {training} | {early} | {late} |"
    yield f"\n![memory of the driver]({plot})\n"
    yield f"- One run in a process of its own (`lra-train`): {single:.1f} s, nearly all of it importing torch."
    yield f"- Every cell is composed and checked before the first run begins: {1000 * compose:.0f} ms a cell,"
    yield "  however many seeds it has.\n"
    yield f"## {MANY:,} runs\n"
    basic = sweeps["basic"]
    overhead = MANY * (basic.each - basic.training / basic.runs) / 3600
    first = few.first + compose * CELLS
    yield f"- In one command, in {CELLS} cells, the first begins after {first:.0f} s. Or cut a sweep by task or system"
    yield "  into commands with the same `out=`: declared cells add up, finished runs are skipped."
    yield f"- Overhead on one machine: {overhead:.1f} hours in one process."
    yield "- On SLURM, `hydra.launcher.array_parallelism` jobs at once; each imports torch once, as one run above."
    yield "- Several machines may be given the same command on one folder: the lock of a run dies with its holder, and"
    yield "  what one is at work on the others leave (exit code 75 until all is done)."
    yield f"- Files: {MANY:,} runs are {4 * MANY:,} small files; checkpoints are removed when a run is done.\n"
    yield measured(provenance.provenance({}, None, "cpu", "fp32", started)) + "\n"


def draw(sweeps: dict[str, MeasuredSweep], path: Path) -> None:
    """Resident memory of the driver against runs finished."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for name, sweep in sweeps.items():
        axes.plot(range(1, len(sweep.memory) + 1), [bytes / 1e6 for bytes in sweep.memory], label=name)
    axes.set(xlabel="runs finished", ylabel="resident memory of the driver, MB", ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what sweeps cost besides training.")
    parser.add_argument("page", type=Path)
    target = parser.parse_args().page
    there = find_spec("hydra_plugins") is not None and find_spec("hydra_plugins.hydra_joblib_launcher") is not None
    sweeps, started = {}, provenance.now()
    for name, overrides in KINDS.items():
        if name != "joblib" or there:
            say(f"{name}: {4 * SEEDS} runs")
            sweeps[name] = measure(SEEDS, *overrides)
    few, cells = (measure(1, rates=rates) for rates in (1, SEEDS))
    with TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [sys.executable, "-m", "lra", "train", "experiment=smoke", "train.steps=10", f"out={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        single = time.monotonic() - began
    plot = target.with_suffix(".svg")
    draw(sweeps, plot)
    write_atomic(target, "\n".join(page(sweeps, few, cells, single, plot.name, started)).encode())
    say(f"wrote {target} and {plot}")


if __name__ == "__main__":
    main()
