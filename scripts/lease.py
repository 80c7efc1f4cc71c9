"""Train runs of Table 1 on an accelerator that is lent for a short time: the Python part of scripts/lease.sh.

Runs and their logs are in the folder LEASE_RUNS; OUT holds what is carried home.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

import lra
from lra import UserError
from lra.core.files import write_atomic
from lra.core.paths import CHECKOUT, table1_file
from lra.records.names import RUNS
from lra.records.record import RunRecord
from lra.records.runs import Run as KeptRun
from lra.records.runs import keep_runs, read_runs

LIST, DIGESTS = (Path(__file__).with_name(f"lease_{name}.txt") for name in ("runs", "data"))
WORK = Path(os.environ.get("LEASE_RUNS", CHECKOUT / "runs" / "lease")).absolute()
LOG, STATE, LOCK = (WORK / name for name in ("progress.txt", "state.json", ".lock"))
RESULTS = CHECKOUT / "results" / "table1"
RAW = {"text": "imdb/", "acl_matching": "acl_pairs/"}  # ListOps is generated
ARCHIVE_BYTES, ARCHIVES = 15 * 2**20, 5  # 16 MiB a file and 8 files may return
RESERVE = 30.0  # seconds at the end of a lease, to collect
SIDE_BY_SIDE = 4
SECONDS_BETWEEN_LINES, SETTLED = 30.0, 120.0  # from then on the pace of runs side by side is judged
MPS = {f"CUDA_MPS_{name}_DIRECTORY": "/tmp/lease-mps" for name in ("PIPE", "LOG")}
TINY = {
    "train_size": 200,
    "val_size": 50,
    "test_size": 70,
    "min_length": 10,
    "max_length": 60,
    "max_depth": 5,
    "max_args": 5,
}
DRY = ["precision=fp32", "device=cpu", "model.dim=16", "model.heads=2", "model.depth=2", "model.mlp_dim=32"]
DRY += ["train.steps=40", "train.warmup=10", "train.eval_every=10", *(f"task.{key}={TINY[key]}" for key in TINY)]

Kind = tuple[str, str, str]
"""Task, protocol and system."""


@dataclass(frozen=True)
class Run:
    """One run of `lease_runs.txt`, whose first lines describe the numbers."""

    kind: Kind
    seed: int
    seconds: float
    alone: float
    micro_batch: int

    @property
    def name(self) -> str:
        return f"{' '.join(self.kind)} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Relative to a results folder."""
        task, protocol, system = self.kind
        rows = yaml.safe_load(table1_file().read_text())["systems"]
        row = next(row for row in rows if row.get("option") == system)
        return Path(task, protocol, row["attention"], row["variant"], f"seed{self.seed}")

    def words(self, dry: bool) -> list[str]:
        """The overrides of `lra train` that decide a number."""
        keys = zip(("task", "protocol", "system", "seed"), (*self.kind, self.seed), strict=True)
        sizes = DRY if dry else ["device=cuda", f"train.micro_batch={self.micro_batch}", "train.eval_batch=128"]
        return ["experiment=table1", "hydra.mode=RUN", *(f"{key}={value}" for key, value in keys), *sizes]


def listed() -> list[Run]:
    """The runs in their order."""
    rows = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [
        Run((task, protocol, system), int(seed), float(seconds), float(alone), int(micro_batch))
        for task, protocol, system, seeds, seconds, alone, micro_batch in rows
        for seed in seeds.split(",")
    ]


def trained(dry: bool) -> Path:
    """The results folder of a lease, or of a dry run."""
    return WORK / ("dry" if dry else "table1")


def finished(folder: Path) -> bool:
    """Return True if a run's folder has the record of a finished run."""
    path = folder / "record.json"
    return path.exists() and json.loads(path.read_bytes())["status"] == "finished"


def finished_in(folder: Path) -> list[Path]:
    """The folders of all finished runs below a results folder, relative to it."""
    every = sorted(path.parent for path in folder.rglob("record.json"))
    return [path.relative_to(folder) for path in every if finished(path)]


def kept_in(folder: Path) -> list[KeptRun]:
    """The runs that a results folder keeps."""
    return read_runs(folder) if (folder / RUNS).exists() else []


def to_do(dry: bool) -> list[Run]:
    """The runs that are not finished; in a dry run two of ListOps."""
    runs = [run for run in listed() if not finished(trained(dry) / run.folder)]
    if dry:
        return [replace(run, seconds=5, alone=5) for run in runs if run.kind[0] == "listops" and run.seed == 1][:2]
    names = {each.name for each in kept_in(RESULTS)}
    return [run for run in runs if str(run.folder) not in names]


