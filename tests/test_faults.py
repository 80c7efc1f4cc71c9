"""No result is lost: a run that fails says why in one line, and the same command finishes it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import TINY, command, result, run_folder, sending, when
from support import Commands

import lra
import lra.cli.report
import lra.runs.run
import lra.training.trainer
from lra.core.errors import UserError
from lra.datasets import cache
from lra.records import checkpoint, record
from lra.training.batches import counts

WIDE = (*TINY, "model.depth=2", "model.dim=48", "model.mlp_dim=64")  # a generation of a third of a megabyte
pytestmark = pytest.mark.usefixtures("cli")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., dict]:
    """Return the results of undisturbed runs by their options; each is run once."""
    known: dict[tuple[str, ...], dict] = {}

    def make(*options: str) -> dict:
        if options not in known:
            folder = tmp_path_factory.mktemp("whole")
            ended = command(*options, f"out={folder}", f"cache={cache}")
            assert ended.code == 0, ended.err
            known[options] = result(folder)
        return known[options]

    return make


# ---------------------------------------------------------------- signals

PLACES = {
    "in preparation": (cache, "sha256", 1),
    "in the final test": (lra.runs.run, "evaluate", 1),
    "in training": (lra.training.trainer, "compute_gradient", 11),
}


@pytest.mark.parametrize(
    ("place", "signals", "code"),
    [
        ("in preparation", (signal.SIGTERM,), -signal.SIGTERM),
        ("in the final test", (signal.SIGINT,), 130),
        ("in training", (signal.SIGINT, signal.SIGINT), -signal.SIGINT),
        ("in training", (signal.SIGHUP, signal.SIGHUP), 129),
    ],
)
def test_a_signal_ends_a_command_which_then_resumes(whole, place: str, signals: tuple[int, ...], code: int) -> None:
    """The first signal in training ends the run after its step. A second one, or one elsewhere, ends the process."""
    expected = whole(*TINY)
    ended = command(*TINY, "out=runs", "cache=own", inside=when(*PLACES[place], sending(*signals)))
    assert (ended.code, "Traceback" in ended.err) == (code, False), ended.err
    assert command(*TINY, "out=runs", "cache=own").code == 0
    assert result("runs") == expected
    assert list(Path("own").rglob("*.tmp")) == []


# ---------------------------------------------------------------- what surrounds a run


def test_output_that_cannot_be_written_changes_no_result(whole) -> None:
    def full() -> None:
        for stream in (1, 2):
            os.dup2(os.open("/dev/full", os.O_WRONLY), stream)

    command(*TINY, "out=runs", inside=full)
    assert result("runs") == whole(*TINY)


def test_folders_of_any_name(whole) -> None:
    name = "ünï cödé — 名, a=b it's"
    ended = command("--multirun", *TINY, f'out="{name}"', f'cache="{name}"')
    assert ended.code == 0, ended.err
    assert result(name) == whole(*TINY)
    assert (Path(name) / "README.md").exists()


def test_other_data_are_refused(cli: Commands) -> None:
    rows = [f"[MAX {number % 7} {number // 7} 1 ]\t{max(number % 7, number // 7, 1)}\n" for number in range(60)]
    for split in ("train", "val", "test"):
        Path(f"raw/basic_{split}.tsv").parent.mkdir(exist_ok=True)
        Path(f"raw/basic_{split}.tsv").write_text("".join(["Source\tTarget\n", *rows]))
    files = ["task=listops_files", "task.folder=raw", "task.max_length=40"]
    options = [option for option in TINY if not option.startswith("task")]
    stopped = when(lra.training.trainer, "compute_gradient", 9, sending(signal.SIGTERM))
    assert command(*files, *options, "out=runs", inside=stopped).code == 143
    table = Path("raw/basic_train.tsv")
    head, first, second, *rest = table.read_text().splitlines(keepends=True)
    table.write_text("".join([head, second, first, *rest]))
    ended = command(*files, *options, "out=runs")
    assert ended.code == 2
    assert "was paused on other data (data_sha256: " in ended.err


# ---------------------------------------------------------------- numbers that go wrong


def nan_weight(model: torch.nn.Module, *_: object) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)


def infinite_gradient(model: torch.nn.Module, *_: object) -> None:
    parameter = list(model.parameters())[-1]
    parameter.register_hook(lambda gradient: gradient + torch.inf)


@pytest.mark.parametrize("break_it", [nan_weight, infinite_gradient])
def test_numbers_that_are_not_finite(break_it: Callable) -> None:
    """The run diverges in step 10, says where, and keeps the last good checkpoint."""
    broken = when(lra.training.trainer, "compute_gradient", 11, break_it)
    ended = command("--multirun", *TINY, "out=runs", inside=broken)
    run = record.read(run_folder() / record.NAME)
    assert (ended.code, run["status"], run["steps"]) == (1, "diverged", 10)
    assert "step 10 is" in run["reason"]
    assert ("nan" if break_it is nan_weight else "inf") in run["reason"]
    assert "1 diverged" in Path("runs/README.md").read_text()
    tensors, _ = checkpoint.read(run_folder())
    assert all(value.isfinite().all() for value in tensors.values())


def test_outputs_that_are_not_finite_are_wrong_answers_and_no_result(cli: Commands) -> None:
    """The weights break in the final test: class 0, which `argmax` gives for NaN, is no answer."""
    ended = command("--multirun", *TINY, "out=runs", inside=when(lra.runs.run, "evaluate", 1, nan_weight))
    run = record.read(run_folder() / record.NAME)
    assert "test: 29 of 29 predictions are NaN or infinite, and count as wrong" in ended.err
    assert (run["test"]["last"]["correct"], run["test"]["last"]["not_finite"]) == (0, 29)
    assert "1 not finite" in Path("runs/README.md").read_text()
    assert cli(lra.cli.report.main, "runs", "--verify")[0] == 0
    model = lra.model(run_folder())
    nan_weight(model.module)
    message = r"^examples \[0, 1\] \(numbered from 0\): outputs of the model are NaN or infinite"
    with pytest.raises(UserError, match=message):
        model.predict([[1, 2], [3]])


def test_each_output_that_is_not_finite_counts_once() -> None:
    outputs = torch.tensor([[0, 1.0], [torch.nan, 1], [1, torch.inf], [-torch.inf, 2], [3, 2]])
    assert counts(outputs, torch.tensor([1, 0, 1, 1, 0])).tolist() == [2, 3]
