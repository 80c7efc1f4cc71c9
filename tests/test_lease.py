"""scripts/lease.sh: what fits is trained in the order of the list, and only finished runs come home."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import lease
import pytest
from lease import Progress, Run, Sweep, factors, fits, listed, parcels, refuse_other_data, to_do, too_many

import lra
from lra import UserError
from lra.core.paths import CHECKOUT

SIMPLE, LINEAR = ("text", "strict", "simple"), ("text", "strict", "linear")


def run_of(kind: tuple[str, str, str] = SIMPLE, seed: int = 1, seconds: float = 200, alone: float = 300) -> Run:
    return Run(kind, seed, seconds, alone, 32)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs, of a lease that has begun; and results that are empty."""
    for name in ("LOG", "STATE", "LOCK"):
        monkeypatch.setattr(lease, name, tmp_path / getattr(lease, name).name)
    monkeypatch.setattr(lease, "WORK", tmp_path)
    monkeypatch.setattr(lease, "RESULTS", tmp_path / "results" / "table1")
    (tmp_path / "progress.txt").write_text("begun\n")
    (tmp_path / "state.json").write_text(json.dumps({"dry": False, "runs": {}}))
    return tmp_path


def trained(work: Path, run: Run, status: str | None, *, size: int = 1, config: dict | None = None) -> Path:
    """A run's folder; without a record where the status is None."""
    folder = work / "table1" / run.folder
    folder.mkdir(parents=True)
    (folder / "predictions.npy").write_bytes(os.urandom(size))
    (folder / "checkpoint-1.safetensors").write_bytes(b"large")
    if status:
        (folder / "record.json").write_text(json.dumps({"status": status, "config": config}))
    return folder


def home_names(out: Path) -> list[set[str]]:
    """Return run folders and their file names by archive."""
    return [set(tarfile.open(path).getnames()) for path in sorted(out.glob("runs-*.tar.xz"))]


def test_the_list_has_whole_rows_in_the_order_of_the_paper() -> None:
    systems = ["simple", "transformer", "linear", "simple_resl", "simple_res"]
    first = [(task, "strict", system) for task in ("text", "listops") for system in systems]
    first += [("text", "paper", "simple"), ("listops", "paper", "simple")]
    runs = listed()
    assert [(run.kind, run.seed) for run in runs[:36]] == [(kind, seed) for kind in first for seed in (1, 2, 3)]
    assert len({run.name for run in runs}) == len(runs)
    assert {run.folder.parts[0] for run in runs} == {"text", "listops", "acl_matching"}
    later = [run.seed > 3 for run in runs]
    assert later == sorted(later)
    assert runs[0].folder == lra.compose(*runs[0].words(dry=False)).folder.relative_to("runs/table1")


def test_what_does_not_fit_is_not_started() -> None:
    simple, linear = run_of(), run_of(LINEAR, seconds=100, alone=100)
    assert fits(simple, {}, left=300, known={})
    assert not fits(simple, {}, left=299, known={})  # the host's launches alone take 300 s
    half = {simple: Progress(step=10, steps=20, rate=None)}
    assert fits(linear, half, left=200, known={})  # 100 s are left of the first, and both share the device
    assert not fits(linear, half, left=199, known={})
    assert not fits(linear, half, left=200, known={simple.kind: 1.5})
    assert not fits(linear, half, left=200, known={linear.kind: 1.5})
    assert fits(linear, half, left=150, known={simple.kind: 0.5})


def test_measured_steps_per_second_correct_the_estimate() -> None:
    pair = {run_of(seed=1): Progress(10, 1000, 2.0), run_of(seed=2): Progress(10, 1000, 2.0)}
    assert factors(pair) == {SIMPLE: 1000 / 2.0 / 400}  # 500 s; 2 x 200 s of the device were expected
    assert factors({run_of(): Progress(10, 1000, 5.0)}) == {SIMPLE: 200 / 300}
    assert factors({run_of(): Progress(0, 1000, None)}) == {}
    assert too_many(pair, left=450) and not too_many(pair, left=480)  # 495 s are left
    assert not too_many(dict([*pair.items()][:1]), left=10)


