"""Whatever happens to a run, no result is lost: what failed says why in one line, and the same command finishes."""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import pytest
import torch
from faults.runs import (
    TINY,
    command,
    names,
    observe,
    read_only,
    result,
    sending,
    small_disk,
    when,
    with_mounts,
    without_figures,
)
from support import Commands, composed

import lra.cli.train
import lra.runs.execute
import lra.runs.folder
import lra.runs.initial_weights
import lra.runs.trainer
import lra.training.fit
import lra.training.update
from lra.cli import prepare
from lra.cli.report import main as report
from lra.config.settings import settings_of
from lra.data import cache
from lra.records import checkpoint, record
from lra.runs.build import assemble

WIDE = (*TINY, "model.depth=2", "model.dim=48", "model.mlp_dim=64")  # a generation of a third of a megabyte
DATA = tuple(option for option in TINY if option.startswith("task"))
AGAIN = "0, the same end"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., dict]:
    """What runs leave that nothing happened to, by their options."""
    known: dict[tuple[str, ...], dict] = {}

    def make(*options: str) -> dict:
        if options not in known:
            folder = tmp_path_factory.mktemp("whole")
            ended = command(*options, f"out={folder}", f"cache={cache}")
            assert ended.code == 0, ended.err
            known[options] = result(folder)
        return known[options]

    return make


def again(expected: dict, *options: str, out: str = "runs") -> str:
    """How the same command ends, and whether it leaves what was expected."""
    ended = command(*options, f"out={out}")
    return f"{ended.code}, {'the same end' if ended.code == 0 and result(out) == expected else ended.said}"


def run_folder(out: str | Path = "runs") -> Path:
    return next(Path(out).rglob("seed1"))


# ---------------------------------------------------------------- disks


@pytest.mark.parametrize(
    "limits", ["size=1m", pytest.param("nr_inodes=12", marks=pytest.mark.slow)], ids=["bytes", "inodes"]
)
def test_a_full_disk_while_saving(record_property, cli: Commands, whole, limits: str) -> None:
    expected = whole(*WIDE)

    def scenario() -> list:
        small_disk(Path("runs"), limits)
        ended = command(*WIDE, "out=runs")
        saved = checkpoint.read(run_folder())
        small_disk(Path("runs"), "size=64m,nr_inodes=1000")
        return [ended.summary, ended.said, saved.step if saved else 0, again(expected, *WIDE)]

    summary, said, step, then = with_mounts(scenario)
    assert "cannot be written: no space left on device: " in said
    assert "the previous file is intact" in said
    observe(
        record_property,
        "disk full while saving",
        f"tmpfs of {limits}",
        f"2, one line, a generation whole; then {AGAIN}",
        f"{summary}, {'a generation whole' if step else 'none'}; then {then}",
    )


@pytest.mark.slow
def test_a_full_disk_while_measuring(record_property, cli: Commands, whole) -> None:
    expected = whole(*TINY, "checkpoint.steps=null")

    def scenario() -> list:
        small_disk(Path("runs"), "size=8k")
        ended = command(*TINY, "checkpoint.steps=null", "out=runs")
        small_disk(Path("runs"), "size=64m")
        return [ended.summary, ended.said, again(expected, *TINY, "checkpoint.steps=null")]

    summary, said, then = with_mounts(scenario)
    assert "metrics.jsonl cannot be written: no space left on device" in said
    observe(
        record_property,
        "disk full at an evaluation",
        "tmpfs of 8 kB",
        f"2, one line; then {AGAIN}",
        f"{summary}; then {then}",
    )


