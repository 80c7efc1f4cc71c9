"""The receipts of a report: what verifies, and what does not."""

import re
from pathlib import Path

import pytest
from golden import folder as golden
from reports import change, files_of
from support import Commands

from lra.report import __main__ as command
from lra.report.verify import verify


def write_files(folder: Path) -> None:
    for name, text in files_of(folder).items():
        (folder / name).write_text(text)


def test_a_report_verifies_against_its_records(whole: Path) -> None:
    write_files(whole)
    assert verify(whole)[1] == []


def test_a_report_of_another_selection_verifies_as_it_was_built(whole: Path) -> None:
    for name, text in files_of(whole, "last").items():
        (whole / name).write_text(text)
    assert verify(whole)[1] == []
    assert verify(whole, "best_val")[1] != []


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
def test_a_report_that_was_edited_does_not_verify(whole: Path, name: str, old: str, new: str, line: str) -> None:
    write_files(whole)
    text = (whole / name).read_text()
    assert old in text
    (whole / name).write_text(text.replace(old, new, 1))
    [mismatch] = verify(whole)[1]
    assert mismatch.startswith(line)


def test_what_is_missing_does_not_verify(whole: Path) -> None:
    write_files(whole)
    (whole / "seeds.csv").unlink()
    assert verify(whole)[1] == ["seeds.csv: not readable (FileNotFoundError); lra-report writes it"]


def test_a_record_that_contradicts_itself_does_not_verify(whole: Path) -> None:
    one = whole / "text/paper/simple/simple/seed1/record.json"
    change(one, test={"best_val": {"accuracy": 65.95}})
    for seed in golden.SEEDS:
        change(whole / f"text/paper/simple/simple/seed{seed}/record.json", config={"model": {"depth": 7}})
    write_files(whole)
    found = verify(whole)[1]
    assert found[0].startswith("text/paper/simple/simple/seed1/record.json: config_sha256 is not that of its config")
    assert found[1].endswith("seed1/record.json: test.best_val.accuracy is 65.95, but 1318 of 2000 is 65.9")
    assert len(found) == 5 + 1


def test_a_count_that_the_predictions_contradict_does_not_verify(whole: Path) -> None:
    path = whole / "matching/paper/simple/simple/seed1/record.json"
    change(path, test={"best_val": {"accuracy": 67.5, "correct": 1350}})
    write_files(whole)
    [mismatch] = verify(whole)[1]
    assert mismatch.startswith("matching/paper/simple/simple/seed1/record.json: test.best_val.correct is 1350, ")
    assert mismatch.endswith("its predictions have 1340")


def test_the_command_verifies(cli: Commands, small: Path) -> None:
    assert cli(command.main, str(small), "--selection", "last")[0] == 0
    assert cli(command.main, "--verify", str(small)) == (0, f"{small}: 6 records, 0 mismatches\n", "")
    page = small / "README.md"
    page.write_text(page.read_text().replace("6 runs", "7 runs"))
    code, out, err = cli(command.main, "--verify", str(small))
    assert (code, err) == (1, "")
    assert re.match(r"README.md, line \d+: found \"- 7 runs.*\", the records give \"- 6 runs.*\"", out)
    assert out.endswith("6 records, 1 mismatches\n")
