"""What is no record is named by file and key, once and in a line; all others are reported."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from furnish import furnish
from markdown_it import MarkdownIt
from reports import change, complete, declare, put
from support import Commands

from lra.cli import report as command
from lra.core.console import say
from lra.core.errors import UserError, printable
from lra.core.files import digest
from lra.core.paths import PACKAGE
from lra.records import record
from lra.records.names import RECEIPTS, SWEEP
from lra.records.run_files import RunFiles
from lra.report import Report
from lra.report.read import schema
from lra.report.read.records import load
from lra.report.render import figures

BAD: list[tuple[dict[str, Any], str]] = [
    ({"test": None}, "test: "),
    ({"test": {}}, "finished, but it has no test result for best_val"),
    ({"test": {"best_val": None}}, "test.best_val: "),
    ({"test": {"best_val": {"accuracy": -5.0}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"accuracy": 100.5}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"accuracy": 1e308}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"accuracy": "high"}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"accuracy": True}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"accuracy": None}}}, "test.best_val.accuracy: "),
    ({"test": {"best_val": {"correct": -1}}}, "test.best_val.correct: "),
    ({"test": {"best_val": {"correct": 2001}}}, "test.best_val: expected at most all of 2000 examples"),
    ({"test": {"best_val": {"examples": 0}}}, "test.best_val.examples: "),
    ({"test": {"best_val": {"loss": "low"}}}, "test.best_val.loss: "),
    ({"test": {"best_val": {"step": 1.5}}}, "test.best_val.step: "),
    ({"validation": None}, "validation: "),
    ({"validation": {"best": None}}, "validation.best: "),
    ({"best_val": None, "validation": {"best": {"accuracy": []}}}, "validation.best.accuracy: "),
    ({"provenance": None}, "provenance: "),
    ({"provenance": {"packages": []}}, "provenance.packages: "),
    ({"provenance": {"commit": 7}}, "provenance.commit: "),
    ({"provenance": {"threads": 10**20}}, "provenance.threads: "),
    ({"config": []}, "config: "),
    ({"config": {"train": 5}}, "config.train: "),
    ({"config": {"init": "file"}}, "config.init: "),
    ({"config": {"model": 3}}, "config.model: "),
    ({"config": {"attention": None}}, "config.attention: "),
    ({"calibration": [1]}, "calibration.0: "),
    ({"calibration": [{"confidence": 2.0, "accuracy": 1.0, "examples": 3}]}, "calibration.0.confidence: "),
    ({"calibration": {}}, "calibration: "),
    ({"diagnostics": {"length": 5}}, "diagnostics.length: "),
    ({"diagnostics": {"length": {"1": {"examples": 0, "correct": 0}}}}, "diagnostics.length.1.examples: "),
    ({"baselines": {"majority class": "17"}}, "baselines.majority class: "),
    ({"baselines": {"majority class": 1e308}}, "baselines.majority class: "),
    ({"seconds": {"train": -1.0}}, "seconds.train: "),
    ({"seconds": {"train": 1e308}}, "seconds.train: "),
    ({"tokens": 5}, "tokens: "),
    ({"tokens_per_second": "fast"}, "tokens_per_second: "),
    ({"parameters": -1}, "parameters: "),
    ({"peak_memory_bytes": "much"}, "peak_memory_bytes: "),
    ({"resumes": None}, "resumes: "),
    ({"steps": None}, "steps: "),
    ({"files": {"../../other/record.json": "0"}}, "files."),
    ({"files": []}, "files: "),
    ({"reason": 5}, "reason: "),
    ({"seed": True}, "seed: "),
    ({"seed": "one"}, "seed: "),
    ({"seed": 10**30}, "seed: "),
    ({"metric": "bleu"}, "metric: "),
    ({"metric": ["accuracy"]}, "metric: "),
    ({"status": "done"}, "status: "),
    ({"selection": "luck"}, "selection: "),
    ({"settings": None}, "settings: "),
    ({"task": ""}, "task: "),
    ({"task": ["listops"]}, "task: "),
    ({"task_version": "1"}, "task_version: "),
    ({"attention": None}, "attention: "),
]


def spoil(path: Path, changes: dict[str, Any]) -> None:
    """Record them as a run would have, with a SHA-256."""
    if any(isinstance(value, dict) and value for value in changes.values()):
        change(path, **changes)
    else:
        record.write(path.parent, record.read(path) | changes)


@pytest.mark.parametrize(("changes", "key"), BAD, ids=range(len(BAD)))
def test_a_record_out_of_its_schema_is_named_by_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    put(tmp_path, 1, 37.0)
    path = put(tmp_path, 2, 38.0)
    spoil(path, changes)
    faults: list[str] = []
    [cell] = load(RunFiles(tmp_path), tell=faults.append)
    assert cell.scores() == {1: 37.0}
    [fault] = faults
    assert fault.startswith(f"{path}: not a record: {key}")
    assert printable(fault) == fault
    assert len(fault) < len(str(path)) + 200
    with pytest.raises(UserError):
        load(RunFiles(tmp_path))


@pytest.mark.parametrize(
    "key", ["status", "config", "provenance", "seed", "test", "settings", "metric", "seconds", "steps"]
)
def test_a_key_that_is_missing_is_named(tmp_path: Path, key: str) -> None:
    path = put(tmp_path, 1, 37.0)
    record.write(path.parent, {name: value for name, value in record.read(path).items() if name != key})
    with pytest.raises(UserError, match=rf"not a record: .*{key}"):
        load(RunFiles(tmp_path))


def test_records_that_cannot_be_read_are_left_out_and_said(
    cli: Commands, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each, exit code 2, and the report of the others, which says so."""
    monkeypatch.setattr(figures, "write_figures", lambda folder, sections: [])
    spoil(put(small, 6, 36.0), {"test": None})
    put(small, 7, 36.0).write_text('{"a":' * 1000 + "1" + "}" * 1000)
    for seed, make in ((8, Path.mkdir), (9, os.mkfifo)):
        path = put(small, seed, 36.0)
        path.unlink()
        make(path)
    (small / "loop").symlink_to(small)
    (small / "other").mkdir()
    (small / "other" / "sweep.json").write_text("null")
    code, out, err = cli(command.main, str(small))
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("lra-report: error: ")]
    names = [f"seed{seed}/record.json: not a" for seed in (6, 7, 8, 9)] + ["other/sweep.json: not what a sweep decl"]
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert name in line
    assert "**Left out: 5 damaged files;" in out
    assert out.strip() in (small / "README.md").read_text()
    assert "| Simple | O(L) | 38.00 | 37.50 ± 0.50 |" in (small / "details.md").read_text()


