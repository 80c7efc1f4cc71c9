"""The receipts of a report: what verifies, and what does not."""

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from golden import folder as golden
from reports import change, complete, declare, put
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.records import record
from lra.records.names import METRICS, SWEEP
from lra.report import Report, write_pages
from lra.report.check import verify as receipts
from lra.report.check.verify import verify, verify_records
from lra.report.read.pack import pack, unpack

SIMPLE, RESL = "matching/paper/simple/simple/seed", "matching/paper/simple/simple_resl/seed"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden folder with all that its runs leave, and its report."""
    folder = tmp_path_factory.mktemp("verify") / "golden"
    golden.make(folder)
    complete(folder)
    write_files(folder)
    return folder


@pytest.fixture
def sound(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; no figures are drawn, which takes seconds."""
    monkeypatch.setattr(receipts, "write_figures", lambda folder, sections: [])
    return Path(shutil.copytree(kept, tmp_path / "golden"))


def write_files(folder: Path, selection: str | None = None) -> None:
    report = Report(folder, selection)
    for name, text in {**report.files({}), "index.html": report.page([])}.items():
        (folder / name).write_text(text)


def test_a_report_verifies_against_its_records(sound: Path) -> None:
    assert verify(sound)[1] == []


def test_a_report_of_another_selection_verifies_as_it_was_built(sound: Path) -> None:
    write_files(sound, "last")
    assert verify(sound)[1] == []
    assert verify(sound, "best_val")[1] != []


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("README.md", "38.98 ± 0.73", "39.98 ± 0.73", "README.md, line "),
        ("table1.csv", "67.28,", "68.28,", "table1.csv, line 3: found '"),
        ("table1.json", '"mean": 67.28,', '"mean": 67.29,', "table1.json, line "),
        ("table1.tex", "O}(L^2)", "O}(L)", "table1.tex, line "),
        ("seeds.csv", ",diverged,", ",finished,", "seeds.csv, line "),
        ("pairs.csv", "\n", "\n\n", "pairs.csv, line 2: found '', the records give ''"),
    ],
)
def test_a_report_that_was_edited_does_not_verify(sound: Path, name: str, old: str, new: str, line: str) -> None:
    text = (sound / name).read_text()
    assert old in text
    (sound / name).write_text(text.replace(old, new, 1))
    [mismatch] = verify(sound)[1]
    assert mismatch.startswith(line)


def test_what_is_missing_does_not_verify(sound: Path) -> None:
    (sound / "seeds.csv").unlink()
    assert verify(sound)[1] == ["seeds.csv: not readable (FileNotFoundError); lra-report writes it"]


def test_a_record_that_contradicts_itself_does_not_verify(sound: Path) -> None:
    path = sound / "text/paper/simple/simple/seed1/record.json"
    change(path, test={"best_val": {"accuracy": 65.95}})
    for seed in golden.SEEDS:
        change(sound / f"text/paper/simple/simple/seed{seed}/record.json", config={"model": {"depth": 7}})
    write_files(sound)
    faults = verify(sound)[1]
    assert faults[0].startswith("text/paper/simple/simple/seed1/record.json: config_sha256 is not that of its config")
    assert faults[1].endswith("seed1/record.json: config.json beside it has model.depth: 6, the record 7")
    assert faults[2].endswith("seed1/record.json: test.best_val.accuracy is 65.95, but 1318 of 2000 is 65.9")
    assert len(faults) == 5 * 2 + 1


def test_a_renamed_folder_verifies(sound: Path) -> None:
    other = sound.rename(sound.with_name("another\nname"))
    assert verify(other)[1] == []