def test_a_full_disk_while_preparing(record_property, cli: Commands, whole) -> None:
    expected = whole(*TINY)

    def scenario() -> list:
        cache = Path("own")
        small_disk(cache, "size=32k")
        ended = command(*TINY, "out=runs", "cache=own")
        left = [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
        small_disk(cache, "size=64m")
        return [ended.summary, ended.said, left, again(expected, *TINY, "cache=own")]

    summary, said, left, then = with_mounts(scenario)  # its first line says that it prepares
    assert "cannot prepare listops in own/listops" in said
    assert said.splitlines()[-1].endswith("o space left on device")
    observe(
        record_property,
        "disk full while preparing",
        "tmpfs of 32 kB",
        f"2, 2 lines, nothing left; then {AGAIN}",
        f"{summary}, {left or 'nothing'} left; then {then}",
    )


@pytest.mark.slow
def test_a_full_disk_while_reporting(record_property, cli: Commands) -> None:
    assert cli_sweep(cli, "seed=1")[0] == 0

    def scenario() -> list:
        small_disk(Path("disk"), "size=64m")
        shutil.copytree("runs", "disk/runs")
        page = Path("disk/runs/README.md")
        page.write_text("earlier")
        used = sum(-(-path.stat().st_size // 4096) for path in Path("disk").rglob("*") if path.is_file())
        small_disk(Path("disk"), f"size={4096 * used}")
        ended = command("disk/runs", main=report)
        record.read(run_folder("disk/runs") / record.NAME)
        return [ended.summary, ended.said, page.read_text()]

    summary, said, page = with_mounts(scenario)
    assert "cannot be written: no space left on device" in said
    observe(
        record_property,
        "disk full while reporting",
        "tmpfs without a free page",
        "2, one line, page: earlier",
        f"{summary}, page: {page}",
    )


def test_a_limit_of_file_sizes(record_property, cli: Commands, whole) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    expected = whole(*WIDE)
    ended = command(*WIDE, "out=runs", inside=limit)
    assert "safetensors cannot be written: file too large: " in ended.said
    observe(
        record_property,
        "files may not be that large",
        "RLIMIT_FSIZE of 100 kB",
        f"2, one line; then {AGAIN}",
        f"{ended.summary}; then {again(expected, *WIDE)}",
    )


@pytest.mark.parametrize("sweep", [(), pytest.param(("--multirun",), marks=pytest.mark.slow)], ids=["run", "sweep"])
def test_a_results_folder_that_is_read_only(record_property, cli: Commands, sweep: tuple[str, ...]) -> None:
    def scenario() -> list:
        Path("runs").mkdir()
        read_only(Path("runs"))
        trains = when(lra.runs.execute, "train_and_test", 1, lambda *_: Path("trained").touch())
        ended = command(*sweep, *TINY, "out=runs", inside=trains)
        return [ended.summary, ended.said, Path("trained").exists()]

    summary, said, trained = with_mounts(scenario)  # the first line of a sweep says what it costs
    assert "runs" in said.splitlines()[-1]
    assert "ead-only file system" in said.splitlines()[-1]
    observe(
        record_property,
        f"results folder is read-only ({'sweep' if sweep else 'run'})",
        "mounted read-only",
        f"2, {'2 lines' if sweep else 'one line'}, no training",
        f"{summary}, {'trained' if trained else 'no training'}",
    )


def test_finished_runs_in_a_folder_that_is_read_only(record_property, cli: Commands) -> None:
    """There is nothing to do for a run; a sweep declares its cells, and cannot."""

    def scenario() -> list:
        assert command(*TINY, "out=runs").code == 0
        read_only(Path("runs"))
        return [command(*TINY, "out=runs").code, command("--multirun", *TINY, "out=runs").err]

    code, said = with_mounts(scenario)
    assert said.strip().splitlines()[-1].endswith("/.sweep.lock: read-only file system")
    observe(record_property, "finished run in a read-only folder", "mounted read-only", 0, code)


@pytest.mark.slow
def test_a_cache_that_is_read_only(record_property, cli: Commands) -> None:
    def scenario() -> list:
        Path("own").mkdir()
        command(*DATA, "cache=own", main=prepare.main)
        read_only(Path("own"))
        other = command(*TINY, "task.train_size=98", "cache=own", "out=other")
        return [other.summary, other.said, command(*TINY, "cache=own", "out=runs").code]

    summary, said, prepared = with_mounts(scenario)
    assert "cannot prepare listops in own/listops" in said
    assert "Read-only file system" in said
    observe(
        record_property,
        "cache is read-only",
        "mounted read-only",
        "2, one line; with the data in it 0",
        f"{summary}; with the data in it {prepared}",
    )


# ---------------------------------------------------------------- signals

PLACES = {
    "in preparation": (cache, "verify", 1),
    "in an evaluation": (lra.training.fit, "evaluate", 2),
    "in the final test": (lra.runs.trainer, "evaluate", 1),
    "in training": (lra.training.fit, "update", 11),
}


@pytest.mark.parametrize(
    ("place", "signals", "code"),
    [
        ("in preparation", (signal.SIGTERM,), -signal.SIGTERM),
        ("in the final test", (signal.SIGINT,), 130),
        ("in training", (signal.SIGINT, signal.SIGINT), -signal.SIGINT),
        pytest.param("in preparation", (signal.SIGINT,), 130, marks=pytest.mark.slow),
        pytest.param("in an evaluation", (signal.SIGTERM,), 143, marks=pytest.mark.slow),
        pytest.param("in training", (signal.SIGTERM, signal.SIGTERM), -signal.SIGTERM, marks=pytest.mark.slow),
    ],
    ids=lambda value: names(*value) if isinstance(value, tuple) else str(value).replace(" ", "-"),
)
def test_signals(record_property, cli: Commands, whole, place: str, signals: tuple[int, ...], code: int) -> None:
    """In training the run finishes its step; elsewhere, and the second time, the process ends."""
    expected = whole(*TINY)
    ended = command(*TINY, "out=runs", "cache=own", inside=when(*PLACES[place], sending(*signals)))
    assert "Traceback" not in ended.err
    observe(
        record_property,
        f"{names(*signals)} {place}",
        "a real signal",
        f"{code}; then {AGAIN}",
        f"{ended.code}; then {again(expected, *TINY, 'cache=own')}",
    )
    assert list(Path("own").rglob("*.tmp")) == []


def test_killed_while_preparing(record_property, cli: Commands) -> None:
    """Before the arrays are whole, in the manifest, and between the last check and the renaming."""
    whole = command(*DATA, "cache=whole", "json=true", main=prepare.main)
    places = [(cache.Writer, "close"), (cache, "write_json"), (cache, "verify")]
    killed = [
        command(*DATA, "cache=own", main=prepare.main, inside=when(*place, 1, sending(signal.SIGKILL))).code
        for place in places
    ]
    ended = command(*DATA, "cache=own", "json=true", main=prepare.main)
    left = list(Path("own").rglob("*.tmp"))
    expected, actual = (json.loads(text.out) for text in (whole, ended))
    same = all(expected[key] == actual[key] for key in ("source", "rows", "digest", "baselines"))
    observe(
        record_property,
        "killed while preparing",
        "SIGKILL at 3 points",
        "[-9, -9, -9]; then 0, the same data, [] left",
        f"{killed}; then {ended.code}, {'the same' if same else 'actual'} data, {left} left",
    )


# ---------------------------------------------------------------- what surrounds a run


def test_standard_output_is_full(record_property, cli: Commands, whole) -> None:
    def full() -> None:
        for stream in (1, 2):
            os.dup2(os.open("/dev/full", os.O_WRONLY), stream)

    expected = whole(*TINY)
    command(*TINY, "out=runs", inside=full)
    same = result("runs") == expected
    observe(
        record_property,
        "no room for what is said",
        "stdout and stderr are /dev/full",
        "the same end",
        "the same end" if same else "another end",
    )


@pytest.mark.slow
def test_too_few_open_files(record_property, cli: Commands, whole) -> None:
    def limit(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    expected = whole(*TINY)
    ended = command(*TINY, "out=runs", inside=when(lra.runs.folder.Runner, "_train_and_record", 1, limit))
    assert "oo many open files" in ended.said
    observe(
        record_property,
        "too many open files",
        "RLIMIT_NOFILE",
        f"2, one line; then {AGAIN}",
        f"{ended.summary}; then {again(expected, *TINY)}",
    )


def test_out_of_memory(record_property, cli: Commands, whole) -> None:
    def limit(*_: object) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))

    large = (*TINY, "model.mlp_dim=9000", "train.steps=2", "train.warmup=1", "train.eval_every=1")
    expected = whole(*large)
    ended = command(*large, "out=runs", inside=when(lra.runs.execute, "draw_model", 1, limit))
    assert "failed: " in ended.said
    assert record.read(run_folder() / record.NAME)["status"] == "failed"
    observe(
        record_property,
        "out of memory",
        "RLIMIT_AS",
        f"1, one line; then {AGAIN}",
        f"{ended.summary}; then {again(expected, *large)}",
    )


SLOW_NAMES = [pytest.param(name, marks=pytest.mark.slow) for name in (" it's {here} [now] ", "x" * 250)]


@pytest.mark.parametrize("name", ["ünï cödé — 名, a=b", *SLOW_NAMES], ids=range(3))
def test_folders_of_any_name(record_property, cli: Commands, whole, name: str) -> None:
    expected = whole(*TINY)
    quoted = '"' + name.replace('"', '\\"') + '"'
    ended = command("--multirun", *TINY, f"out={quoted}", f"cache={quoted}", inside=without_figures)
    same = ended.code == 0 and result(name) == expected
    assert (Path(name) / "README.md").exists(), ended.err
    observe(
        record_property,
        "folders of any name",
        f"out={name:.20}",
        AGAIN,
        f"{ended.code}, {'the same end' if same else 'another end'}",
    )


def test_a_folder_with_too_long_a_name(record_property, cli: Commands) -> None:
    ended = command(*TINY, f"out={'x' * 300}")
    assert "file name too long" in ended.said
    observe(record_property, "name too long", "out= of 300 letters", "2, one line", ended.summary)


@pytest.mark.slow
def test_the_newest_checkpoint_is_told_by_its_step(record_property, cli: Commands, whole) -> None:
    expected = whole(*TINY)
    assert command(*TINY, "out=runs", fault="step:11:kill").code == -signal.SIGKILL
    for number, path in enumerate(sorted(run_folder().glob("checkpoint-*"))):
        os.utime(path, (-number, -number))
    ended = command(*TINY, "out=runs")
    assert "resumes from step 8" in ended.err
    same = "the same end" if result("runs") == expected else "another end"
    observe(record_property, "times of files backwards", "os.utime", AGAIN, f"{ended.code}, {same}")


@pytest.mark.slow
def test_the_clock_goes_backwards(record_property, cli: Commands, whole) -> None:
    library = faketime()
    expected = whole(*TINY)
    assert command(*TINY, "out=runs", fault="step:11:term").code == 143
    paused = record.read(run_folder() / record.NAME)["provenance"]["finished"]
    clock = {"LD_PRELOAD": str(library), "FAKETIME": "-1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "lra", "train", *TINY, "out=runs"], env={**os.environ, **clock}, check=False
    )
    assert record.read(run_folder() / record.NAME)["provenance"]["started"] < paused
    same = "the same end" if result("runs") == expected else "another end"
    observe(record_property, "the clock goes back a day", "libfaketime", AGAIN, f"{ended.returncode}, {same}")


def faketime() -> Path:
    """The library that lies about the time; the test is skipped where it is not installed."""
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    package = find_spec("libfaketime")
    if package:
        libraries += Path(package.origin).parent.rglob("libfaketime.so.1")
    if not libraries:
        pytest.skip("libfaketime is not installed")
    return libraries[0]


def test_other_data_are_refused(record_property, cli: Commands) -> None:
    assert cli(prepare.main, *DATA, "export=raw")[0] == 0
    files = ["task=listops_files", "task.folder=raw", "task.max_length=40"]
    options = [option for option in TINY if not option.startswith("task")]
    assert command(*files, *options, "out=runs", fault="step:9:term").code == 143
    table = Path("raw/basic_train.tsv")
    head, first, second, *rest = table.read_text().splitlines(keepends=True)
    table.write_text("".join([head, second, first, *rest]))
    ended = command(*files, *options, "out=runs")
    assert "was paused on other data (data_sha256: " in ended.said
    observe(record_property, "resumed with other data", "2 rows changed places", "2, 2 lines", ended.summary)


def test_a_finished_run_is_left_alone(record_property, cli: Commands) -> None:
    def state() -> dict:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in Path("runs").rglob("*")}

    assert command(*TINY, "out=runs").code == 0
    before = state()
    code = command(*TINY, "out=runs").code
    changed = [path.name for path in Path("runs").rglob("*") if state()[path] != before.get(path)]
    observe(
        record_property,
        "asked again when finished",
        "the same command",
        "0, changed: []",
        f"{code}, changed: {changed}",
    )


# ---------------------------------------------------------------- numbers that go wrong


def nan_weight(model: torch.nn.Module, *_: object) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)


