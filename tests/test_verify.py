"""lra-report --verify: every kind of damage is found, in folders of runs and in kept runs, and nothing else is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reports import change, put, softmax
from support import Commands

from lra.cli import report, train
from lra.core.paths import CHECKOUT
from lra.records import record
from lra.records.names import KEPT_PREDICTIONS, METRICS, PREDICTIONS, README, RUNS, SEEDS, TABLE, TABLE_TEX
from lra.records.runs import keep_runs, read_runs
from lra.report import write_report
from lra.report.verify import verify

RESULTS = CHECKOUT / "results"
KEPT = sorted(path.parent for path in RESULTS.glob(f"*/{RUNS}"))
SMALL = ("ablations", "table1_narrow", "books_small")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, accuracy in enumerate((37.0, 38.0), start=1):
        put(tmp_path, seed, accuracy)
        put(tmp_path, seed, accuracy - 2, **softmax())
    write_report(tmp_path)
    return tmp_path


@pytest.fixture
def kept(folder: Path) -> Path:
    """Runs in runs.jsonl alone."""
    keep_runs(folder, read_runs(folder))
    shutil.rmtree(folder / "listops")
    return folder


def seed1(folder: Path) -> Path:
    return folder / "listops/paper/simple/simple/seed1" / record.NAME


def other_answers(folder: Path) -> None:
    """With the digest that the record lists, so that only the accuracy tells."""
    path = seed1(folder).with_name(PREDICTIONS)
    array = np.load(path)
    array[0, 0] += 1
    np.save(path, array)
    change(seed1(folder), files=record.sha256(path.parent, PREDICTIONS))


def fewer_answers(folder: Path) -> None:
    path = seed1(folder).with_name(PREDICTIONS)
    np.save(path, np.load(path)[:, 1:])
    change(seed1(folder), files=record.sha256(path.parent, PREDICTIONS))


def append(path: Path, data: bytes = b"\n") -> None:
    path.write_bytes(path.read_bytes() + data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of a record": (lambda folder: seed1(folder).write_text("{}"), "not a readable record"),
    "a byte of the metrics": (lambda folder: append(seed1(folder).with_name(METRICS)), "SHA-256 does not match"),
    "a byte of the predictions": (
        lambda folder: append(seed1(folder).with_name(PREDICTIONS)),
        "SHA-256 does not match",
    ),
    "no predictions": (lambda folder: seed1(folder).with_name(PREDICTIONS).unlink(), "missing, but listed"),
    "other answers": (other_answers, "predictions.npy gives 739 correct"),
    "fewer answers": (fewer_answers, "examples is 2000, predictions.npy has 1999"),
    "the accuracy": (
        lambda folder: change(seed1(folder), test={"best_val": {"accuracy": 40.0}}),
        "test.best_val is 740 correct, 40.0 %; predictions.npy gives 740 correct, 37.0 %",
    ),
    "the best validation": (
        lambda folder: change(seed1(folder), validation={"best": {"accuracy": 38.0}}),
        "validation.best is (38.0, 1.5) at step 50, metrics.jsonl has (37.0, 1.5)",
    ),
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
    "no page": (lambda folder: (folder / README).unlink(), "README.md: not readable (FileNotFoundError)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(folder: Path, damage: str) -> None:
    assert verify(folder) == (4, [])
    make, expected = DAMAGES[damage]
    make(folder)
    _, mismatches = verify(folder)
    assert [line for line in mismatches if expected in line], mismatches
    assert all(len(line) < 500 and "\n" not in line for line in mismatches)


def edited(path: Path, edit: Callable[[dict], object]) -> None:
    first, *others = path.read_text().splitlines()
    line = json.loads(first)
    edit(line)
    path.write_text("\n".join([json.dumps(line), *others]) + "\n")


def one_answer(folder: Path) -> None:
    arrays = dict(np.load(folder / KEPT_PREDICTIONS))
    name = next(name for name in arrays if not name.startswith("labels/"))
    arrays[name][0] += 1
    np.savez_compressed(folder / KEPT_PREDICTIONS, **arrays)


KEPT_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a number": (
        lambda folder: edited(folder / RUNS, lambda line: line["record"].update(seed=9)),
        "line 1: not a kept run: its content does not match its SHA-256",
    ),
    "an evaluation": (
        lambda folder: edited(folder / RUNS, lambda line: line["metrics"][0].update(val_loss=0.1)),
        "line 1: metrics.jsonl: its SHA-256 does not match",
    ),
    "no evaluations": (
        lambda folder: edited(folder / RUNS, lambda line: line["metrics"].clear()),
        "line 1: metrics.jsonl is missing",
    ),
    "no JSON": (lambda folder: append(folder / RUNS, b"{\n"), "line 5: not a kept run"),
    "an answer": (one_answer, "predictions.npy: its SHA-256 does not match"),
    "no predictions": (lambda folder: (folder / KEPT_PREDICTIONS).unlink(), "predictions.npy is missing"),
    "no archive": (lambda folder: (folder / KEPT_PREDICTIONS).write_bytes(b"PK"), "predictions.npz: not readable"),
}


@pytest.mark.parametrize("damage", KEPT_DAMAGES)
def test_damage_of_kept_runs_is_found(kept: Path, damage: str) -> None:
    assert verify(kept) == (4, [])
    make, expected = KEPT_DAMAGES[damage]
    make(kept)
    _, mismatches = verify(kept)
    assert [line for line in mismatches if expected in line], mismatches


def test_a_kept_folder_needs_its_page_alone(kept: Path) -> None:
    for name in (TABLE, TABLE_TEX, SEEDS):
        (kept / name).unlink()
    assert verify(kept) == (4, [])


@pytest.mark.parametrize("labels", [("pos", "neg"), ("10", "9", "-1"), ("ja, so", "nein", "ÄÖ"), ("None", "nan")])
def test_honest_results_of_any_labels_have_no_mismatch(cli: Commands, labels: tuple[str, ...]) -> None:
    Path("own").mkdir()
    with Path("own/train.jsonl").open("w") as file:
        for number in range(80):
            file.write(json.dumps({"text": f"text {number}", "label": labels[number % len(labels)]}) + "\n")
    words = ("experiment=smoke", "task=files", "task.data=own", "attention=fnet", "train.steps=2", "train.eval_every=2")
    assert cli(train.main, *words, "train.warmup=1", "out=o")[0] == 0
    assert cli(report.main, "o")[0] == 0
    assert verify(Path("o")) == (1, [])
    path = next(Path("o").rglob(record.NAME))
    counts = record.read(path)["diagnostics"]["class"]
    assert {*counts} <= {*labels}
    [first, *_] = counts
    counts[first]["correct"] += 1 if counts[first]["correct"] < counts[first]["examples"] else -1
    change(path, diagnostics={"class": counts})
    assert any("diagnostics.class" in line for line in verify(Path("o"))[1])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 2000)), "expected integers [2, examples], found float64"),
        (np.zeros((3, 9), np.uint8), "expected integers [2, examples], found uint8 [3, 9]"),
        (b"PK\x03\x04", "not a readable array"),
    ],
    ids=["float", "shape", "zip"],
)
def test_predictions_are_two_lines_of_integers(folder: Path, array: np.ndarray | bytes, expected: str) -> None:
    path = seed1(folder).with_name(PREDICTIONS)
    path.write_bytes(array) if isinstance(array, bytes) else np.save(path, array)
    change(seed1(folder), files=record.sha256(path.parent, PREDICTIONS))
    assert [line for line in verify(folder)[1] if expected in line]


def test_the_command_ends_with_the_number_of_mismatches(cli: Commands, folder: Path) -> None:
    code, out, _ = cli(report.main, "--verify", str(folder))
    assert (code, out) == (0, f"{folder}: 4 runs, 0 mismatches\n")
    append(folder / TABLE, b"more\n")
    code, out, _ = cli(report.main, "--verify", str(folder))
    assert (code, out.splitlines()[-1]) == (1, f"{folder}: 4 runs, 1 mismatches")


def test_the_command_keeps_runs_and_writes_reports(cli: Commands, folder: Path) -> None:
    assert cli(report.main, "--keep", str(folder))[0] == 0
    shutil.rmtree(folder / "listops")
    assert cli(report.main, "--verify", str(folder))[0] == 0
    before = (folder / README).read_bytes()
    (folder / README).unlink()
    assert cli(report.main, str(folder))[0] == 0
    assert (folder / README).read_bytes() == before
    code, _, err = cli(report.main, "nowhere", str(folder))
    assert (code, "lra-report: error: nowhere: no such folder\n" in err) == (2, True)


@pytest.mark.skipif(not KEPT, reason="not a checkout")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.name in SMALL else pytest.mark.slow) for path in KEPT],
    ids=lambda path: path.name,
)
def test_kept_results_are_what_their_runs_give(path: Path) -> None:
    runs, mismatches = verify(path)
    assert runs > 0 and mismatches == []