def test_every_fault_is_named(sound: Path) -> None:
    """Of the records, of what lies beside them and of the report, each in a line."""

    def place(seed: int, of: str = "matching/paper/simple/simple") -> Path:
        return sound / of / f"seed{seed}"

    resl, books = "matching/paper/simple/simple_resl", "books/paper/softmax/transformer"
    (place(1) / "config.json").unlink()
    (place(2) / "config.json").write_text('{"model": {"depth": 6}}')
    (place(4) / "predictions.npy").unlink()
    (place(5) / "metrics.jsonl").unlink()
    with open(place(1, resl) / "predictions.npy", "ab") as file:
        file.write(b"more")
    change(place(2, resl) / record.NAME, diagnostics={"class": {"0": {"examples": 1000, "correct": 1000}}})
    change(place(3, resl) / record.NAME, calibration=[{"confidence": 0.5, "accuracy": 50.0, "examples": 2000}])
    (place(4, resl) / "weights.safetensors").write_bytes(b"weights")
    change(place(4, resl) / record.NAME, files={"weights.safetensors": hashlib.sha256(b"other").hexdigest()})
    change(place(5, resl) / record.NAME, validation={"best": {"accuracy": 75.0, "correct": 1500}})
    (place(1, books) / "sample.txt").write_text("another")
    (place(2, books) / record.NAME).write_text("{")
    (sound / "index.html").write_text((sound / "index.html").read_text().replace("31.25", "21.25"))
    count, faults = verify(sound)
    assert count == 60 - 1
    expected = [
        f"{place(2, books)}/record.json: not a readable record: Expecting property name",
        f"{place(1, books)}/sample.txt: its SHA-256 is not that of its record",
        f"{place(1, resl)}/predictions.npy: its SHA-256 is not that of its record",
        f"{SIMPLE}1/record.json: config.json beside it is not readable: FileNotFoundError",
        f"{SIMPLE}2/record.json: config.json beside it has protocol: None, the record {{'softmax_scale': 'paper'}}",
        f"{SIMPLE}4/predictions.npy: missing, though its record lists it",
        f"{SIMPLE}5/metrics.jsonl: missing, though its record lists it",
        f"{RESL}2/record.json: diagnostics.class: all in all {{'examples': 1000, 'correct': 1000}}, its predictions",
        f"{RESL}2/record.json: diagnostics.class.0 is {{'examples': 1000, 'correct': 1000}}, its predictions have {{",
        f"{RESL}3/record.json: calibration: all in all {{'examples': 2000, 'correct': 1000}}, its predictions have {{",
        f"{RESL}4/record.json: weights.safetensors has another SHA-256 than it says",
        f"{RESL}5/record.json: validation.best is (75.0, 1.5) at step 900, metrics.jsonl has (73.65, 1.5)",
        "README.md, line ",
        "index.html, line ",
    ]
    for line in expected:
        assert [fault for fault in faults if line in fault], line


@pytest.mark.parametrize(("record_is_sound", "named"), [(True, 5), (False, 3)])
def test_few_places_of_a_page_are_named_beside_a_fault_of_a_record(
    sound: Path, record_is_sound: bool, named: int
) -> None:
    lines = (sound / "README.md").read_text().split("\n")
    lines[:10:2] = ["changed"] * 5
    (sound / "README.md").write_text("\n".join(lines))
    if not record_is_sound:
        (sound / f"{SIMPLE}1" / "config.json").unlink()
    of_page = [fault for fault in verify(sound)[1] if fault.startswith("README.md")]
    more = [] if record_is_sound else ["README.md: 2 more places are not what the records give"]
    assert len(of_page[:named]) == named
    assert of_page[named:] == more


def test_a_forged_accuracy_does_not_verify(sound: Path) -> None:
    """98 %, with every digest computed anew and the report built again, and without the predictions."""
    place = sound / f"{SIMPLE}1"
    (place / "predictions.npy").unlink()
    run = record.read(place / record.NAME)
    run["test"]["best_val"] |= {"accuracy": 98.0, "correct": 1960}
    record.write(place, run)
    with pytest.raises(UserError, match=r"predictions.npy: missing, though its record lists it"):
        write_files(sound)
    del run["files"]["predictions.npy"]
    record.write(place, run)
    write_files(sound)
    assert verify(sound)[1] == [f"{SIMPLE}1/record.json: it lists no predictions.npy"]


def test_weights_may_be_missing_where_a_folder_is_handed_on(sound: Path) -> None:
    change(sound / f"{SIMPLE}1" / record.NAME, files={"weights.safetensors": "0" * 64})
    write_files(sound)
    assert verify(sound)[1] == []


def test_a_count_that_the_predictions_contradict_does_not_verify(sound: Path) -> None:
    path = sound / "matching/paper/simple/simple/seed1/record.json"
    change(path, test={"best_val": {"accuracy": 67.5, "correct": 1350}})
    write_files(sound)
    [mismatch] = verify(sound)[1]
    assert mismatch.startswith("matching/paper/simple/simple/seed1/record.json: test.best_val.correct is 1350, ")
    assert mismatch.endswith("its predictions have 1340")