def refuse_other_data(tasks: Iterable[str], data: Path) -> None:
    """Raises UserError for the first file of raw data that is missing or another one."""
    folders = tuple(RAW[task] for task in tasks if task in RAW)
    for expected, name in map(str.split, DIGESTS.read_text().splitlines()):
        path = data / name
        if name.startswith(folders):
            actual = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
            if actual != expected:
                raise UserError(
                    f"{path}: expected SHA-256 {expected[:12]}, found {actual[:12]}; set LRA_DATA to the data"
                )


@dataclass
class Progress:
    """Steps done and in all, and steps per second between the last two validations."""

    step: int
    steps: int
    rate: float | None

    @classmethod
    def of(cls, folder: Path) -> "Progress":
        try:
            *lines, _ = (folder / "metrics.jsonl").read_text().split("\n")
            steps = json.loads((folder / "config.json").read_bytes())["train"]["steps"]
            before, last = [{"step": 0}, *map(json.loads, lines)][-2:]
        except (FileNotFoundError, ValueError):  # there is none yet
            return cls(0, 1, None)
        return cls(last["step"], steps, (last["step"] - before["step"]) / max(last["seconds"], 1e-9))

    @property
    def left(self) -> float:
        """The share of the run that is left."""
        return 1 - self.step / self.steps

    @property
    def seconds_left(self) -> float:
        return (self.steps - self.step) / self.rate if self.rate else float("inf")


def factors(running: dict[Run, Progress]) -> dict[Kind, float]:
    """Return measured over listed duration by kind of run, from the steps per second of the runs under way."""
    shared = sum(run.seconds for run in running)
    return {run.kind: now.steps / now.rate / max(run.alone, shared) for run, now in running.items() if now.rate}


def fits(run: Run, running: dict[Run, Progress], left: float, known: dict[Kind, float]) -> bool:
    """Return True if a run that starts now, and all that share the device, end within `left` seconds."""
    before = sum(other.seconds * known.get(other.kind, 1) * now.left for other, now in running.items())
    factor = known.get(run.kind, 1)
    return max(run.alone * factor, before + run.seconds * factor) <= left


def too_many(running: dict[Run, Progress], left: float) -> bool:
    """Return True if one of several runs under way will not end in time."""
    return len(running) > 1 and any(now.rate and now.seconds_left > 1.05 * left for now in running.values())


def say(text: str) -> None:
    print(text, flush=True)


class Sweep:
    """The runs of one lease."""

    def __init__(self, runs: list[Run], minutes: float, dry: bool) -> None:
        self.waiting, self.dry, self.out = runs, dry, trained(dry)
        self.end = time.monotonic() + 60 * minutes - (0 if dry else RESERVE)
        self.children: dict[Run, subprocess.Popen] = {}
        self.outcomes = {run.name: "not started" for run in runs}
        self.known: dict[Kind, float] = {}
        self.changed = self.shown = time.monotonic()  # when a run started or ended, and when all were shown

    def go(self) -> None:
        """Start what fits, until nothing does and nothing is under way."""
        try:
            while (left := self.end - time.monotonic()) > 0:
                for run in [run for run, child in self.children.items() if child.poll() is not None]:
                    self._take(run)
                running = self._running()
                if time.monotonic() - self.changed > SETTLED:
                    self.known |= factors(running)
                    if too_many(running, left):
                        self._stop(list(running)[-1], "too many side by side to end in time")
                for run in list(self.waiting):
                    if len(self.children) < SIDE_BY_SIDE and fits(run, self._running(), left, self.known):
                        self._start(run)
                if not self.children:
                    break
                if time.monotonic() - self.shown > SECONDS_BETWEEN_LINES:
                    self.shown = time.monotonic()
                    for run, now in self._running().items():
                        pace = (
                            f"{now.rate:.1f} steps/s, {now.seconds_left:.0f} s left" if now.rate else "not measured yet"
                        )
                        say(f"{left:5.0f} s: {run.name}: step {now.step:,} of {now.steps:,}, {pace}")
                self._write()
                time.sleep(0.5)
        finally:
            for run in list(self.children):
                self._stop(run, "the lease ended")
            for run in self.waiting:
                self.outcomes[run.name] = f"not started: no room for {run.seconds * self.known.get(run.kind, 1):.0f} s"
            self._write()

    def _running(self) -> dict[Run, Progress]:
        return {run: Progress.of(self.out / run.folder) for run in self.children}

    def _log(self, run: Run) -> Path:
        return WORK / f"{run.name.replace(' ', '-')}.log"

    def _start(self, run: Run) -> None:
        self.waiting.remove(run)
        words = [*run.words(self.dry), f"out={self.out}", "threads=1", "max_hours=null"]
        with self._log(run).open("wb") as log:
            command = [sys.executable, "-m", "lra", "train", *words]
            self.children[run] = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
        self._tell(run, "under way")

    def _take(self, run: Run) -> None:
        del self.children[run]
        last = self._log(run).read_text(errors="replace").splitlines()[-1:] or ["no output"]
        self._tell(run, "finished" if finished(self.out / run.folder) else f"failed: {last[0]}")

    def _stop(self, run: Run, why: str) -> None:
        child = self.children.pop(run)
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
        now = Progress.of(self.out / run.folder)
        stopped = f"stopped behind step {now.step:,} of {now.steps:,}: {why}"
        self._tell(run, "finished" if finished(self.out / run.folder) else stopped)

    def _tell(self, run: Run, outcome: str) -> None:
        self.outcomes[run.name], self.changed = outcome, time.monotonic()
        say(f"{self.end - self.changed:5.0f} s: {run.name}: {outcome}")

    def _write(self) -> None:
        write_atomic(STATE, json.dumps({"dry": self.dry, "runs": self.outcomes}, indent=1).encode())


