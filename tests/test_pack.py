"""Receipts files: what is packed comes back to the byte, reads as folders do, and is refused where it is not safe."""

import hashlib
import io
import json
import re
import shutil
import stat
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile, ZipInfo

import pytest
from golden import folder as golden
from markdown_it import MarkdownIt
from reports import change, complete, declare, put
from support import Commands

from lra.cli import report as command
from lra.cli import train
from lra.core.errors import UserError
from lra.records import receipts, record
from lra.records.names import CONFIG, DETAILS, DIGESTS, METRICS, PREDICTIONS, README, RECEIPTS, SWEEP
from lra.records.receipts import Receipts, zip_bytes
from lra.records.run_files import RunFiles
from lra.report import Report, write_cards, write_pages, write_report
from lra.report.check import verify
from lra.report.read.pack import pack, unpack
from lra.report.render import figures

SEED1 = "listops/paper/simple/simple/seed1"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures are drawn, which takes seconds."""
    for module in (figures, verify):
        monkeypatch.setattr(module, "write_figures", lambda folder, sections: [])


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A results folder whose runs left all that runs leave."""
    root = tmp_path / "done"
    for seed, accuracy in enumerate((37.0, 38.0, 37.5), start=1):
        put(root, seed, accuracy)
    put(root, 1, 30.0, attention="softmax", variant="transformer", settings={"model.depth": 2})
    put(root, 2, None, attention="softmax", variant="transformer", reason="fire").with_name("error.log").write_text("!")
    declare(root, {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3, 5]})
    complete(root)
    return root


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("lra-report: error: ")]


def test_what_is_unpacked_is_what_was_packed(done: Path) -> None:
    before = tree(done)
    pack(done)
    assert list(tree(done)) == [RECEIPTS]
    assert unpack(done) == len(before)
    assert tree(done) == before


def test_the_same_files_give_the_same_bytes(done: Path) -> None:
    other = Path(shutil.copytree(done, done.with_name("other")))
    for path in other.rglob("*"):
        path.touch()
    assert pack(done).read_bytes() == pack(other).read_bytes()
    unpack(other)
    assert pack(other).read_bytes() == (done / RECEIPTS).read_bytes()
    assert pack(other).read_bytes() == (done / RECEIPTS).read_bytes(), "packed again"