def test_the_command_verifies_figures_too(cli: Commands, small: Path) -> None:
    """One that is missing, one that was replaced, and one that was replaced where the list of digests was, too."""
    change(next(small.glob("listops/paper/mine/**/record.json")), seconds={"train": 77.0})  # so that costs are drawn
    complete(small)
    assert cli(command.main, str(small), "--selection", "last")[0] == 0
    assert cli(command.main, "--verify", str(small)) == (0, f"{small}: 6 records, 0 mismatches\n", "")
    page = small / "README.md"
    page.write_text(page.read_text().replace("6 runs", "7 runs"))
    missing, replaced, forged = sorted(small.glob("figures/*"))[:3]
    missing.unlink()
    replaced.write_bytes(forged.read_bytes())
    forged.write_bytes(b"forged")
    listed = json.loads((small / "table1.json").read_text())
    listed["figures"][forged.relative_to(small).as_posix()] = hashlib.sha256(b"forged").hexdigest()
    (small / "table1.json").write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
    code, out, err = cli(command.main, "--verify", str(small))
    assert (code, err) == (1, "")
    *lines, said = out.splitlines()
    assert set(lines[:3]) == {
        f"figures/{missing.name}: not there; lra-report draws it",
        f"figures/{replaced.name}: not the figure that lra-report drew",
        f"figures/{forged.name}: the records make another figure than table1.json lists",
    }
    assert re.match(r"README.md, line \d+: found '- 7 runs.*', the records give '- 6 runs.*'", lines[3])
    assert said == f"{small}: 6 records, 4 mismatches"


# Each fault that a reader could be misled by: how it is made, and the line that names it.


def forge_page(folder: Path) -> None:
    path = folder / "index.html"
    path.write_text(path.read_text().replace("37.50", "47.50"))


def delete_page(folder: Path) -> None:
    (folder / "index.html").unlink()


def forge_readme(folder: Path) -> None:
    path = folder / "README.md"
    path.write_text(path.read_text().replace("31.00", "41.00"))


def edit_config(folder: Path) -> None:
    path = folder / FAIR / "seed1/config.json"
    path.write_text(path.read_text().replace("0.005", "0.5"))


def delete_predictions(folder: Path) -> None:
    (folder / FAIR / "seed2/predictions.npy").unlink()


def delete_metrics(folder: Path) -> None:
    (folder / FAIR / "seed3/metrics.jsonl").unlink()


def drop_a_seed(folder: Path) -> None:
    """From what the sweep declares, sealed again."""
    path = folder / SWEEP
    cells = record.parse_declared(path.read_bytes())
    record.declare(path, [{**cell, "seeds": [seed for seed in cell["seeds"] if seed != 2]} for cell in cells])


def forge_a_class(folder: Path) -> None:
    """In a record, sealed again."""
    change(folder / OTHER / "seed1" / record.NAME, diagnostics={"class": {"0": {"examples": 2000, "correct": 1999}}})


def forge_a_total(folder: Path) -> None:
    change(folder / OTHER / "seed2" / record.NAME, test={"best_val": {"accuracy": 41.0, "correct": 820}})


