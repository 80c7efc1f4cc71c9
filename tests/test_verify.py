"""The receipts of a report: what verifies, and what does not."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from golden import folder as golden
from reports import change, complete
from support import Commands

from lra.cli import report as command
from lra.records import record
from lra.report import Report
from lra.report import verify as receipts
from lra.report.verify import verify

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
        ("README.md", "**38.98 ± 0.73**", "**39.98 ± 0.73**", "README.md, line "),
        ("table1.csv", "67.28,", "68.28,", "table1.csv, line 3: found '"),
        ("table1.json", '"mean": 67.28,', '"mean": 67.29,', "table1.json, line "),
        ("table1.tex", "O}(L^2)", "O}(L)", "table1.tex, line "),
        ("seeds.csv", ",diverged,", ",finished,", "seeds.csv, line "),
        ("pairs.csv", "\n", "\n\n", "pairs.csv, line 2: found '', the records give 'paper,"),
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
    one = sound / "text/paper/simple/simple/seed1/record.json"
    change(one, test={"best_val": {"accuracy": 65.95}})
    for seed in golden.SEEDS:
        change(sound / f"text/paper/simple/simple/seed{seed}/record.json", config={"model": {"depth": 7}})
    write_files(sound)
    found = verify(sound)[1]
    assert found[0].startswith("text/paper/simple/simple/seed1/record.json: config_sha256 is not that of its config")
    assert found[1].endswith("seed1/record.json: config.json beside it has model.depth: 6, the record 7")
    assert found[2].endswith("seed1/record.json: test.best_val.accuracy is 65.95, but 1318 of 2000 is 65.9")
    assert len(found) == 5 * 2 + 1


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
    count, found = verify(sound)
    assert count == 60 - 1
    expected = [
        f"{place(2, books)}/record.json: not a readable record: Expecting property name",
        f"{place(1, books)}/sample.txt: its SHA-256 is not that of its record",
        f"{place(1, resl)}/predictions.npy: its SHA-256 is not that of its record",
        f"{SIMPLE}1/record.json: config.json beside it is not readable: FileNotFoundError",
        f"{SIMPLE}2/record.json: config.json beside it has protocol: None, the record {{'softmax_scale': 'paper'}}",
        f"{SIMPLE}4/record.json: predictions.npy, which it lists, is not beside it",
        f"{SIMPLE}5/record.json: metrics.jsonl, which it lists, is not beside it",
        f"{RESL}2/record.json: diagnostics.class: all in all {{'examples': 1000, 'correct': 1000}}, its predictions",
        f"{RESL}2/record.json: diagnostics.class.0 is {{'examples': 1000, 'correct': 1000}}, its predictions have {{",
        f"{RESL}3/record.json: calibration: all in all {{'examples': 2000, 'correct': 1000}}, its predictions have {{",
        f"{RESL}4/record.json: weights.safetensors has another SHA-256 than it says",
        f"{RESL}5/record.json: validation.best is (75.0, 1.5) at step 900, metrics.jsonl has (73.65, 1.5)",
        "README.md, line ",
        "index.html, line ",
    ]
    for line in expected:
        assert [fault for fault in found if fault.startswith(line)], line


@pytest.mark.parametrize("listed", [True, False])
def test_a_forged_accuracy_does_not_verify(sound: Path, listed: bool) -> None:
    """98 %, with every digest computed anew and the report built again, and without the predictions."""
    place = sound / f"{SIMPLE}1"
    (place / "predictions.npy").unlink()
    run = record.read(place / record.NAME)
    run["test"]["best_val"] |= {"accuracy": 98.0, "correct": 1960}
    if not listed:
        del run["files"]["predictions.npy"]
    record.write(place, run)
    write_files(sound)
    reason = "predictions.npy, which it lists, is not beside it" if listed else "it lists no predictions.npy"
    assert verify(sound)[1] == [f"{SIMPLE}1/record.json: {reason}"]


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
    assert re.match(r"README.md, line \d+: found \"- 7 runs.*\", the records give \"- 6 runs.*\"", lines[3])
    assert said == f"{small}: 6 records, 4 mismatches"
