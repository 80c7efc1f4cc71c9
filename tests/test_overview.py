"""The page over many results folders."""

import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from golden.folder import make
from reports import change, complete, declare, lines_of, put
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.core.files import write_json
from lra.core.paths import CHECKOUT
from lra.records import record
from lra.records.receipts import zip_bytes
from lra.records.run_files import RunFiles
from lra.report import write_pages
from lra.report.check.overview import write_overview


def test_an_overview_links_to_the_findings_and_has_a_row_for_each_folder(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    (tmp_path / "two" / "README.md").write_text("# its report")
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "README.md").write_text("# Steps | beside\n\nmore")
    (tmp_path / "findings.md").write_text("# Results\n\nWhat we saw.\n\n\n")
    text = write_overview(tmp_path).read_text()
    assert "\n\nWhat these runs show is in [findings.md](findings.md).\n\n## The records\n" in text
    assert "(index.html)" in text
    assert "What we saw." not in text
    assert text.count("/README.md) | ") == 2
    records = {path.parent: record.read(path) for path in (tmp_path / "one").rglob(record.NAME)}
    finished = sum(run["status"] == "finished" for run in records.values())
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
    page = (tmp_path / "README.md").read_text()
    assert page.startswith(out.split("\n\n")[0])
    assert "| [one](one/README.md) |" in page
    assert page.endswith(r"- [a\](b) \<i>\\n.md](a%5D%28b%29%20%3Ci%3E%0A.md): \<script> \\x1b[31m \`x\`" + "\n")


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


def entries(page: Path) -> dict[str, str]:
    """The studies of a page, folders or files, by name, with all that stands there of each."""
    articles = re.findall(r'<article id="([^"]+)">(.*?)</article>', page.read_text(), re.DOTALL)
    return {name: re.sub(r"<[^>]+>", " ", text) for name, text in articles}


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Three small results folders."""
    for name, accuracy in (("first", 37.0), ("second", 41.0), ("third", 39.0)):
        for seed in (1, 2):
            put(tmp_path / name, seed, accuracy + seed)
        declare(tmp_path / name, {"attention": "simple", "variant": "simple", "seeds": [1, 2]})
        complete(tmp_path / name)
        write_pages(tmp_path / name)
    return tmp_path


def test_index_html_has_every_folder_its_numbers_and_whether_it_verifies(three: Path, cli: Commands) -> None:
    change(three / "third/listops/paper/simple/simple/seed1" / record.NAME, steps=1)
    assert cli(command.main, "--overview", str(three))[0] == 0
    page = three / "index.html"
    texts = entries(page)
    assert list(texts) == ["first", "second", "third"]
    assert ["verified" in text and "not verified" not in text for text in texts.values()] == [True, True, False]
    for name, mean in (("first", "38.50"), ("second", "42.50"), ("third", "40.50")):
        assert f"Simple has {mean} ± 0.71; nothing is compared." in texts[name]
        assert f'<a href="{name}/index.html">{name}</a>' in page.read_text()
        assert '<a href="../index.html"' in (three / name / "index.html").read_text()


def benchmark(folder: Path, scores: dict[str, tuple[float, float, float]], **changes: object) -> None:
    """A results folder in which these attentions, each as a Transformer, have such accuracies on ListOps; a step of
    them takes 0.6 s, and as often longer as they stand later."""
    for place, (attention, accuracies) in enumerate(scores.items()):
        for seed, accuracy in enumerate(accuracies, start=1):
            seconds = {"train": 60.0 * 2**place, "evaluate": 6.0}
            known = {"attention": attention, "variant": "transformer", "seconds": seconds, **changes}
            put(folder, seed, accuracy, **known)
    if not (folder / "sweep.json").exists():
        declare(folder, *({"attention": name, "variant": "transformer", "seeds": [1, 2, 3]} for name in scores))
    complete(folder)
    write_pages(folder)


SCORES = {
    "softmax": (50.0, 50.4, 50.2),
    "linear": (61.0, 61.2, 61.3),
    "performer": (40.1, 40.3, 40.2),
    "s4d": (30.0, 50.0, 69.0),
    "conv": (20.0, 20.2, 20.1),
}


def test_a_folder_of_many_systems_is_a_benchmark_with_a_matrix_of_its_own(three: Path, cli: Commands) -> None:
    """One number a cell, which leads to its runs and says the rest where a pointer rests; sorted by what is better."""
    benchmark(three / "many", SCORES)
    assert cli(command.main, "--overview", str(three))[0] == 0
    text = (three / "index.html").read_text()
    assert list(entries(three / "index.html")) == ["first", "second", "third"]
    [panel] = re.findall(r'<section class="panel".*?</section>', text, re.DOTALL)
    cells = re.findall(
        r'<td class="([\w ]+)" data-value="([\d.]+)"><a href="([^"]+)" title="([^"]+)">([^<]+)</a>', panel
    )
    assert [(cell[0], cell[2], cell[4]) for cell in cells] == [
        ("reference", "many/index.html#cell/0", "50.2"),
        ("better", "many/index.html#cell/1", "61.2"),
        ("worse", "many/index.html#cell/2", "40.2"),
        ("undecided", "many/index.html#cell/3", "49.7"),
        ("worse lost", "many/index.html#cell/4", "20.1"),
    ]
    assert [float(cell[1]) for cell in cells] == pytest.approx([50.2, 61.1667, 40.2, 49.6667, 20.1], abs=1e-3)
    assert cells[1][3].startswith("61.17 ± 0.15 over 3 seeds; better: +10.97 [")
    assert "below baseline: " in cells[4][3]
    assert 'strongest trivial guess</th><td title="root operator">36.2 %' in panel


def test_the_picture_has_each_system_at_its_cost_and_its_share(tmp_path: Path) -> None:
    """The time of a step beside the Transformer's, as a logarithm; of the way from the baseline to 100 % the share."""
    benchmark(tmp_path / "many", SCORES)
    write_overview(tmp_path)
    picture = (tmp_path / "index.html").read_text().partition('<svg xmlns="http://www.w3.org/2000/svg" class="cost"')[2]
    dots = [tuple(map(float, dot)) for dot in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)]
    assert len(dots) == len(SCORES)
    steps = [right[0] - left[0] for left, right in itertools.pairwise(dots)]
    assert (
        steps == pytest.approx([steps[0]] * 4, abs=0.2) and steps[0] > 20
    )  # each takes twice as long as the one before
    heights = [dots[4][1] - y for _, y in dots]
    shares = [max(0.0, (statistics.fmean(scores) - 36.2) / 63.8) for scores in SCORES.values()]
    assert [height / heights[1] for height in heights] == pytest.approx(
        [share / shares[1] for share in shares], abs=0.01
    )


