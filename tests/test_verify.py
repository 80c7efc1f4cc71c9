"""lra-report --verify: every kind of damage is found, in folders of runs and in kept runs, and nothing else is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reports import change, declare, put, softmax
from support import Commands

from lra.cli import report, train
from lra.core.paths import CHECKOUT
from lra.records import record
from lra.records.names import (
    KEPT_PREDICTIONS,
    METRICS,
    PREDICTIONS,
    README,
    RUNS,
    SEEDS,
    SWEEP,
    TABLE,
    TABLE_TEX,
    WEIGHTS,
)
from lra.records.runs import keep_runs, read_runs
from lra.reports import Report
from lra.reports.verify import verify

RESULTS = CHECKOUT / "results"
KEPT = sorted(path.parent for path in RESULTS.glob(f"*/{RUNS}"))
SMALL = ("ablations", "table1_narrow", "books_small")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported") / "mine"
    for seed, accuracy in enumerate((37.0, 38.0), start=1):
        put(folder, seed, accuracy)
        put(folder, seed, accuracy - 2, **softmax())
    for name, text in Report(folder).texts().items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(reported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(reported, tmp_path / "mine")


@pytest.fixture
def kept(folder: Path) -> Path:
    """Return a folder whose runs are in runs.jsonl only."""
    keep_runs(folder, read_runs(folder))
    shutil.rmtree(folder / "listops")
    return folder


def seed1(folder: Path) -> Path:
    return folder / "listops/paper/simple/simple/seed1" / record.NAME


def other_answers(folder: Path) -> None:
    """Change an answer and list its digest in the record, so that only the accuracy shows it."""
    path = seed1(folder).with_name(PREDICTIONS)
    array = np.load(path)
    array[0, 0] += 1
    np.save(path, array)
    change(seed1(folder), files=record.sha256(path.parent, PREDICTIONS))


def weights(folder: Path) -> None:
    """Change one byte of the kept weights."""
    path = seed1(folder).with_name(WEIGHTS)
    path.write_bytes(b"weights")
    change(seed1(folder), files=record.sha256(path.parent, WEIGHTS))
    assert verify(folder) == (4, [])
    path.write_bytes(b"weighty")


def append(path: Path, data: bytes = b"\n") -> None:
    path.write_bytes(path.read_bytes() + data)


def edited(path: Path, edit: Callable[[dict], object]) -> None:
    """Change the first line of a `runs.jsonl`."""
    first, *others = path.read_text().splitlines()
    line = json.loads(first)
    edit(line)
    path.write_text("\n".join([json.dumps(line), *others]) + "\n")


def other_seeds(folder: Path) -> None:
    declare(folder, {"attention": "simple", "variant": "simple", "seeds": [1, 2]})
    keep_runs(folder, read_runs(folder))
    (folder / SWEEP).unlink()
    edited(folder / RUNS, lambda line: line["sweep"]["cells"][0].update(seeds=[1]))


def one_answer(folder: Path) -> None:
    arrays = dict(np.load(folder / KEPT_PREDICTIONS))
    name = next(name for name in arrays if not name.startswith("labels/"))
    arrays[name][0] += 1
    np.savez_compressed(folder / KEPT_PREDICTIONS, **arrays)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record": (lambda folder: seed1(folder).write_text("{}"), "record.json: not readable"),
    "the metrics": (
        lambda folder: append(seed1(folder).with_name(METRICS), b'{"step": 150}\n'),
        "the SHA-256 of metrics.jsonl does not match",
    ),
    "no predictions": (lambda folder: seed1(folder).with_name(PREDICTIONS).unlink(), "predictions.npy is missing"),
    "other answers": (other_answers, "predictions.npy gives 739 of 2000 correct"),
    "the accuracy": (
        lambda folder: change(seed1(folder), test={"best_val": {"accuracy": 40.0}}),
        "test.best_val has 740 of 2000 correct, 40 %; predictions.npy gives 740 of 2000 correct, 37 %",
    ),
    "the best validation": (
        lambda folder: change(seed1(folder), validation={"best": {"accuracy": 38.0}}),
        "validation.best is (38.0, 1.5) at step 50, metrics.jsonl has (37.0, 1.5)",
    ),
    "the weights": (weights, "the SHA-256 of weights.safetensors does not match"),
    "the steps": (lambda folder: change(seed1(folder), steps=150), "steps is 150, the last evaluation"),
    "the configuration": (lambda folder: change(seed1(folder), config={"seed": 5}), "config_sha256 is not"),
    "a count of a class": (
        lambda folder: change(seed1(folder), diagnostics={"class": {"neg": {"examples": 1000, "correct": 370}}}),
        "diagnostics.class is {'neg': (1000, 370)",
    ),
    "a count of a depth": (
        lambda folder: change(seed1(folder), diagnostics={"depth": {"1": {"correct": 371}}}),
        "diagnostics.depth has 741 of 2000 correct, test.best_val 740 of 2000",
    ),
    "a seed": (lambda folder: shutil.rmtree(seed1(folder).parent), f"{TABLE}, line"),
    **{
        f"a line of {name}": (lambda folder, name=name: append(folder / name, b"more\n"), f"{name}, line")
        for name in (README, TABLE, TABLE_TEX, SEEDS)
    },
    "no page": (lambda folder: (folder / README).unlink(), "README.md: not readable"),
}
KEPT_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a number": (
        lambda folder: edited(folder / RUNS, lambda line: line["record"].update(seed=9)),
        "line 1: not readable: its content does not match its SHA-256",
    ),
    "an evaluation": (
        lambda folder: edited(folder / RUNS, lambda line: line["metrics"][0].update(val_loss=0.1)),
        "the SHA-256 of metrics.jsonl does not match",
    ),
    "no evaluations": (
        lambda folder: edited(folder / RUNS, lambda line: line["metrics"].clear()),
        "metrics.jsonl is missing",
    ),
    "a run twice": (
        lambda folder: append(folder / RUNS, (folder / RUNS).read_bytes().splitlines()[1]),
        "line 5: not readable: run 'listops/paper/simple/simple/seed2' is in an earlier line",
    ),
    "the declared seeds": (other_seeds, "not readable: its content does not match its SHA-256"),
    "no JSON": (lambda folder: append(folder / RUNS, b"{\n"), "line 5: not readable"),
    "an answer": (one_answer, "the SHA-256 of predictions.npy does not match"),
    "no predictions": (lambda folder: (folder / KEPT_PREDICTIONS).unlink(), "predictions.npy is missing"),
    "no archive": (lambda folder: (folder / KEPT_PREDICTIONS).write_bytes(b"PK"), "predictions.npz: not readable"),
}


@pytest.mark.parametrize(
    ("where", "damage"), [*(("folder", name) for name in DAMAGES), *(("kept", name) for name in KEPT_DAMAGES)]
)
def test_damage_is_found(request: pytest.FixtureRequest, where: str, damage: str) -> None:
    folder = request.getfixturevalue(where)
    make, expected = (DAMAGES if where == "folder" else KEPT_DAMAGES)[damage]
    make(folder)
    _, mismatches = verify(folder)
    assert [line for line in mismatches if expected in line], mismatches
    assert all(len(line) < 500 and "\n" not in line for line in mismatches)


def test_a_copy_under_another_name_has_no_mismatch(folder: Path) -> None:
    assert verify(folder.rename(folder.with_name("backup"))) == (4, [])


def test_a_kept_folder_may_lack_its_tables(kept: Path) -> None:
    for name in (TABLE, TABLE_TEX, SEEDS):
        (kept / name).unlink()
    assert verify(kept) == (4, [])


@pytest.mark.parametrize("labels", [("10", "9", "-1"), pytest.param(("None", "nan"), marks=pytest.mark.slow)])
def test_results_with_labels_that_look_like_numbers_have_no_mismatch(cli: Commands, labels: tuple[str, ...]) -> None:
    Path("own").mkdir()
    with Path("own/train.jsonl").open("w") as file:
        for number in range(80):
            file.write(json.dumps({"text": f"text {number}", "label": labels[number % len(labels)]}) + "\n")
    words = ("experiment=smoke", "task=files", "task.data=own", "attention=fnet", "train.steps=2", "train.eval_every=2")
    assert cli(train.main, *words, "train.warmup=1", "out=o")[0] == 0
    assert cli(report.main, "o")[0] == 0
    assert verify(Path("o")) == (1, [])


def test_keep_verify_and_write_from_the_command_line(cli: Commands, folder: Path) -> None:
    """Keep, verify and write; exit code 1 for a mismatch, 2 for an error."""
    assert cli(report.main, "--keep", str(folder))[0] == 0
    shutil.rmtree(folder / "listops")
    code, out, _ = cli(report.main, "--verify", str(folder))
    assert (code, out) == (0, f"{folder}: 4 runs, 0 mismatches\n")
    append(folder / README, b"more\n")
    code, out, _ = cli(report.main, "--verify", str(folder))
    assert (code, out.splitlines()[-1]) == (1, f"{folder}: 4 runs, 1 mismatches")
    code, _, err = cli(report.main, "nowhere", str(folder))
    assert (code, "lra-report: error: nowhere: no such folder\n" in err) == (2, True)
    assert verify(folder) == (4, [])


@pytest.mark.skipif(not KEPT, reason="not a checkout")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.name in SMALL else pytest.mark.slow) for path in KEPT],
    ids=lambda path: path.name,
)
def test_kept_results_are_what_their_runs_give(path: Path) -> None:
    runs, mismatches = verify(path)
    assert runs > 0 and mismatches == []