FAIR, OTHER = "listops/paper/simple/simple", "listops/paper/softmax/transformer"
TAMPERED = {
    forge_page: "index.html, line ",
    delete_page: "index.html: not readable (FileNotFoundError)",
    forge_readme: "README.md, line ",
    edit_config: f"{FAIR}/seed1/record.json: config.json beside it has train.lr: 0.5, the record 0.005",
    delete_predictions: f"{FAIR}/seed2/predictions.npy: missing, though its record lists it",
    delete_metrics: f"{FAIR}/seed3/metrics.jsonl: missing, though its record lists it",
    drop_a_seed: f"{OTHER}/seed2/record.json: seed 2 was run, but sweep.json declares 1, 3",
    forge_a_class: f"{OTHER}/seed1/record.json: diagnostics.class.0 is {{'examples': 2000, 'correct': 1999}}",
    forge_a_total: f"{OTHER}/seed2/record.json: test.best_val.correct is 820, its predictions have 620",
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems of three seeds, with the report of it when packed."""
    folder = tmp_path_factory.mktemp("tampered") / "honest"
    for seed, (fair, other) in enumerate(((37.0, 31.5), (38.0, 31.0), (37.5, 30.5)), start=1):
        put(folder, seed, fair)
        put(folder, seed, other, attention="softmax", variant="transformer")
    for_all = {"seeds": [1, 2, 3]}
    fair = {"attention": "simple", "variant": "simple"}
    declare(folder, fair | for_all, {"attention": "softmax", "variant": "transformer"} | for_all)
    complete(folder)
    pack(folder)
    write_pages(folder)
    return folder


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "in folders"])
def test_every_tampering_is_named_and_so_are_two_at_once(honest: Path, tmp_path: Path, packed: bool) -> None:
    """With every digest sealed anew, in the receipts too; a page that is deleted cannot be forged."""
    tampers = list(TAMPERED)
    pairs = zip(tampers, [*tampers[1:], tampers[0]], strict=True)
    for number, chosen in enumerate([*((tamper,) for tamper in tampers), *pairs]):
        folder = Path(shutil.copytree(honest, tmp_path / str(number) / "honest"))
        unpack(folder)
        if not packed:
            write_pages(folder)
        for tamper in sorted(chosen, key=lambda tamper: tamper is delete_page):
            tamper(folder)
        if packed:
            pack(folder)
        faults = verify(folder)[1]
        expected = [TAMPERED[tamper] for tamper in chosen if not (tamper is forge_page and delete_page in chosen)]
        missed = [line for line in expected if not any(line in fault for fault in faults)]
        assert not missed, (chosen, faults)


def test_what_is_honest_verifies(honest: Path) -> None:
    assert verify(honest) == (6, [])


def test_records_that_cannot_share_a_column_do_not_hide_other_faults(honest: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(honest, tmp_path / "honest"))
    unpack(folder)
    edit_config(folder)
    change(folder / OTHER / "seed1" / record.NAME, task_version=7)
    faults = verify(folder)[1]
    assert [fault for fault in faults if fault.startswith(TAMPERED[edit_config])]
    assert [fault for fault in faults if "would share a cell of the table but differ in task_version" in fault]


def test_every_line_of_a_text_that_was_changed_is_named(honest: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(honest, tmp_path / "honest"))
    lines = (folder / "README.md").read_text().split("\n")
    changed = [lines[0] + "!", *lines[1:-3], "more", *lines[-3:]]
    (folder / "README.md").write_text("\n".join(changed))
    faults = verify(folder)[1]
    assert [fault.split(":")[0] for fault in faults] == ["README.md, line 1", f"README.md, line {len(changed) - 3}"]


# What a race and the choice of a checkpoint rest on: the evaluations of a run that solved its task at the fifth.

ACCURACIES, LOSSES = (41.0, 92.5, 90.5, 99.5, 99.5), (1.75, 0.5, 0.625, 0.25, 0.125)
RACE = {"goal": 99, "steps": 900, "eval_every": 13, "warmup": 7}
SOLVED = "listops/paper/simple/simple/seed1/record.json: "


def evaluations(accuracies: tuple[float, ...], losses: tuple[float | None, ...]) -> list[dict]:
    """Every 13 steps, with 11 of 17 tokens that are real, 3 seconds of training and 2 of evaluation before each."""
    same = {"tokens": 17, "tokens_real": 11, "train_seconds": 3.0, "seconds": 5.0}
    return [
        {"step": 13 * place, "val_accuracy": accuracy, "val_loss": loss, **same}
        for place, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), start=1)
    ]


def measured(line: dict) -> dict:
    """An evaluation of 2,000 examples as a record has it."""
    accuracy, loss = line["val_accuracy"], line["val_loss"]
    known = {"accuracy": accuracy, "correct": round(20 * accuracy), "examples": 2000, "step": line["step"]}
    return {**known, "loss": loss, "perplexity": None if loss is None else math.exp(loss)}


def followed(folder: Path, lines: list[dict], best: int, **changes: object) -> Path:
    """A finished run with these evaluations, of which `best` was chosen; tested, it scores as there."""
    chosen, last = measured(lines[best]), measured(lines[-1])
    path = put(folder, 1, chosen["accuracy"], **{"metric": "accuracy"} | changes)
    complete(folder)
    (path.parent / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(
        path,
        steps=lines[-1]["step"],
        validation={"best": chosen, "last": last},
        test={"best_val": chosen, "last": last},
        seconds={"train": 3.0 * len(lines), "evaluate": 2.0 * len(lines)},
        tokens={"computed": 17 * len(lines), "real": 11 * len(lines)},
        files=record.sha256(path.parent, METRICS),
    )
    return path


def solved(folder: Path) -> Path:
    reached = {
        "50": {"step": 26, "tokens": 34, "seconds": 10.0},
        "90": {"step": 26, "tokens": 34, "seconds": 10.0},
        "99": {"step": 52, "tokens": 68, "seconds": 20.0},
    }
    config = {"model": {"depth": 6}, "train": RACE, "protocol": {"scale": "length"}, "seed": 1}
    return followed(folder, evaluations(ACCURACIES, LOSSES), 3, config=config, ended="solved", reached=reached)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"validation": {"best": measured(evaluations(ACCURACIES, LOSSES)[1])}},
            f"validation.best is of step 26, but the best evaluation of {METRICS} is of 52",
        ),
        (  # as good, but not the first
            {"validation": {"best": measured(evaluations(ACCURACIES, LOSSES)[4])}},
            f"validation.best is of step 65, but the best evaluation of {METRICS} is of 52",
        ),
        (
            {"validation": {"last": measured(evaluations(ACCURACIES, LOSSES)[2])}},
            f"validation.last is of step 39, but the last evaluation of {METRICS} is of 65",
        ),
        (
            {"test": {"best_val": {"step": 26}}},
            f"test.best_val is of step 26, but the best evaluation of {METRICS} is of 52",
        ),
        ({"test": {"last": {"step": 64}}}, f"test.last is of step 64, but the last evaluation of {METRICS} is of 65"),
        ({"steps": 30}, f"steps is 30, but the last evaluation of {METRICS} is of 65"),
        ({"ended": "no progress"}, f"ended is 'no progress', but by its settings and {METRICS} it is 'solved'"),
        (
            {"reached": {"90": {"step": 13, "tokens": 17, "seconds": 5.0}}},
            "reached.90 is {'step': 13, 'tokens': 17, 'seconds': 5.0}, "
            f"{METRICS} has {{'step': 26, 'tokens': 34, 'seconds': 10.0}}",
        ),
        (
            {"reached": {"99": {"seconds": 19.0}}},
            "reached.99 is {'step': 52, 'tokens': 68, 'seconds': 19.0}, "
            f"{METRICS} has {{'step': 52, 'tokens': 68, 'seconds': 20.0}}",
        ),
        (
            {"reached": {"95": {"step": 52, "tokens": 68, "seconds": 20.0}}},
            f"reached.95 is {{'step': 52, 'tokens': 68, 'seconds': 20.0}}, {METRICS} has nothing",
        ),
        ({"tokens": {"computed": 8}}, f"tokens.computed is 8, but tokens of all lines of {METRICS} is 85"),
        ({"tokens": {"real": 85}}, f"tokens.real is 85, but tokens_real of all lines of {METRICS} is 55"),
        (
            {"seconds": {"train": 14.0, "evaluate": 11.0}},
            f"seconds.train is 14.0, but train_seconds of all lines of {METRICS} is 15",
        ),
        (
            {"seconds": {"evaluate": 1.0}},
            f"seconds.train + seconds.evaluate is 16.0, but seconds of all lines of {METRICS} is 25",
        ),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_what_the_evaluations_contradict_does_not_verify(tmp_path: Path, changes: dict, fault: str) -> None:
    """With every digest computed anew."""
    path = solved(tmp_path)
    assert verify_records(tmp_path) == (1, [])
    change(path, **changes)
    assert verify_records(tmp_path) == (1, [SOLVED + fault])


PLATEAU = (41.0, 41.5, 41.0, 41.5, 42.0, 41.0)  # nothing better for two evaluations, then a cooldown of thirteen steps
PATIENT = RACE | {"patience": 2, "progress": 0.05, "cooldown": 13}


def given_up(folder: Path, accuracies: tuple[float, ...], **changes: object) -> Path:
    """A run with these evaluations, whose settings end it at step 52, without progress since the first."""
    lines = evaluations(accuracies, (0.5,) * len(accuracies))
    config = {"model": {"depth": 6}, "train": PATIENT, "protocol": {"scale": "length"}, "seed": 1}
    how = {"config": config, "ended": "no progress", "reached": {}} | changes
    return followed(folder, lines, accuracies.index(max(accuracies)), **how)


@pytest.mark.parametrize(
    ("count", "changes", "faults"),
    [
        (4, {}, []),
        (4, {"ended": "steps"}, ["ended is 'steps', but by its settings and metrics.jsonl it is 'no progress'"]),
        (3, {}, ["by its settings the training ends after step 39, but metrics.jsonl ends at step 39"]),
        (5, {}, ["by its settings the training ends at step 52, no progress, but metrics.jsonl ends at step 65"]),
    ],
)
def test_a_training_ends_where_its_settings_end_it(
    tmp_path: Path, count: int, changes: dict, faults: list[str]
) -> None:
    given_up(tmp_path, PLATEAU[:count], **changes)
    assert verify_records(tmp_path) == (1, [SOLVED + fault for fault in faults])


def test_a_race_says_how_it_ended_and_is_looked_at_as_often_as_it_says(tmp_path: Path) -> None:
    path = given_up(tmp_path, PLATEAU[:4])
    run = record.read(path)
    del run["ended"], run["reached"]
    record.write(path.parent, run)
    assert verify_records(tmp_path)[1] == [
        SOLVED + "ended is None, but by its settings and metrics.jsonl it is 'no progress'",
        SOLVED + "train.goal is 99, but reached is not there",
    ]


def test_a_paused_run_with_evaluations_verifies(tmp_path: Path) -> None:
    """Its record has no seconds and no result yet."""
    path = put(tmp_path, 1, None, status="paused", reason="SIGTERM")
    lines = evaluations(PLATEAU[:2], (0.5,) * 2)
    (path.parent / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    complete(tmp_path)
    assert "seconds" not in record.read(path)
    assert verify_records(tmp_path) == (1, [])


def test_every_evaluation_of_a_training_is_there(tmp_path: Path) -> None:
    config = {"model": {"depth": 6}, "train": {"steps": 39, "eval_every": 13, "warmup": 7}, "seed": 1}
    lines = evaluations(PLATEAU[:3], (0.5,) * 3)
    followed(tmp_path, lines, 1, config=config)
    assert verify_records(tmp_path) == (1, [])
    fewer = tmp_path / "fewer"
    followed(fewer, [lines[0], lines[2]], 0, config=config)
    fault = "train.eval_every is 13, but metrics.jsonl has 0 evaluations at step 26"
    assert verify_records(fewer) == (1, [SOLVED + fault])


def test_what_was_reached_may_not_be_left_out_nor_a_curve_be_empty(tmp_path: Path) -> None:
    path = solved(tmp_path)
    run = record.read(path)
    del run["reached"]["50"]
    record.write(path.parent, run)
    [fault] = verify_records(tmp_path)[1]
    assert fault.startswith(SOLVED + f"reached.50 is not there, {METRICS} has {{'step': 26, ")
    (path.parent / METRICS).write_text("")
    change(path, files=record.sha256(path.parent, METRICS))
    assert verify_records(tmp_path)[1] == [SOLVED + f"{METRICS} has no evaluation"]


@pytest.mark.parametrize(
    ("accuracies", "where"),
    [((99.0, 98.5, 99.0), "after step 39"), ((99.0, 99.5, 98.0, 99.0, 99.5), "at step 26, solved")],
)
def test_a_training_ends_where_its_task_is_solved(tmp_path: Path, accuracies: tuple[float, ...], where: str) -> None:
    """One evaluation at the goal does not solve it, and none comes after two."""
    lines = evaluations(accuracies, (0.5,) * len(accuracies))
    config = {"model": {"depth": 6}, "train": RACE, "seed": 1}
    followed(tmp_path, lines, accuracies.index(max(accuracies)), config=config, ended="solved")
    [fault] = [line for line in verify_records(tmp_path)[1] if "by its settings" in line]
    last = lines[-1]["step"]
    assert fault == f"{SOLVED}by its settings the training ends {where}, but metrics.jsonl ends at step {last}"


def test_the_best_of_a_language_model_is_the_first_of_the_least_finite_loss(tmp_path: Path) -> None:
    """Whatever its accuracy; a loss that is not finite stands as null."""
    lines = evaluations((10.0, 20.0, 30.0, 40.0, 50.0), (None, 2.5, 1.5, 1.5, 2.0))
    path = followed(tmp_path, lines, 2, metric="perplexity")
    assert verify_records(tmp_path) == (1, [])
    change(path, validation={"best": measured(lines[3])}, test={"best_val": measured(lines[3])})
    faults = [f"{part} is of step 52, but the best evaluation" for part in ("validation.best", "test.best_val")]
    actual = verify_records(tmp_path)[1]
    assert [line.removeprefix(SOLVED).partition(" of metrics.jsonl")[0] for line in actual] == faults


def test_lines_that_no_training_writes_do_not_verify(tmp_path: Path) -> None:
    path = solved(tmp_path)
    (path.parent / METRICS).write_text('{"step": 13, "val_accuracy": "good"}\n')
    change(path, files=record.sha256(path.parent, METRICS))
    [fault] = verify_records(tmp_path)[1]
    assert fault.startswith(SOLVED + f"{METRICS} is not what a run measured: val_accuracy: ")