def infinite_gradient(model: torch.nn.Module, *_: object) -> None:
    parameter = list(model.parameters())[-1]
    parameter.register_hook(lambda gradient: gradient + torch.inf)


@pytest.mark.parametrize("break_it", [nan_weight, infinite_gradient])
def test_numbers_that_are_not_finite(record_property, cli: Commands, break_it: Callable) -> None:
    def broken() -> None:
        without_figures()
        when(lra.training.update, "accumulate", 11, break_it)()

    ended = command("--multirun", *TINY, "out=runs", inside=broken)
    run = record.read(run_folder() / record.NAME)
    assert run["steps"] == 10
    assert "step 10 is" in run["reason"]
    assert "learning rate" in run["reason"]
    assert ("micro-batch 0" if break_it is nan_weight else "the gradient of") in run["reason"]
    assert "of 1 seeds, 1 diverged" in Path("runs/README.md").read_text()
    kept = checkpoint.read(run_folder())
    finite = kept is not None and all(value.isfinite().all() for value in kept.tensors.values())
    observe(
        record_property,
        break_it.__name__.replace("_", " "),
        "in step 10",
        "1, diverged, last good checkpoint kept",
        f"{ended.code}, {run['status']}, {'last good checkpoint kept' if finite else 'no good checkpoint'}",
    )