@pytest.mark.skipif(not (shutil.which("unzip") and shutil.which("sha256sum")), reason="no unzip, no sha256sum")
def test_other_programs_unpack_and_check_it(done: Path, tmp_path: Path) -> None:
    before = tree(done)
    pack(done)
    subprocess.run(["unzip", "-q", str(done / RECEIPTS), "-d", str(tmp_path / "out")], check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", DIGESTS], cwd=tmp_path / "out", check=True)
    unpacked = tree(tmp_path / "out")
    del unpacked[DIGESTS]
    assert unpacked == before


def test_a_packed_folder_says_what_it_said(done: Path) -> None:
    """All numbers are the same; links to records lead to the page."""
    write_report(done)
    before = Report(done).files({})
    pack(done)
    after = Report(done).files({})
    assert {name for name in before if before[name] != after[name]} == {README, DETAILS}
    assert re.sub(r"\(index\.html#run/(\S+)\)", r"(\1/record.json)", after[DETAILS]) == before[DETAILS]
    assert after[README] == before[README].replace(
        "from the records", f"from the records, which lie in [{RECEIPTS}]({RECEIPTS})"
    )


class Anchors(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: dict[str, str] = {}
        self._row = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self._row = dict(attributes).get("id", self._row if tag != "tr" else "")

    def handle_data(self, text: str) -> None:
        self.ids[self._row] = self.ids.get(self._row, "") + text


def test_the_row_of_a_packed_record_opens_the_cell_that_it_is_of(done: Path) -> None:
    pack(done)
    write_report(done)
    page = (done / "index.html").read_text()
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    cells = json.loads(data)["cells"]
    rows = re.findall(r'<tr id="run/(.*?)">.*?<a href="#cell/(\d+)">', page)
    assert len(rows) == 5
    assert len({place for _, place in rows}) > 1
    for folder, place in rows:
        assert f"{folder}/record.json" in [run.get("path") for run in cells[int(place)]["runs"]]


def test_a_link_from_every_number_ends_at_its_record(done: Path) -> None:
    """At a line of the page with the member's name and its SHA-256."""
    pack(done)
    write_report(done)
    tokens = MarkdownIt("commonmark").enable("table").parse((done / DETAILS).read_text())
    links = [child.attrs["href"] for token in tokens for child in token.children or () if child.type == "link_open"]
    rows = Anchors((done / "index.html").read_text()).ids
    kept = Receipts(done / RECEIPTS)
    assert len(links) == 5
    for link in links:
        page, _, anchor = unquote(link).partition("#")
        [member] = re.findall(r"listops/\S+?/record\.json", rows[anchor])
        assert (page, anchor) == ("index.html", f"run/{Path(member).parent}")
        assert hashlib.sha256(kept.read(member)).hexdigest() in rows[anchor]


def test_the_command_packs_verifies_and_unpacks(done: Path, cli: Commands) -> None:
    said = f"{done}: 5 records, 0 mismatches\n"
    assert cli(command.main, str(done))[0] == 0
    whole = tree(done)
    assert cli(command.main, str(done), "--pack")[:2] == (0, said)
    assert {*tree(done)} == {RECEIPTS, *(name for name in whole if "/" not in name and name != SWEEP)}
    assert cli(command.main, "--verify", str(done)) == (0, said, "")
    code, out, _ = cli(command.main, "--verify", str(done / RECEIPTS))
    assert (code, out) == (0, said.replace(str(done), str(done / RECEIPTS)))
    assert cli(command.main, str(done), "--once")[1].startswith("1 failed, 1 waiting, 4 finished")
    assert cli(command.main, str(done.parent), "--overview")[0] == 0
    assert "4/6" in (done.parent / README).read_text()
    assert cli(command.main, str(done), "--unpack")[0] == 0
    assert tree(done) == whole


@pytest.mark.parametrize("option", ["--pack", "--unpack"])
def test_what_was_cut_short_is_done_by_the_same_command(
    done: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """After the runs were moved, and before the report was written anew."""
    for arguments in [(), *[("--pack",)] * (option == "--unpack")]:
        assert cli(command.main, str(done), *arguments)[0] == 0
    other = Path(shutil.copytree(done, done.parent / "other" / done.name))
    assert cli(command.main, str(other), option)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(command, "write_report", sudden_end)
        with pytest.raises(SystemError):
            command_line(patch, str(done), option)
    assert cli(command.main, str(done), option)[0] == 0
    assert tree(done) == tree(other)


def test_what_a_killed_unpacking_left_half_written_goes(done: Path) -> None:
    expected = tree(done)
    pack(done)
    half = next(done / name for name in expected if name.endswith("/record.json"))
    half.parent.mkdir(parents=True)
    half.with_name(f".{half.name}.5c9edcd03745fe07.tmp").write_bytes(b"half")
    unpack(done)
    assert tree(done) == expected


def sudden_end(*_: object) -> None:
    raise SystemError


def command_line(patch: pytest.MonkeyPatch, *arguments: str) -> None:
    patch.setattr("sys.argv", ["lra-report", *arguments])
    command.main()


def test_control_c_ends_a_report_in_one_line(done: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "write_report", interrupted)
    said = "\nlra-report: interrupted; the same command again does what is left\n"
    assert cli(command.main, str(done)) == (130, "", said)


def test_pages_alone_verify_without_tables(done: Path, cli: Commands) -> None:
    """Another program's file stays; a page that was edited does not verify."""
    write_report(done)
    (done / "figures").mkdir()
    (done / "figures" / "mine.svg").write_text("")
    assert cli(command.main, "--pack", "--pages-only", str(done))[0] == 0
    assert {*tree(done)} == {RECEIPTS, README, "index.html", "figures/mine.svg"}
    assert verify.verify(done) == (5, [])
    (done / README).write_text((done / README).read_text().replace("37.50", "38.50", 1))
    [fault] = verify.verify(done)[1]
    assert fault.startswith("README.md, line ")


def test_what_does_not_verify_is_not_packed(done: Path, cli: Commands) -> None:
    write_report(done)
    change(done / SEED1 / record.NAME, test={"best_val": {"accuracy": 99.0}})
    before = tree(done)
    code, out, err = cli(command.main, "--pack", str(done))
    assert (code, len(lines(err))) == (2, 1)
    assert f"{SEED1}/record.json: test.best_val.accuracy is 99.0" in out
    assert tree(done) == before


@pytest.mark.parametrize("name", [record.NAME, CONFIG])
def test_a_run_that_has_not_ended_is_not_packed(done: Path, name: str) -> None:
    if name == CONFIG:
        (done / SEED1 / record.NAME).unlink()
    else:
        change(done / SEED1 / record.NAME, status="paused")
    before = tree(done)
    with pytest.raises(UserError, match="train it to its end or delete it"):
        pack(done)
    assert tree(done) == before


def test_the_report_of_receipts_is_of_all_runs_of_their_folder(done: Path, cli: Commands) -> None:
    pack(done)
    put(done, 5, 36.0)
    complete(done)
    assert cli(command.main, str(done))[0] == 0
    whole = tree(done)
    assert cli(command.main, str(done / RECEIPTS))[0] == 0
    assert tree(done) == whole
    assert verify.verify(done) == (6, [])


def test_weights_stay_where_they_are(done: Path) -> None:
    weights = done / SEED1 / "weights.safetensors"
    weights.write_bytes(b"weights")
    run = record.read(done / SEED1 / record.NAME)
    record.write(done / SEED1, run | {"files": run["files"] | record.sha256(weights.parent, weights.name)})
    pack(done)
    assert {*tree(done)} == {RECEIPTS, f"{SEED1}/weights.safetensors"}
    write_report(done)
    assert verify.verify(done)[1] == []
    weights.write_bytes(b"others")
    assert verify.verify(done)[1] == [f"{SEED1}/record.json: weights.safetensors has another SHA-256 than it says"]


def test_killed_between_packing_and_removing_it_is_packed_again(done: Path) -> None:
    copy = Path(shutil.copytree(done, done.with_name("copy")))
    shutil.copy(pack(copy), done)
    shutil.rmtree(done / "listops/paper/softmax")
    assert {path for path in RunFiles(done).find(record.NAME)} == {path for path in RunFiles(copy).find(record.NAME)}
    pack(done)
    assert tree(done) == tree(copy)


def test_a_report_of_packed_runs_alone_is_not_written(done: Path) -> None:
    """Where others lie beside them: it would say that there are fewer runs than there are."""
    receipts = pack(done)
    before = tree(done)
    for write in (write_report, write_pages, write_cards):
        with pytest.raises(UserError, match=rf"a report is of all runs in a folder; expected {done}$"):
            write(receipts)
    assert tree(done) == before


def test_two_runs_of_one_name_are_refused(done: Path) -> None:
    copy = Path(shutil.copytree(done, done.with_name("copy")))
    shutil.copy(pack(copy), done)
    change(done / SEED1 / record.NAME, steps=101)
    for act in (pack, unpack, Report, write_pages):
        with pytest.raises(UserError, match=rf"receipts.zip: {SEED1}/record.json: another .* lies beside it; keep one"):
            act(done)


def test_a_sweep_goes_on_in_a_packed_folder(cli: Commands) -> None:
    """What is packed is not trained again; what is new lies beside it, is reported with it, and is packed next."""
    sweep = ("--multirun", "experiment=smoke", "out=runs", "system=simple,transformer", "max_hours=null")
    runs = Path("runs")
    assert cli(train.main, *sweep, "seed=1,2")[0] == 0
    first = tree(runs)
    assert cli(command.main, "--pack", "runs")[0] == 0
    code, _, err = cli(train.main, *sweep, "seed=1,2")
    assert (code, err.count("finished before, nothing to do")) == (0, 4)
    assert not list(runs.rglob(record.NAME))
    code, _, err = cli(train.main, *sweep, "seed=2,3")
    assert (code, err.count("finished before, nothing to do"), len(list(runs.rglob(record.NAME)))) == (0, 2, 2)
    assert "6 runs" in (runs / README).read_text()
    assert cli(train.main, *sweep, "seed=1", "train.steps=3")[0] != 0, "another configuration"
    assert cli(command.main, "--pack", "runs")[1] == "runs: 6 records, 0 mismatches\n"
    assert not list(runs.rglob(record.NAME))
    unpack(runs)
    assert len(list(runs.rglob(record.NAME))) == 6
    kept = {name: data for name, data in first.items() if "seed" in Path(name).parent.name and ".lock" not in name}
    assert len(kept) > 4 * 3
    assert {name: tree(runs)[name] for name in kept} == kept
    assert [cell["seeds"] for cell in RunFiles(runs).declared(SWEEP)] == [[1, 2, 3]] * 2


def test_what_two_declarations_say_is_packed_together(done: Path) -> None:
    """Another one laid beside the receipts loses no cell and no seed of theirs."""
    pack(done)
    declare(done, {"attention": "simple", "variant": "simple", "seeds": [5, 7]})
    declared = [(cell["attention"], cell["seeds"]) for cell in RunFiles(done).declared(SWEEP)]
    pack(done)
    assert [(cell["attention"], cell["seeds"]) for cell in RunFiles(done).declared(SWEEP)] == declared
    assert declared == [("simple", [1, 2, 3, 5, 7])]


def test_a_packed_run_that_diverged_is_begun_anew_only_after_unpacking(cli: Commands) -> None:
    command_line = ("experiment=smoke", "out=runs", "system=simple")
    assert cli(train.main, *command_line)[0] == 0
    path = next(Path("runs").rglob(record.NAME))
    record.write(path.parent, record.read(path) | {"status": "diverged", "reason": "so it was"})
    pack(Path("runs"))
    assert "diverged before, nothing to do" in cli(train.main, *command_line)[2]
    assert "lra-report --unpack runs before retry=all" in cli(train.main, *command_line, "retry=all")[2]
    unpack(Path("runs"))
    assert cli(train.main, *command_line, "retry=all")[0] == 0
    assert record.read(path)["status"] == "finished"


# What is not read


def test_a_damaged_member_is_named_and_left_out(done: Path, cli: Commands) -> None:
    """A record, and a file beside one; all others are reported."""
    path = pack(done)
    data = dict(tree_of(path))
    for name in (f"{SEED1}/record.json", f"{SEED1.replace('seed1', 'seed2')}/{PREDICTIONS}"):
        data[name] = data[name][:-1] + b"?"
    path.write_bytes(zipped(data))
    code, _, err = cli(command.main, str(done))
    assert code == 2
    errors = lines(err)
    assert errors == [
        f"lra-report: error: {path}: {SEED1}/record.json: not a readable record: its SHA-256 is not that of SHA256SUMS",
        f"lra-report: error: {path}: {SEED1.replace('1', '2')}/{PREDICTIONS}: its SHA-256 is not that of SHA256SUMS",
    ]
    assert "4 runs" in (done / README).read_text()


def test_bits_that_turned_are_named(done: Path) -> None:
    path = pack(done)
    with ZipFile(path) as archive:
        member = archive.getinfo(f"{SEED1}/{METRICS}")
    data = bytearray(path.read_bytes())
    data[member.header_offset + 30 + len(member.filename) + 5] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged: "):
        Receipts(path).read(member.filename)
    faults: list[str] = []
    Report(done, tell=faults.append)
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}: {member.filename}: damaged: ")


def tree_of(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: dict[str | ZipInfo, bytes], compression: int = ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", compression) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return buffer.getvalue()


def link(name: str) -> ZipInfo:
    member = ZipInfo(name)
    member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return member


def listed(*names: str) -> dict[str, bytes]:
    digest = hashlib.sha256(b"x").hexdigest()
    return {DIGESTS: "".join(f"{digest}  {name}\n" for name in names).encode(), **dict.fromkeys(names, b"x")}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "File is not a zip file"),
        (b"PK\x03\x04 and nothing more", "File is not a zip file"),
        (zip_bytes({"a/b": b"x"})[:-30], "File is not a zip file"),
        (zipped(listed("../a")), "../a: expected the path of a file below the results folder"),
        (zipped(listed("a/../../b")), "a/../../b: expected the path of a file below"),
        (zipped(listed("/etc/passwd")), "/etc/passwd: expected the path of a file below"),
        (zipped(listed("a\\b")), "a\\b: expected the path of a file below"),
        (zipped(listed("C:a")), "C:a: expected the path of a file below"),
        (zipped(listed("a//b")), "a//b: expected the path of a file below"),
        (zipped(listed("a/")), "a/: expected the path of a file below"),
        (zipped(listed("a\x1b[31m")), "a\\x1b[31m: expected the path of a file below"),
        (zipped(listed("a", "a/b")), "a: it is a file and a folder"),
        (zipped({**listed(), link("a"): b"/etc/passwd"}), "a: expected a regular file, found a link"),
        (zipped(listed("a"), ZIP_BZIP2), "SHA256SUMS: expected it stored or deflated"),
        (zipped({"a": b"x"}), "it has no SHA256SUMS"),
        (zipped({**listed("a"), "b": b"x"}), "b: SHA256SUMS does not list it"),
        (zipped({DIGESTS: listed("a")[DIGESTS]}), "a: SHA256SUMS lists it, but it is not there"),
        (zipped({DIGESTS: b"0" * 64}), "SHA256SUMS, line 1: expected a SHA-256 and a name"),
    ],
    ids=range(18),
)
def test_what_is_not_safe_is_refused_in_a_line(done: Path, cli: Commands, data: bytes, fault: str) -> None:
    (done / RECEIPTS).write_bytes(data)
    for option in ("--verify", "--unpack", "--pack"):
        code, _, err = cli(command.main, option, str(done))
        assert code == 2
        [line] = lines(err)
        assert line.startswith(f"lra-report: error: {done / RECEIPTS}: not a readable receipts file: ")
        assert fault in line
    assert {path.name for path in done.parent.iterdir()} == {"done"}