@pytest.mark.parametrize("cells", [None, {}, [1], [{}], [{"seeds": "1"}], [{"seeds": [1.5]}], [{"folder": "../x"}]])
def test_a_sweep_out_of_its_schema_is_named_by_key(tmp_path: Path, cells: Any) -> None:
    put(tmp_path, 1, 37.0)
    declare(tmp_path, {"attention": "simple", "variant": "simple", "seeds": [1]})
    if isinstance(cells, list) and isinstance(cells[0], dict):
        whole = RunFiles(tmp_path).declared("sweep.json")[0]
        cells = [whole | cells[0] if cells[0] else cells[0]]
    record.declare(tmp_path / "sweep.json", cells)
    with pytest.raises(UserError, match=r"sweep.json: not what a sweep declares: cells") as caught:
        load(RunFiles(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_beside_a_record_that_is_not_its_own_is_left_out(tmp_path: Path) -> None:
    """The record itself stands."""
    put(tmp_path, 1, 37.0)
    complete(tmp_path)
    path = next(tmp_path.rglob("predictions.npy"))
    path.write_bytes(path.read_bytes() + b"more")
    faults: list[str] = []
    report = Report(tmp_path, tell=faults.append)
    assert faults == [f"{path}: its SHA-256 is not that of its record"]
    [row] = report.sections[0].columns[0].rows
    assert (row.summary.mean, row.predictions, list(row.curves)) == (37.0, {}, [1])


def test_every_kept_record_is_in_the_schema() -> None:
    faults: list[str] = []
    results = PACKAGE.parent / "results"
    folders = sorted({path.parent for name in (SWEEP, RECEIPTS) for path in results.glob(f"*/{name}")})
    assert len(folders) > 10
    assert sum(len(cell.runs) for folder in folders for cell in load(RunFiles(folder), tell=faults.append)) > 400
    assert faults == []


# Columns


def test_a_task_that_gets_its_name_from_its_data_has_one_column(tmp_path: Path) -> None:
    """A sweep declares the name that it has before; so does the record of a run that failed before the data were
    read."""
    final = "listops (files, 50/5/5 examples)"
    declare(
        tmp_path,
        {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3], "task_name": "listops (files)"},
        {"attention": "softmax", "variant": "transformer", "seeds": [1, 2], "task_name": "listops (files)"},
        {"attention": "linear", "variant": "transformer", "seeds": [1], "task_name": "listops (files)"},
    )
    put(tmp_path, 1, 37.0, task=final)
    put(tmp_path, 2, 38.0, task=final)
    for seed, attention, variant in ((3, "simple", "simple"), (2, "linear", "transformer")):
        path = put(tmp_path, seed, None, task="listops (files)", attention=attention, variant=variant)
        change(path, provenance={"data_sha256": None})
    [section] = Report(tmp_path).sections
    [column] = section.columns
    assert column.task == final
    states = {row.name: [row.cell.status(seed) for seed in row.cell.seeds()] for row in column.rows}
    assert states == {
        "Transformer": ["missing", "missing"],
        "Linear ELU": ["missing", "failed"],
        "Simple": ["finished", "finished", "failed"],
    }


def test_a_declared_task_with_two_names_keeps_its_own(tmp_path: Path) -> None:
    """Where it is not known which of them a cell without runs will have."""
    systems = ({"attention": name, "variant": "simple", "seeds": [1]} for name in ("simple", "linear", "luna"))
    declare(tmp_path, *systems)
    put(tmp_path, 1, 37.0, task="listops (5 examples)")
    put(tmp_path, 1, 37.0, task="listops (7 examples)", attention="linear")
    tasks = [column.task for section in Report(tmp_path).sections for column in section.columns]
    assert sorted(tasks) == ["listops", "listops (5 examples)", "listops (7 examples)"]


# Names

EVIL = (
    "$\\frac{ \x1b[31m\n# heading\n[a](http://b) http://c <script>alert(1)</script> ``` _x | \u202e &lt; "
    "\\input{/etc/passwd}"
)


def test_names_are_printable_and_stay_in_their_line() -> None:
    r"""The reference is Python's own literal, in which these characters stand so."""
    for character in ("\n", "\r", "\x1b", "\x00", "\x7f", "\x9b", "\u2028", "\u202e", "\ud800"):
        assert printable(f"a{character}b") == f"a{character}b".encode("unicode_escape").decode()
    for text in ("", "a\\nb", "Nyströmformer √ ² 50 % — 🙂"):
        assert printable(text) == text
    assert str(UserError("a\nb\x1b")) == r"a\nb\x1b"
    assert schema.cleaned({"a\n": ["\x1b", 1, None, {"b": "\r"}]}) == {r"a\n": [r"\x1b", 1, None, {"b": r"\r"}]}


def named(root: Path, evil: str) -> Path:
    """A results folder in which every name ends so."""
    for seed in (1, 2):
        put(root, seed, 37.0 + seed)
    put(root, 2, 30.0, attention="_softmax", variant="transformer")
    furnish(root)
    for path in sorted(root.rglob(record.NAME)):
        run = record.read(path)
        names = ("task", "attention", "variant", "protocol")
        run |= {name: f"{run[name]}{evil}" for name in names} | {"reason": evil, "settings": {evil: evil}}
        for name in ("baselines", "diagnostics"):
            run[name] = {f"{key}{evil}": value for key, value in run[name].items()}
        for group in run["diagnostics"].values():
            group[evil] = {"examples": 7, "correct": 5}
        run["config"] = {"model": {evil: evil}, "train": {"lr": evil}}
        run["provenance"] |= dict.fromkeys(("commit", "cpu", "device", "precision", "python"), evil)
        run["provenance"] |= {"packages": {"torch": evil}, "config_sha256": digest(run["config"])}
        path.write_text(json.dumps({"sha256": digest(run), **run}))
    quoted = json.dumps(evil)
    (root / "published.yaml").write_text(
        f"systems: [{{name: {quoted}, attention: simple, complexity: 'O(\\input{{/etc/passwd}})'}}]\n"
        f"sources: [{{name: {quoted}, reference: {quoted}, numbers: {quoted}, best: {{Simple: {{{quoted}: 3.0}}}}}}]\n"
    )
    return root


def test_names_are_text_in_every_format(tmp_path: Path) -> None:
    """Markdown by the reading of another library; LaTeX by the commands that stand in it."""
    report = Report(named(tmp_path / "evil <script>\n", EVIL))
    files = report.files({"figures/a.svg": "0"}) | {"index.html": report.page(["figures/a.svg"])}
    for name, text in files.items():
        assert all(line.isprintable() for line in text.split("\n")), name
        text.encode()
    paths = {run["path"] for cell in report.cells for run in cell.runs.values()}
    for name, targets in (("README.md", {"details.md", "index.html"}), ("details.md", paths)):
        tokens = MarkdownIt("commonmark").enable("table").parse(files[name])
        inline = [child for token in tokens for child in token.children or ()]
        assert not [token for token in (*tokens, *inline) if token.type in ("html_block", "html_inline")]
        links = {token.attrs["href"] for token in inline if token.type == "link_open"}
        assert {unquote(link) for link in links} == targets
        lines = files[name].splitlines()
        assert not [line for line in lines if line.startswith("| ") and "http://" in line]
        titles = [line for line in lines if line.startswith("#")]
        assert len([token for token in tokens if token.type == "heading_open"]) == len(titles)
        assert not [line for line in titles if line.startswith("# heading")]
    put(tmp_path / "plain", 1, 37.0)
    plain = Report(tmp_path / "plain").files({})
    known = set(re.findall(r"\\[A-Za-z]+", plain["table1.tex"]))
    used = set(re.findall(r"\\[A-Za-z]+", files["table1.tex"]))
    assert used - known <= {r"\textbackslash", r"\textasciitilde", r"\textasciicircum"}


def test_names_are_no_formulas_in_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they vanish from a legend, as names that begin with an underscore do; long ones leave room for panels."""
    folder = named(tmp_path, r" $\frac{$ _")
    monkeypatch.setattr(figures, "DRAWINGS", {"diagnostics": figures.DRAWINGS["diagnostics"]})
    drawn = figures.write_figures(folder, Report(folder).columns)
    assert {path.name.split("_")[0] for path in drawn} == {"diagnostics"}
    assert figures.plain("_a$b$") == r" _a\$b\$"
    assert len(figures.plain(500 * "x")) < 70


def test_what_is_said_does_nothing_to_a_terminal(capsys: pytest.CaptureFixture) -> None:
    say("a \x1b[31m\x07 b\nc\r")
    assert capsys.readouterr().err == "a \\x1b[31m\\x07 b\nc\\r\n"
