"""Names, records and files that were made to do harm stand in reports as text, and run and reach nothing."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from faults import harmless
from faults.hostile import TEXTS, results, rewrite
from faults.payloads import MARK
from faults.runs import TINY
from faults.trial import WELL, cases, tried
from lra.records.run_files import RunFiles
from lra.report.check.overview import is_over_folders, overview, submit, verified, write_board
from lra.report.read.records import predictions
from lra.report.render.cards import page as cards
from lra.report.render.exports import as_csv
from lra.report.render.figures import write_figures
from lra.report.render.layout import address
from lra.report.render.markup import escape
from reports import complete, declare, put
from support import Commands, composed

from lra.cli import check
from lra.config import configure
from lra.config.settings import Settings, settings_of
from lra.core.errors import UserError
from lra.init import read_of_run
from lra.records import record
from lra.records.names import PAGE, PREDICTIONS, README, WEIGHTS
from lra.report import Report
from lra.tools import explain
from lra.tools.rerun import find_kept_run, measurements, rerun

BAD = {
    "html": [
        "<p><zq7x>", "<p onclick=x>", "<a href='javascript:zq7x'>", "<script>zq7x</script>", "<p><!--zq7x-->",
        "<a href='java\tscript:zq7x'>", "<img src='//zq7x'>", "<style>zq7x</style>", "<a href='../zq7x'>",
        "<script type='application/json'>{zq7x</script>",
    ],
    "md": ["<zq7x>", "[a](javascript:zq7x)", "# zq7x", "_zq7x_", "![zq7x](b)", "| a |\n| --- |\n| zq7x | b |"],
    "tex": ["\n\\input{zq7x}", "\n\\textbf{zq7x", "\n}zq7x{", "\nzq7x % a", "\n~", "\n^^5c", "\n\x1b"],
    "csv": ["a\n=zq7x\n", "a\n@zq7x\n", "a\n+cmd\n", "a,b\nc\n"],
    "svg": ["<svg onload='zq7x'/>", "<svg><zq7x/></svg>", "<svg>"],
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_the_judges_see_what_is_no_text(kind: str, tmp_path: Path) -> None:
    unseen = []
    for number, text in enumerate(BAD[kind]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / f"page.{kind}").write_text(text)
        if not harmless.faults_in(tmp_path / str(number)):
            unseen.append(text)
    assert unseen == []


def test_every_text_stands_in_reports_as_text(tmp_path: Path) -> None:
    """In names, groups and provenance; but for half a character, with which no record is read."""
    folder = tmp_path / "runs"
    for number, text in enumerate(TEXTS[name] for name in TEXTS if name != "half a character"):
        group = {f"{text} {place}": {"examples": 9, "correct": place} for place in (1, 2)}
        changes = {"attention": text, "variant": "transformer", "settings": {text[:40]: text[:40]}}
        path = put(folder, number, 30.0, attention=f"a{number}")
        rewrite(path, **changes, row={"name": text, "complexity": text}, diagnostics={"kind": group})
        provenance = record.read(path)["provenance"]
        rewrite(
            path,
            provenance=provenance | dict.fromkeys(("cpu", "precision", "commit"), text[:99]),
            baselines={text: 5.0},
        )
        (tmp_path / f"own{number}").mkdir()
    report_of = Report(folder)
    out = tmp_path / "written"
    out.mkdir()
    for name, content in {
        **report_of.files({}),
        PAGE: report_of.page([]),
        "cards.md": cards(report_of),
    }.items():
        (out / name).write_text(content)
    assert (out / README).stat().st_size > 1_000
    assert harmless.faults_in(out) == []


CASES = ["text in sweep.json", "any field of one record of many"]


@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str) -> None:
    outcome = tried(cases("inputs")[name], Random(name))
    assert outcome.verdict in WELL, outcome


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An empty working folder, and the settings of a small run."""
    monkeypatch.chdir(tmp_path)
    return settings_of(composed(*TINY, "attention=simple", "out=again"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config": {"packages": ["os", "posix"]}}, "its config has packages"),
        ({"config": {"out": "../elsewhere"}}, "its config has out"),
        ({"config": {"task": None}}, "its config has no task"),
        ({"config": {"model": None}}, "config.model: Input should be a valid dictionary"),
        ({"config": {"task": {"_target_": "os.system", "command": f"touch {MARK}"}}}, "not in a trusted package"),
        ({"config": {"train": {"steps": "9"}}}, "train.steps='9': should be a valid integer"),
        ({"protocol": "../../.."}, "a path that leads elsewhere"),
        ({"settings": {"../../../x": 1}}, "a path that leads elsewhere"),
        ({"attention": "/tmp"}, "a path that leads elsewhere"),
        ({"seed": "1"}, "seed: Input should be a valid integer"),
        ({"provenance": {"threads": "1"}}, "provenance.threads: Input should be a valid integer"),
        ({"processes": -1}, "processes: Input should be greater than or equal to 1"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_record_that_is_trained_again_says_numbers_alone(other: Settings, changes: dict, expected: str) -> None:
    """It chooses neither whose code runs, nor where anything is written."""
    path = put(Path("kept"), 1, 30.0, config=dict(other.identity))
    rewrite(path, **{**changes, **({"config": other.identity | changes["config"]} if "config" in changes else {})})
    with pytest.raises((UserError, ValueError), match=expected):
        rerun(find_kept_run(path.parent), other)
    assert sorted(entry.name for entry in Path(".").iterdir()) == ["kept"]


def test_lines_that_are_no_evaluations_are_named() -> None:
    assert measurements(b'{"step": 3, "seconds": 5}\n') == [{"step": 3}]
    for line in (b"[1]\n", b"null\n", b'{"step": NaN}\n', b"\xff\n"):
        with pytest.raises(ValueError, match=r"metrics.jsonl|NaN|decode"):
            measurements(line)


def test_what_is_explained_is_the_run_of_a_record(other: Settings) -> None:
    path = put(Path("kept"), 1, 30.0)
    path.with_name(WEIGHTS).write_bytes(b"x")
    settings = explain.ExplainSettings(
        run="kept", beside=None, split="test", example=0, page="p", cache="c", data_dir=None, workers=1, packages=[]
    )
    for changes in ({"variant": 5}, {"config": {"task": None}}, {"provenance": {"threads": None}}):
        rewrite(path, **changes)
        with pytest.raises(UserError, match="not the folder of a run: "):
            explain.load_run(path.parent, settings)
    rewrite(path, files=[])
    with pytest.raises(UserError, match="these are not the weights of that run"):
        read_of_run(path.with_name(WEIGHTS))


# ---------------------------------------------------------------- names of folders


def test_an_address_leads_below_its_page() -> None:
    """Whatever a folder is called."""
    assert address("javascript:alert(1)/seed1") == "javascript%3Aalert%281%29/seed1"
    assert address(os.fsdecode(b"caf\xe9/seed1")) == "caf%E9/seed1"
    assert address("a=1,b/seed1") == "a=1,b/seed1"


def test_a_folder_whose_name_is_no_text(tmp_path: Path, small: Path) -> None:
    """Its records are left out, and named; a results folder is shown by what can be read of its name."""
    strange = small / os.fsdecode(b"caf\xe9")
    put(strange, 7, 30.0)
    faults: list[str] = []
    report = Report(small, tell=faults.append)
    assert len(report.cells) == len(Report(small, tell=lambda _: None).cells) == 4
    assert [fault.endswith("expected a path in UTF-8; rename its folder") for fault in faults] == [True]
    place = small / "all" / os.fsdecode(b"\xff<b>\x1b")
    put(place, 1, 30.0)
    declare(place, {"attention": "simple", "variant": "simple", "seeds": [1]})
    pages = overview(small / "all", verified(small / "all"))
    assert "%FF" in pages[PAGE]
    assert harmless.visible(pages[PAGE])


def test_a_name_that_can_be_none_of_a_folder(tmp_path: Path) -> None:
    assert not is_over_folders(tmp_path / ("x" * 5_000))
    assert not is_over_folders(tmp_path)


def test_one_submission_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results(tmp_path / "runs")
    complete(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    data = submit(tmp_path / "runs").read_bytes()
    (tmp_path / "board").mkdir()
    for name in ("honest", "\x1b[31m", "=1+1"):
        (tmp_path / "board" / f"{name}.receipts.zip").write_bytes(data)
    page, refused = write_board(tmp_path / "board")
    table = page.with_name("board.csv").read_text()
    assert refused == []
    assert [table.count(f"\n{name},") for name in ("honest", "\\x1b[31m", "'=1+1")] == [3, 3, 3]
    assert harmless.of_csv(table) == []


# ---------------------------------------------------------------- formats


def test_no_text_of_a_table_is_a_formula() -> None:
    lines = [{"a": "=1+1", "b": -1.5, "c": "@x"}, {"a": "+1", "b": 2, "c": "-x"}]
    assert as_csv(lines) == "a,b,c\n'=1+1,-1.5,'@x\n'+1,2,'-x\n"


def test_emphasis_is_text() -> None:
    assert escape("_a_ b_c ~~d~~ e_") == r"\_a\_ b_c \~\~d\~\~ e\_"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 2000), bool), "its numbers are of the type bool"),
        (np.zeros((2, 2000)), "its numbers are of the type float64"),
        (np.zeros((2, 2000), "M8[s]"), "its numbers are of the type datetime64"),
        (np.zeros((2, 19), np.uint8), r"expected an array of shape \(2, 2000\), found \(2, 19\)"),
    ],
    ids=str,
)
def test_answers_are_whole_numbers(tmp_path: Path, array: np.ndarray, expected: str) -> None:
    path = put(tmp_path, 1, 30.0)
    np.save(path.with_name(PREDICTIONS), array)
    run = {**record.read(path), "path": path.relative_to(tmp_path).as_posix()}
    with pytest.raises(UserError, match=f"{PREDICTIONS}: .*{expected}"):
        predictions(RunFiles(tmp_path), run, run["selection"])