def test_progress_is_that_of_the_last_validations(tmp_path: Path) -> None:
    assert Progress.of(tmp_path).rate is None
    (tmp_path / "config.json").write_text(json.dumps({"train": {"steps": 1000}}))
    lines = [{"step": 100, "seconds": 40.0}, {"step": 300, "seconds": 50.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 50')
    now = Progress.of(tmp_path)
    assert (now.step, now.steps, now.rate, now.left, now.seconds_left) == (300, 1000, 4.0, 0.7, 175.0)


class Ended:
    """A process that has ended."""

    def poll(self) -> int:
        return 0


def test_a_sweep_passes_over_what_is_too_long(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells a run that failed from one that finished."""
    started: list[str] = []

    def start(self: Sweep, run: Run) -> None:
        self.waiting.remove(run)
        started.append(run.name)
        self.children[run] = Ended()
        self._log(run).write_text("first\nlast line\n")
        if run.seed != 2:
            trained(work, run, "finished")

    monkeypatch.setattr(Sweep, "_start", start)
    runs = [run_of(LINEAR, seed=1, seconds=900, alone=900), *(run_of(seed=seed, seconds=9, alone=9) for seed in (1, 2))]
    Sweep(list(runs), minutes=10, dry=False).go()
    assert started == [runs[1].name, runs[2].name]
    outcomes = json.loads((work / "state.json").read_text())["runs"]
    assert [outcomes[run.name] for run in runs] == ["not started: no room for 900 s", "finished", "failed: last line"]


def test_finished_runs_are_not_trained_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = listed()
    trained(work, runs[1], "finished")
    trained(work, runs[2], "paused")
    monkeypatch.setattr(lease, "kept_in", lambda folder: [SimpleNamespace(name=str(runs[0].folder))])
    assert to_do(dry=False) == runs[2:]
    assert len(to_do(dry=True)) == 2


def test_only_finished_runs_are_collected(work: Path) -> None:
    runs = [run_of(seed=seed) for seed in (1, 2, 3)]
    for run, status in zip(runs, ("finished", "paused", None), strict=True):
        trained(work, run, status)
    outcomes = {runs[0].name: "finished", runs[1].name: "stopped behind step 3", "later": "not started"}
    (work / "state.json").write_text(json.dumps({"dry": False, "runs": outcomes}))
    lease.collect(str(work / "out"))
    assert home_names(work / "out") == [{f"{runs[0].folder}/{name}" for name in ("predictions.npy", "record.json")}]
    assert (work / "out" / "runs.txt").read_text().splitlines() == [f"{key}: {what}" for key, what in outcomes.items()]


def test_archives_are_split_by_size(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, d = map(Path, "abcd")
    assert parcels({a: 40, b: 60, c: 101, d: 1}, most=100) == [[a, b], [d]]
    monkeypatch.setattr(lease, "ARCHIVE_BYTES", 22_000)
    monkeypatch.setattr(lease, "ARCHIVES", 2)
    for seed in range(1, 6):
        trained(work, run_of(seed=seed), "finished", size=8_000 if seed < 5 else 30_000)
    trained(work, run_of(LINEAR), "finished", size=8_000)  # the first by name
    lease.collect(str(work / "out"))
    assert [len(names) for names in home_names(work / "out")] == [4, 4]
    assert all(path.stat().st_size <= 22_000 for path in (work / "out").iterdir())
    assert len((work / "out" / "runs.txt").read_text().splitlines()) == 2  # too large, or one archive too many


def test_other_data_are_refused_in_one_line(tmp_path: Path) -> None:
    refuse_other_data(["listops"], tmp_path)
    with pytest.raises(UserError, match=r"imdb/test.jsonl.xz: expected SHA-256 a653d60661cc, found no such file"):
        refuse_other_data(["text"], tmp_path)
    (tmp_path / "imdb").mkdir()
    (tmp_path / "imdb" / "test.jsonl.xz").write_bytes(b"abc")
    with pytest.raises(UserError, match="found ba7816bf8f01"):
        refuse_other_data(["listops", "text"], tmp_path)


@pytest.mark.parametrize("fault", ["paused", "other settings", "not listed"])
def test_nothing_else_enters_results(fault: str) -> None:
    run = listed()[0]
    config = json.loads(json.dumps(lra.compose(*run.words(dry=False)).settings.identity))
    record = SimpleNamespace(status="finished", config=config)
    lease.refuse_other_run(run, "seed1", record, dry=False)
    if fault == "other settings":
        config["train"]["steps"] = 40
    if fault == "paused":
        record.status = "paused"
    with pytest.raises(UserError, match="nothing is merged"):
        lease.refuse_other_run(None if fault == "not listed" else run, "seed1", record, dry=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not (CHECKOUT / ".venv").exists(), reason="not a checkout on Linux")
def test_a_dry_run_goes_through_all_verbs(tmp_path: Path) -> None:
    def command(*words: str) -> str:
        environment = {**os.environ, "LEASE_RUNS": str(tmp_path / "work"), "CUDA_VISIBLE_DEVICES": ""}
        script = ["bash", str(CHECKOUT / "scripts" / "lease.sh"), *words]
        return subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout

    out = tmp_path / "out"
    assert command("run", "5", str(out)).startswith("dry run on a CPU: two runs at tiny sizes")
    assert [line.rpartition(": ")[2] for line in (out / "runs.txt").read_text().splitlines()] == ["finished"] * 2
    command("collect", str(out))
    assert command("merge", str(out)).endswith(f"{out / 'table1'}: 2 runs, 0 mismatches\n")
    assert len(lra.load(out / "table1").seeds) == 2
