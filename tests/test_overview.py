"""The page over many results folders."""

from pathlib import Path

import pytest
from golden.folder import make

from lra import record
from lra.errors import UserError
from lra.report.overview import write_overview


def test_an_overview_holds_the_findings_and_a_row_for_each_folder(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    (tmp_path / "two" / "README.md").write_text("# its report")
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "README.md").write_text("# Steps | beside\n\nmore")
    (tmp_path / "findings.md").write_text("# Results\n\nWhat we saw.\n\n\n")
    text = write_overview(tmp_path).read_text()
    assert text.startswith("# Results\n\nWhat we saw.\n\n## The records\n")
    assert text.count("/README.md) | ") == 2
    records = {path.parent: record.read(path) for path in (tmp_path / "one").rglob(record.NAME)}
    finished = sum(one["status"] == "finished" for one in records.values())
    cells = record.declared(tmp_path / "one" / "sweep.json")
    expected = {tmp_path / "one" / cell["folder"] / f"seed{seed}" for cell in cells for seed in cell["seeds"]}
    row = next(line for line in text.splitlines() if line.startswith("| [one]"))
    assert f"| {finished}/{len(expected | set(records))} |" in row
    assert text.endswith("- [speed/README.md](speed/README.md): Steps \\| beside\n")
    assert write_overview(tmp_path).read_text() == text


def test_a_folder_without_results_folders_has_no_overview(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder in it has a sweep.json"):
        write_overview(tmp_path)
    assert not list(tmp_path.iterdir())