def test_the_picture_leaves_out_what_says_no_time_and_bears_a_perfect_baseline(tmp_path: Path) -> None:
    benchmark(tmp_path / "many", SCORES)
    for seed in (1, 2, 3):
        change(tmp_path / f"many/listops/paper/conv/transformer/seed{seed}" / record.NAME, seconds={"train": 0.0})
    write_overview(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert text.count("<circle") - text.count('r="3.5"') == len(SCORES) - 1
    perfect = {"baselines": {"majority class": 100.0}}
    benchmark(tmp_path / "perfect", SCORES, **perfect)
    write_overview(tmp_path)
    assert "perfect" in (tmp_path / "index.html").read_text()


def test_a_column_at_chance_is_folded_away(tmp_path: Path) -> None:
    benchmark(tmp_path / "many", SCORES)
    same = dict.fromkeys(SCORES, (0.0, 0.0, 0.0))  # one answer for all
    benchmark(tmp_path / "many", same, protocol="strict")
    write_overview(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert re.findall(r'<th scope="col" title="[^"]*"><button type="button">([^<]*)</button>', text) == [
        "listops, paper"
    ]
    assert "<summary>listops, strict: a column at chance</summary>" in text


def test_what_the_findings_say_in_short_stands_first(three: Path, cli: Commands) -> None:
    short = "- **It** has <!--{first/listops/Simple/mean}-->1<!--{}--> % ([first](first/index.html)) <b>."
    (three / "findings.md").write_text(f"# Findings\n\n## In short\n\n{short}\n\n## More\n\nElse.\n")
    assert cli(command.main, "--overview", str(three))[0] == 0
    [lead] = re.findall(r'<section id="lead"[^>]*>(.*?)</section>', (three / "index.html").read_text(), re.DOTALL)
    shown = '<li><strong>It</strong> has 38.50 % (<a href="first/index.html">first</a>) &lt;b&gt;.</li>'
    assert lead.split("\n") == ["<ul>", shown, "</ul>", ""]


def test_a_folder_that_came_later_is_told_of_and_is_no_fault(three: Path, cli: Commands) -> None:
    """As that of the demo, beside kept results. One that the pages name and that is gone is a fault."""
    (three / "findings.md").write_text("It has <!--{first/listops/Simple/mean}-->38.50<!--{}--> %.\n")
    (three / "third").rename(three.parent / "elsewhere")
    assert cli(command.main, "--overview", str(three))[0] == 0
    (three.parent / "elsewhere").rename(three / "third")
    code, out, err = cli(command.main, "--verify", str(three))
    assert (code, err) == (0, "")
    told = f"{three / 'third'}: not on the pages over the folders; lra-report --overview puts it there"
    assert out.splitlines() == [
        *(f"{three / name}: 2 records, 0 mismatches" for name in ("first", "second", "third")),
        told,
    ]
    change(three / "third/listops/paper/simple/simple/seed1" / record.NAME, steps=1)
    assert cli(command.main, "--verify", str(three))[0] == 1
    shutil.rmtree(three / "third")
    shutil.rmtree(three / "second")
    code, out, _ = cli(command.main, "--verify", str(three))
    assert code == 1
    assert re.search(rf"{three / 'README.md'}, line \d+: found '.*', the records give '.*'; lra-report --overview", out)


@pytest.mark.parametrize("name", ["README.md", "index.html"])
def test_a_page_over_folders_that_is_changed_or_deleted_does_not_verify(three: Path, cli: Commands, name: str) -> None:
    """Together with a fault of a folder, and a number of the findings."""
    (three / "findings.md").write_text("It has <!--{first/listops/Simple/mean}-->1<!--{}--> %.\n")
    assert cli(command.main, "--overview", str(three))[0] == 0
    assert cli(command.main, "--verify", str(three))[0] == 0
    text = (three / name).read_text()
    for wrong, fault in ((text.replace("first", "worst"), r", line \d+: .*"), (None, ": not there")):
        (three / name).unlink()
        if wrong:
            (three / name).write_text(wrong)
        (three / "second/index.html").unlink(missing_ok=True)
        (three / "findings.md").write_text("It has <!--{first/listops/Simple/mean}-->99.00<!--{}--> %.\n")
        code, out, _ = cli(command.main, "--verify", str(three))
        assert code == 1
        assert re.search(f"{three / name}{fault}; lra-report --overview writes it", out)
        assert "index.html: not readable (FileNotFoundError)" in out
        assert "findings.md:1: first/listops/Simple/mean: '99.00' stands there, the records say '38.50'" in out


FINDINGS = """# Findings

Softmax has <!--{wide/listops/Transformer/mean ± sd}-->1<!--{}-->, and
Linear ELU <!--{wide/listops/Linear ELU - Transformer/difference [interval]}-->1<!--{}--> more; the root operator
has <!--{wide/listops/root operator/baseline}-->1<!--{}-->, and
the paper <!--{published/SimpleTRON v4/listops/Simple}-->1<!--{}-->; a step
takes <!--{bench/steps/lra/ratio}-->1<!--{}-->.

<!--{
S4D reaches from {wide/listops/S4D/lowest}.
}-->
<!--{}-->

<!--{table wide: Transformer, S4D}-->
<!--{}-->
"""
RUN = "listops/paper/softmax/transformer/seed2"
NUMBERS = {  # a kind: its file, what stands there and what somebody writes, and what is told
    "a mean in a sentence": ("findings.md", "-->50.20 ± 0.20<", "-->51.20 ± 0.20<", "findings.md:3: wide/listops/"),
    "a difference": ("findings.md", "-->+10.97 [", "-->+11.97 [", "findings.md:4: wide/listops/Linear ELU - "),
    "a baseline": ("findings.md", "-->36.20<", "-->26.20<", "findings.md:5: wide/listops/root operator/baseline"),
    "a published number": ("findings.md", "-->37.45<", "-->37.54<", "findings.md:6: published/SimpleTRON v4"),
    "a measured ratio": ("findings.md", "-->0.50<", "-->0.05<", "findings.md:7: bench/steps/lra/ratio"),
    "a number of a block": ("findings.md", "from 30.00.", "from 36.00.", "findings.md:12: S4D reaches from"),
    "a cell of a block": ("findings.md", "| 50.20 ± 0.20 (3/3)", "| 50.20 ± 0.10 (3/3)", "findings.md:19: table wide"),
    "a sentence": ("wide/README.md", "Transformer (50.20)", "Transformer (52.20)", "README.md, line "),
    "a cell of a table": ("wide/README.md", "| 50.20 ± 0.20 (3/3)", "| 50.20 ± 0.20 (5/5)", "README.md, line "),
    "a page": ("wide/index.html", "20.10", "40.10", "index.html, line "),
    "a picture": ("wide/verdicts.svg", "+40.1", "+90.1", "verdicts.svg, line "),
    "a card": ("wide/cards.md", "20.1", "80.1", "cards.md, line "),
    "the list of results": ("README.md", "| 15/15 |", "| 15/16 |", "README.md, line "),
    "the page over results": ("index.html", ">61.2<", ">91.2<", "index.html, line "),
    "a record": (f"wide/{RUN}/record.json", '"correct": 1008', '"correct": 1009', f"{RUN}/record.json: "),
    "a curve": (f"wide/{RUN}/metrics.jsonl", "50.4", "50.9", f"{RUN}/metrics.jsonl: its SHA-256 is not"),
}


def test_a_number_of_any_kind_that_is_changed_by_hand_is_named(tmp_path: Path, cli: Commands) -> None:
    benchmark(tmp_path / "wide", SCORES)
    straight, ours = ({"subject": name, "ratio": [ratio] * 3} for name, ratio in (("straight", 1.0), ("lra", 0.5)))
    write_json(tmp_path / "bench" / "steps" / "bench.json", {"results": [straight, ours]})
    (tmp_path / "findings.md").write_text(FINDINGS)
    assert cli(command.main, "--cards", str(tmp_path / "wide"))[0] == 0
    assert cli(command.main, "--overview", str(tmp_path))[0] == 0
    assert cli(command.main, "--verify", str(tmp_path))[0] == 0
    missed = {}
    for kind, (name, right, wrong, told) in NUMBERS.items():
        text = (tmp_path / name).read_text()
        assert right in text, kind
        (tmp_path / name).write_text(text.replace(right, wrong, 1))
        code, out, _ = cli(command.main, "--verify", str(tmp_path))
        if code != 1 or told not in out:
            missed[kind] = out
        (tmp_path / name).write_text(text)
    assert not missed


def test_a_folder_of_folders_without_an_option_is_told_what_to_do(three: Path, cli: Commands) -> None:
    """Where they cannot be one report."""
    code, _, err = cli(command.main, str(three))
    assert code == 2
    assert "are both seed 1 of the same cell" in err
    assert f"{three} holds results folders: lra-report --overview writes the pages over them" in err


def test_a_board_has_the_files_that_verify_and_says_why_another_does_not(three: Path, cli: Commands) -> None:
    for name in ("first", "second", "third"):
        assert cli(command.main, "--submit", str(three / name))[0] == 0
    tampered = tree(three / "third")
    cell = "listops/paper/simple/simple/seed1"
    change(three / "third" / cell / record.NAME, test={"best_val": {"accuracy": 99.0, "correct": 1980}})
    forged = {
        path: (three / "third" / path).read_bytes() for path in tampered if "seed" in path or path == "sweep.json"
    }
    Path("third.receipts.zip").write_bytes(zip_bytes(forged))
    before = tree(three / "first")
    code, _, err = cli(command.main, "--board", ".")
    refusals = [line for line in err.splitlines() if "refused" in line]
    assert code == 2
    reason = "test.best_val.correct is 1980, its predictions have 800"
    assert refusals == [f"lra-report: error: refused: third: {cell}/record.json: {reason}"]
    rows = lines_of(Path("board.csv").read_text())
    assert [(row["submission"], row["mean"]) for row in rows] == [("first", "38.5"), ("second", "42.5")]
    texts = entries(Path("index.html"))
    assert ["verified" in text and "not verified" not in text for text in texts.values()] == [True, True, False]
    assert "its predictions have 800" in texts["third"]
    assert tree(three / "first") == before
    page = Path("index.html").read_bytes()
    cli(command.main, "--board", ".")
    assert Path("index.html").read_bytes() == page


def test_what_does_not_verify_is_not_submitted(three: Path, cli: Commands) -> None:
    change(three / "first/listops/paper/simple/simple/seed1" / record.NAME, test={"best_val": {"accuracy": 99.0}})
    code, _, err = cli(command.main, "--submit", str(three / "first"))
    assert (code, "test.best_val.accuracy is 99.0" in err, Path("first.receipts.zip").exists()) == (2, True, False)


def test_a_folder_without_a_run_is_named_once(three: Path, cli: Commands) -> None:
    (three / "empty").mkdir()
    code, _, err = cli(command.main, "--submit", str(three / "empty"))
    assert (code, err.count(str(three / "empty"))) == (2, 1)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.skipif(not (CHECKOUT / "results").is_dir(), reason="not a checkout")
def test_all_kept_folders_and_the_pages_over_them_are_built_twice_to_the_byte(tmp_path: Path) -> None:
    """In two processes, with other seeds of their hashes."""
    program = (
        "import sys; from pathlib import Path; from lra.report import write_pages\n"
        "from lra.report.check.overview import results_folders, write_overview; folder = Path(sys.argv[1])\n"
        "print(len([write_pages(path) for path in results_folders(folder)])); write_overview(folder)"
    )
    trees = []
    for seed in ("1", "2"):
        folder = shutil.copytree(CHECKOUT / "results", tmp_path / seed / "results")
        environment = {"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(Path.home())}
        command_line = [sys.executable, "-c", program, str(folder)]
        done = subprocess.run(command_line, check=True, env=environment, capture_output=True, text=True)
        assert int(done.stdout) >= 13
        trees.append(tree(folder))
    assert [name for name in trees[0] if trees[0][name] != trees[1].get(name)] == []
    assert "index.html" in trees[0]