def cli_sweep(cli: Commands, *options: str) -> tuple[int, str]:
    ended = command("--multirun", *TINY, *options, "out=runs", inside=without_figures)
    return ended.code, ended.err


# ---------------------------------------------------------------- what checkpoints cost


@pytest.mark.slow
def test_checkpoints_cost_no_more_than_their_bytes(record_property, tmp_path: Path) -> None:
    """A 21 M-parameter state with best weights, as `task=listops attention=softmax` has it. Writing it, its digest and
    reading it back take as long as a few plain copies of its bytes with their digests, measured in turns."""
    settings = settings_of(composed("task=listops", "attention=softmax"))
    system = assemble(settings)
    training = lra.training.fit.Training(
        lra.runs.initial_weights.draw_model(system, system.builder.facts, 1), system.recipe
    )
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    training.optimizer.step()
    tensors = training.tensors()
    tensors |= {f"best/{name}": value.clone() for name, value in training.model.state_dict().items()}
    data = bytes(sum(value.nbytes for value in tensors.values()))

    def copy() -> None:
        with open(tmp_path / "copy", "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        hashlib.sha256((tmp_path / "copy").read_bytes()).hexdigest()

    def save() -> None:
        checkpoint.write(tmp_path, checkpoint.Generation(step=1, tensors=tensors, state={}))

    acts = {"checkpoint": save, "copy": copy}
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(3):
        for name, act in acts.items():
            started = perf_counter()
            act()
            seconds[name].append(perf_counter() - started)
    ratio = min(seconds["checkpoint"]) / min(seconds["copy"])
    observe(
        record_property,
        "cost of checkpoints",
        f"{len(data) / 1e6:.0f} MB in {min(seconds['checkpoint']):.1f} s, as {ratio:.1f} copies",
        "at most 8 copies",
        f"{'at most' if ratio <= 8 else 'above'} 8 copies",
    )