def test_a_name_twice_a_bomb_and_a_secret_are_refused(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = listed("b")
    data = zipped({**twice, "c": b"y"}).replace(b"c", b"b")
    path = done / RECEIPTS
    path.write_bytes(data)
    with pytest.raises(UserError, match="b: its name stands there twice"):
        Receipts(path)
    path.write_bytes(zipped({**listed("a"), "b": b"\0" * 10**6}))
    monkeypatch.setattr(receipts, "UNPACKED_BYTES", 10**5)
    with pytest.raises(UserError, match=r"expected at most 100,000 bytes unpacked, found 1,000,\d+"):
        Receipts(path)
    monkeypatch.setattr(receipts, "FILE_BYTES", 100)
    with pytest.raises(UserError, match=r"expected at most 100 bytes, found \d+"):
        Receipts(path)
    monkeypatch.undo()
    secret = bytearray(zipped(listed("a")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        secret[secret.rindex(signature) + offset] |= 1
    path.write_bytes(secret)
    with pytest.raises(UserError, match="a: it is encrypted"):
        Receipts(path)


def test_a_link_in_its_place_is_not_followed(done: Path) -> None:
    elsewhere = pack(done).rename(done.parent / "elsewhere.zip")
    (done / RECEIPTS).symlink_to(elsewhere)
    with pytest.raises(UserError, match="expected a regular file, found a symbolic link"):
        Report(done)


def test_the_report_of_the_golden_records_is_the_same_from_receipts(tmp_path: Path) -> None:
    """Sixty records of five tasks."""
    golden.make(tmp_path)
    complete(tmp_path)
    before = Report(tmp_path).files({})
    pack(tmp_path)
    after = Report(tmp_path).files({})
    assert {name for name in before if before[name] != after[name]} == {README, DETAILS}