@contextmanager
def side_by_side() -> Iterator[None]:
    """NVIDIA's multi-process service, where it is installed."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        say("without NVIDIA MPS")
        yield
        return
    os.environ.update(MPS)
    Path(*set(MPS.values())).mkdir(exist_ok=True)
    subprocess.run([control, "-d"], check=True)
    try:
        yield
    finally:
        subprocess.run([control], input=b"quit\n", check=False)


def sweep(minutes: str, device: str) -> None:
    """Train what is left, in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with LOCK.open("w") as lock, side_by_side():
        fcntl.flock(lock, fcntl.LOCK_EX)
        Sweep(to_do(device == "cpu"), float(minutes), device == "cpu").go()


def under_way() -> bool:
    """Return True if a sweep holds the lock."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def run(minutes: str, out: str) -> None:
    """Start a sweep in a session of its own, or find the one under way, and follow it; OUT has what is finished."""
    WORK.mkdir(parents=True, exist_ok=True)
    if not under_way():
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            say("dry run on a CPU: two runs at tiny sizes, which never enter results/table1")
        else:
            refuse_other_data({run.kind[0] for run in to_do(False)}, Path(os.environ.get("LRA_DATA", "data")))
            say(torch.cuda.get_device_name())
        STATE.unlink(missing_ok=True)
        with LOG.open("wb") as log:
            command = [sys.executable, __file__, "sweep", minutes, device]
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        while child.poll() is None and not STATE.exists():
            time.sleep(0.1)
    collected = None
    with LOG.open() as log:
        while True:
            ended, done = not under_way(), [*map(finished_in, map(trained, (True, False)))]
            print(log.read(), end="", flush=True)
            if done != collected or ended:
                collect(out)
                collected = done
            if ended:
                return
            time.sleep(1)


def parcels(sizes: dict[Path, int], most: int) -> list[list[Path]]:
    """Folders in their order, in parcels of at most `most` bytes; a larger folder is in none."""
    parcels: list[list[Path]] = []
    room = 0
    for folder, size in sizes.items():
        if size <= most:
            if size > room:
                parcels.append([])
                room = most
            parcels[-1].append(folder)
            room -= size
    return parcels


def collect(out: str) -> None:
    """Put all finished runs into OUT/runs-1.tar.xz and following, and the state of every run into OUT/runs.txt."""
    if not STATE.exists():
        raise UserError(f"{STATE}: no such file; `lease.sh run` started no sweep here")
    home, state = Path(out), json.loads(STATE.read_bytes())
    there = trained(state["dry"])
    home.mkdir(parents=True, exist_ok=True)
    kept = {
        folder: [path for path in sorted((there / folder).iterdir()) if path.suffix in (".json", ".jsonl", ".npy")]
        for folder in finished_in(there)
    }
    sizes = {folder: sum(path.stat().st_size + 1024 for path in paths) for folder, paths in kept.items()}  # 1024: tar's
    packed = parcels(sizes, ARCHIVE_BYTES)[:ARCHIVES]
    for number, parcel in enumerate(packed, 1):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
            for path in [path for folder in parcel for path in kept[folder]]:
                archive.add(path, path.relative_to(there).as_posix())
        write_atomic(home / f"runs-{number}.tar.xz", buffer.getvalue())
    left_out = sorted({*kept}.difference(*packed))
    lines = [f"{name}: {outcome}" for name, outcome in state["runs"].items()]
    lines += [f"{folder}: finished, but too large to return" for folder in left_out]
    write_atomic(home / "runs.txt", ("\n".join(lines) + "\n").encode())
    write_atomic(home / STATE.name, STATE.read_bytes())
    write_atomic(home / LOG.name, LOG.read_bytes())
    say(f"{len(kept) - len(left_out)} finished, in {len(packed)} archives; {home / 'runs.txt'} lists all runs")


def merge(out: str) -> None:
    """Keep the runs of OUT in results/table1, of a dry run in OUT/table1, after a check, and write the report anew."""
    home = Path(out)
    dry = json.loads((home / STATE.name).read_bytes())["dry"]
    target = home / "table1" if dry else RESULTS
    listed_runs = {str(run.folder): run for run in listed()}
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(home.glob("runs-*.tar.xz")):
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        if not any(Path(folder).rglob("record.json")):
            raise UserError(f"{home}: no finished run; {home / 'runs.txt'} has the state of each")
        arrived = read_runs(Path(folder))
    for each in arrived:
        refuse_other_run(listed_runs.get(each.name), each.name, each.record, dry)
    kept = {each.name: each for each in kept_in(target)}
    for each in arrived:
        say(f"{each.name}: {'kept before, left as it is' if each.name in kept else 'merged'}")
    keep_runs(target, ({each.name: each for each in arrived} | kept).values())
    write_atomic(target / "runs.md", "\n".join([*summary(target, listed_runs), ""]).encode())
    say(report(target))


def refuse_other_run(run: Run | None, name: str, record: RunRecord, dry: bool) -> None:
    """Raises UserError for a run that is not listed, not finished, or has other settings than those declared."""
    if run is None or record.status != "finished":
        raise UserError(f"{name}: {record.status}, expected a finished run of {LIST.name}; nothing is merged")
    declared, actual = (
        json.loads(json.dumps(config)) for config in (lra.compose(*run.words(dry)).settings.identity, record.config)
    )
    for config in (declared, actual):
        config["train"].update(micro_batch=None, eval_batch=None)  # the same numbers up to rounding
    if actual != declared:
        raise UserError(f"{run.name}: its settings are not those of experiment=table1; nothing is merged")


def report(folder: Path) -> str:
    """Write the report of a results folder and verify it; returns the verdict. Raises UserError where it is not as the
    records say."""
    for option in ([], ["--verify"]):
        command = [sys.executable, "-m", "lra", "report", *option, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
        lines = (done.stdout + done.stderr).strip().splitlines()
        if done.returncode:
            raise UserError(lines[0])
    return lines[-1]


def summary(target: Path, expected: Iterable[str]) -> Iterator[str]:
    """The page of devices and seconds."""
    runs = kept_in(target)
    missing = [name for name in expected if name not in {run.name for run in runs}]
    yield "# Runs of Table 1 at its published width\n"
    yield "- Protocols and deviations: the first lines of `conf/experiment/table1.yaml`."
    yield f"- Missing: {len(missing)} runs of `{LIST.name}`, first {(missing or ['none'])[0]}.\n"
    yield "| run | test accuracy, % | device | training, s | evaluation, s | commit |\n|---|---:|---|---:|---:|---|"
    for run in runs:
        record = run.record
        times = f"{record.seconds['train']:.0f} | {record.seconds['evaluate']:.0f}"
        commit = (record.provenance.commit or "unknown")[:9]
        accuracy = record.test[record.selection].accuracy
        yield f"| {run.name} | {accuracy:.2f} | {record.provenance.device} | {times} | {commit} |"


if __name__ == "__main__":
    verbs = {"run": run, "sweep": sweep, "collect": collect, "merge": merge}
    verbs["data"] = lambda folder: refuse_other_data(RAW, Path(folder))
    try:
        verbs[sys.argv[1]](*sys.argv[2:])
    except (UserError, OSError) as error:
        print(f"lease.sh: error: {error}", file=sys.stderr)
        sys.exit(2)
