"""The page over many results folders."""

import os
from pathlib import Path

import pytest
from golden.folder import make
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.records import record
from lra.records.run_files import RunFiles
from lra.report.overview import write_overview


def test_an_overview_links_to_the_findings_and_has_a_row_for_each_folder(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    (tmp_path / "two" / "README.md").write_text("# its report")
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "README.md").write_text("# Steps | beside\n\nmore")
    (tmp_path / "findings.md").write_text("# Results\n\nWhat we saw.\n\n\n")
    text = write_overview(tmp_path).read_text()
    assert "\n\nWhat these runs show is in [findings.md](findings.md).\n\n## The records\n" in text
    assert "What we saw." not in text
    assert text.count("/README.md) | ") == 2
    records = {path.parent: record.read(path) for path in (tmp_path / "one").rglob(record.NAME)}
    finished = sum(one["status"] == "finished" for one in records.values())
    cells = RunFiles(tmp_path / "one").declared("sweep.json")
    expected = {tmp_path / "one" / cell["folder"] / f"seed{seed}" for cell in cells for seed in cell["seeds"]}
    row = next(line for line in text.splitlines() if line.startswith("| [one]"))
    assert f"| {finished}/{len(expected | set(records))} |" in row
    assert text.endswith("- [speed/README.md](speed/README.md): Steps \\| beside\n")
    assert write_overview(tmp_path).read_text() == text


def test_an_overview_leaves_out_what_cannot_be_read_and_says_so(tmp_path: Path, cli: Commands) -> None:
    make(tmp_path / "one")
    for name in ("damaged", "fifo", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("null")
    os.mkfifo(tmp_path / "fifo" / "sweep.json")
    (tmp_path / "a.md").mkdir()
    (tmp_path / "a](b) <i>\n.md").write_text("# <script> \x1b[31m `x`\n")
    code, out, err = cli(command.main, str(tmp_path), "--overview")
    lines = [line for line in err.splitlines() if "error" in line]
    assert (code, len(lines)) == (2, 4)
    assert "damaged/sweep.json: not what a sweep declares" in lines[0]
    assert "fifo/sweep.json: not what a sweep declares: expected a regular file, found a FIFO" in lines[2]
    assert "| [one](one/README.md) |" in out
    assert out.endswith(r"- [a\](b) \<i>\\n.md](a%5D%28b%29%20%3Ci%3E%0A.md): \<script> \\x1b[31m \`x\`" + "\n\n")


@pytest.mark.parametrize("options", [(), ("--overview",), ("--verify",), ("--once",)])
def test_nothing_to_report_is_one_line(tmp_path: Path, cli: Commands, options: tuple[str, ...]) -> None:
    (tmp_path / "junk.txt").write_text("junk")
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, out, err = cli(command.main, str(folder), *options)
        assert (code, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith(f"lra-report: error: {folder}: no ")


def test_a_folder_without_results_folders_has_no_overview(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder in it has a sweep.json"):
        write_overview(tmp_path)
    assert not list(tmp_path.iterdir())