def test_an_array_is_one_array(tmp_path: Path) -> None:
    """A zip of arrays is none, which numpy would open, too; nor is one that no machine has room for."""
    path = put(tmp_path, 1, 30.0)
    run = {**record.read(path), "path": path.relative_to(tmp_path).as_posix()}
    archive = io.BytesIO()
    zipfile.ZipFile(archive, "w").close()
    immense = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1125899906842624), }"
    for data in (archive.getvalue(), b"PK\x03\x04", immense.ljust(128) + b"\n"):
        path.with_name(PREDICTIONS).write_bytes(data)
        with pytest.raises(UserError, match="not a readable array"):
            predictions(RunFiles(tmp_path), run, run["selection"])


def test_letters_that_a_font_lacks_are_no_warnings(tmp_path: Path) -> None:
    """pytest makes an error of each."""
    put(tmp_path, 1, 30.0, attention="注意", diagnostics={"種類" * 90: {"長さ" * 90: {"examples": 9, "correct": 3}}})
    put(tmp_path, 1, 31.0)
    assert write_figures(tmp_path, Report(tmp_path).columns)


def test_a_backend_that_is_none_is_named(tmp_path: Path) -> None:
    program = "from pathlib import Path; from lra.report.render import figures as f; f.write_figures(Path('.'), [])"
    known = {**os.environ, "MPLBACKEND": "nonsense"}
    done = subprocess.run([sys.executable, "-c", program], env=known, capture_output=True, text=True, check=False)
    assert "UserError: no figures: matplotlib: Key backend: 'nonsense' is not a valid value" in done.stderr


# ---------------------------------------------------------------- options


def test_what_takes_no_shape_is_no_attention() -> None:
    with pytest.raises(UserError, match=r"attention\._target_: takes 0 values, expected one that takes 1"):
        configure.build({"_target_": "lra.cli.report.main"}, "attention", [], supplied=1)


def test_a_variant_without_sizes_is_named(cli: Commands) -> None:
    Path("options/variant").mkdir(parents=True)
    Path("options/variant/mine.yaml").write_text("{}")
    code, _, err = cli(check.main, "--config-dir", "options", "variant=mine", "growth=[]")
    assert (code, err.count("\n")) == (2, 1)
    assert "missing; set +model." in err
