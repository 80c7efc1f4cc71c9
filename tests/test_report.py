"""The report: numbers by hand, missing and failed cells, the command, its size."""

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden import folder as golden
from reports import change, complete, declare, files_of, lines_of, page_of, put
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.records import record
from lra.report import Report, write_report
from lra.report.read import records
from lra.report.read.published import Published
from lra.report.read.records import CellKey

FILES = ("README.md", "details.md", "verdicts.svg", "pairs.csv", "seeds.csv", "table1.csv", "table1.json", "table1.tex")


def test_the_table_by_hand(small: Path) -> None:
    page = page_of(small)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    interval = "[36.26, 38.74]"  # 37.5 +- 4.302653 x 0.5 / sqrt(3)
    assert lines[:8] == [
        "| system | complexity | best | mean ± sd | 95 % interval | seeds | published | mean - published | caveats |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        "| *baseline: majority class* |  |  | 17.05 |  |  |  |  |  |",
        "| *baseline: root operator* |  |  | 36.20 |  |  |  |  |  |",
        "| Transformer | O(L²) | 36.35 | 36.35 |  | 1/2, 1 failed | 36.37 | -0.02 | n = 1 |",
        f"| Simple | O(L) | 38.00 | 37.50 ± 0.50 | {interval} | 3/4, 1 missing | 37.45 | +0.05 | n = 3, untested |",
        "| Simple-Res | O(L) | missing | missing |  | 0/2, 2 missing | 37.10 |  |  |",
        "| mine, transformer (model.depth=2) |  | 30.00 | 30.00 |  | 1 |  |  | below baseline, n = 1, untested |",
    ]
    assert "Protocol `paper`, selection `best_val`" in page
    assert "| Simple | [37.00](listops/paper/simple/simple/seed1/record.json) |" in page
    assert "| Transformer | [36.35](listops/paper/softmax/transformer/seed1/record.json) | [failed](" in page
    assert "commit: abc" in page
    assert "6 runs, 5.5 minutes" in page  # the failed one says no time


@pytest.mark.parametrize(("share", "said"), [(34.24, 1), (0.04, 0), (0.0, 0)])
def test_how_much_of_the_test_stands_in_train_is_said_below_the_tables(tmp_path: Path, share: float, said: int) -> None:
    put(tmp_path, 1, 30.0, test_in_train=share)
    put(tmp_path, 2, 30.0)  # of before there was any of this
    texts = files_of(tmp_path) | {"index.html": Report(tmp_path).page([])}
    for name in ("README.md", "details.md", "index.html"):
        assert texts[name].count("34.2 % of the test examples of listops are in the training set, too.") == said, name
        assert texts[name].count("in the training set, too") == said, name


def test_where_no_row_has_a_run_nothing_is_compared(tmp_path: Path) -> None:
    put(tmp_path, 1, 30.0, protocol="strict")
    declare(tmp_path, *({"attention": name, "variant": "simple", "seeds": [1]} for name in ("simple", "linear")))
    assert "Nothing is compared: no row has a seed in common with Transformer." in files_of(tmp_path)["README.md"]


def test_the_spread_and_the_differences_by_hand(small: Path) -> None:
    """Gains 0.5 and 0.8463 x 0.5 = 0.42. The only common seed of Simple and the Transformer is 1: 37 - 36.35."""
    page = page_of(small)
    assert "| Simple | 37.00 | 38.00 | 0.50 | 0.42 | 17 |" in page
    assert "| Simple minus | difference | 95 % interval | p | seeds | seeds to see 0.5 |" in page
    assert "| Transformer | +0.65 |  |  | 1 |  |" in page
    assert "| *baseline: root operator* | +1.30 | [0.06, 2.54] | 0.046 | 3 |  |" in page


def test_the_csv_carries_every_digit(small: Path) -> None:
    files = files_of(small)
    rows = {row["system"]: row for row in lines_of(files["table1.csv"])}
    simple = rows["Simple"]
    values = [simple[name] for name in ("best", "mean", "sd", "minimum", "maximum", "done", "declared")]
    assert values == ["38.0", "37.5", "0.5", "37.0", "38.0", "3", "4"]
    assert float(simple["low"]) == pytest.approx(37.5 - 4.302652730 * 0.5 / 3**0.5)
    assert float(simple["mean_minus_published"]) == pytest.approx(37.5 - 37.45)
    assert (simple["published_source"], simple["published_mean"]) == ("SimpleTRON v4", "37.15")
    assert rows["Simple-Res"]["best"] == ""
    seeds = lines_of(files["seeds.csv"])
    assert len(seeds) == 4 + 2 + 2 + 1
    assert {row["status"] for row in seeds} == {"finished", "failed", "missing"}
    run = next(row for row in seeds if row["system"] == "Simple")
    assert run["record"].endswith("seed1/record.json")
    assert run["record_sha256"] == hashlib.sha256((small / run["record"]).read_bytes()).hexdigest()
    pairs = lines_of(files["pairs.csv"])
    assert len(pairs) == 4 * 3 / 2
    assert [row["mean_difference"] for row in pairs if row["other"] == "Transformer"] == ["0.65"]


def test_the_json_says_the_same_as_the_csv(whole: Path) -> None:
    files = files_of(whole)
    table = json.loads(files["table1.json"])
    for lines, cells in (
        (lines_of(files["table1.csv"]), table["cells"]),
        (lines_of(files["pairs.csv"]), table["pairs"]),
    ):
        assert len(lines) == len(cells)
        for line, cell in zip(lines, cells, strict=True):
            shared = line.keys() & cell.keys()
            assert len(shared) > 12
            assert {key: line[key] for key in shared} == {
                key: "" if cell[key] is None else str(cell[key]) for key in shared
            }


@pytest.mark.parametrize("name", FILES)
def test_the_golden_report(whole: Path, name: str) -> None:
    """Sixty records; `python tests/golden/folder.py` writes what is expected again."""
    assert len(list(whole.rglob(record.NAME))) == 60
    assert files_of(whole)[name] == (golden.EXPECTED / name).read_text()


def test_is_the_same_to_the_byte_whatever_the_hash_seed(whole: Path) -> None:
    program = (
        "import sys, hashlib; from pathlib import Path; from lra.report import Report\n"
        "print(hashlib.sha256(repr(Report(Path(sys.argv[1])).files(figures={})).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(whole)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_protocols_have_tables_of_their_own(small: Path) -> None:
    put(small, 1, 39.0, protocol="strict", attention="softmax", variant="transformer")
    page = page_of(small)
    assert page.index("## Protocol `paper`") < page.index("## Protocol `strict`")
    assert "| Transformer | O(L²) | 39.00 | 39.00 |  | 1 | 36.37 | +2.63 |" in page


def test_the_selection_rule_decides_which_accuracy_is_shown(tmp_path: Path) -> None:
    put(tmp_path, 1, 40.0, selection="last")
    page = page_of(tmp_path)
    assert "selection `last`" in page
    assert "| Simple | O(L) | 1.00 | 1.00 |" in page
    assert "Asked for" not in page


def test_runs_that_ended_before_all_steps_are_counted(tmp_path: Path) -> None:
    for seed, ended in ((1, "no progress"), (2, "steps"), (3, "no progress")):
        put(tmp_path, seed, 37.5, ended=ended)
    put(tmp_path, 4, 37.5)  # it had no rule
    put(tmp_path, 5, 37.5, status="diverged", ended="steps", test={})
    assert "- ends: 0 at the goal, 2 with no progress, 2 after all steps\n" in page_of(tmp_path)
    put(tmp_path, 6, 37.5, ended="bored")
    with pytest.raises(UserError, match="ended"):
        page_of(tmp_path)


def test_another_selection_can_be_asked_for_and_is_labelled(small: Path) -> None:
    page = page_of(small, "last")
    assert "## Protocol `paper`, selection `last`" in page
    assert "Asked for with `--selection`; these runs' own rule is `best_val`." in page
    assert "| Simple | O(L) | 1.00 | 1.00 ± 0.00 | [1.00, 1.00] | 3/4, 1 missing |" in page


def test_a_selection_that_some_runs_lack_is_a_gap_not_a_zero(whole: Path) -> None:
    """TableText alone was validated on its test split."""
    rows = {(row["task"], row["system"]): row for row in lines_of(files_of(whole, "best_test")["table1.csv"])}
    assert rows["text", "Linear ELU"]["done"] == "5"
    assert (rows["matching", "Simple-ResL"]["mean"], rows["matching", "Simple-ResL"]["problems"]) == (
        "", "5 without best_test",
    )  # fmt: skip


def test_a_selection_that_no_run_has_is_refused(small: Path) -> None:
    with pytest.raises(UserError, match="--selection best_test: no record below .* has it"):
        Report(small, "best_test")


def test_a_perplexity_that_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    for seed, perplexity in ((1, 31.0), (2, float("inf"))):
        path = put(tmp_path, seed, 20.0, metric="perplexity", task="books", baselines={})
        change(path, test={"best_val": {"perplexity": perplexity}})
    assert "| Simple | O(L) | 31.00 | 31.00 |  | 1, 1 not finite |" in page_of(tmp_path)


def test_the_best_perplexity_is_the_lowest(tmp_path: Path) -> None:
    for seed, perplexity in enumerate((31.0, 29.0, 33.0), start=1):
        path = put(tmp_path, seed, 20.0, metric="perplexity", task="books", baselines={"unigram": 400.0})
        change(path, test={"best_val": {"perplexity": perplexity}})
    page = page_of(tmp_path)
    assert "| system | complexity | best perplexity | mean ± sd |" in page
    assert "| Simple | O(L) | 29.00 | 31.00 ± 2.00 | [26.03, 35.97] | 3 |" in page
    assert "| *baseline: unigram* |  |  | 400.00 |" in page


def test_rows_are_sorted_by_the_size_of_their_settings() -> None:
    texts = ["", "model.depth=1", "model.depth=2", "model.depth=12", "train.lr=0.01 x=3", "train.lr=0.5 x=1"]
    keys = [CellKey("paper", "last", "text", "simple", "simple", text) for text in texts]
    assert sorted(keys[::-1], key=Published().order) == keys


def test_settings_that_are_spelt_differently_keep_places_of_their_own() -> None:
    """A matrix of tasks finds its rows by their places."""
    keys = [CellKey("paper", "last", "text", "simple", "simple", f"model.dropout={value}") for value in ("0", "0.0")]
    first, second = map(Published().order, keys)
    assert first < second


def test_collapsed_runs_and_outliers_are_flagged(whole: Path) -> None:
    """A seed at the majority class, and one below it that gives one answer to everything."""

    def flagged() -> dict[tuple[str, str], str]:
        rows = lines_of(files_of(whole)["seeds.csv"])
        return {(row["task"], row["seed"]): row["flags"] for row in rows if row["flags"]}

    assert flagged() == {("text", "3"): "collapsed outlier", ("listops", "3"): "collapsed outlier"}
    assert "Seeds with one answer to everything: Simple 1 of 5" in files_of(whole)["README.md"]
    (whole / "listops/paper/simple/simple/seed3/predictions.npy").unlink()
    assert flagged() == {("text", "3"): "collapsed outlier", ("listops", "3"): "outlier"}


def test_a_row_says_its_window_and_where_it_is_softmax(tmp_path: Path) -> None:
    """In the README, the LaTeX and the page; records from before that was kept have no mark."""
    sizes = {"longformer": {"window": 512}, "sparse": {"stride": 16, "summary": 3}, "linear": {"eps": 1e-6}}
    for name, attention in sizes.items():
        config = {"attention": attention, "protocol": {}, "seed": 1}
        kept = {"full_pattern": name == "longformer"} if name != "linear" else {}
        put(tmp_path, 1, 37.0, attention=name, variant="transformer", config=config, **kept)
        put(tmp_path / "text", 1, 50.0, attention=name, variant="transformer", config=config, task="text")
    files = files_of(tmp_path)
    lines = files["details.md"].splitlines()
    for first in ("Longformer, window 512, = softmax here", "Sparse Trans., stride 16, summary 3", "Linear ELU"):
        assert any(line.startswith(f"| {first} | O(L") for line in lines)
    assert [
        line
        for line in lines
        if line.startswith("| Longformer | O(L K) | 50.00 (1) [U] | 37.00 (1) [U] = softmax here |")
    ]
    assert sum(line.startswith("`= softmax here`:") for line in lines) == 1
    assert files["table1.tex"].count("= softmax here") == 4  # two cells, two captions
    assert "<td>= softmax here</td>" in Report(tmp_path).page([])


def test_the_command(cli: Commands, small: Path) -> None:
    code, out, err = cli(command.main, str(small))
    assert code == 0
    assert out.startswith("# Results: ")
    shown = out.splitlines()
    assert 2 < len(shown) <= 10 and shown == (small / "README.md").read_text().splitlines()[: len(shown)]
    assert "wrote" in err
    assert all((small / name).exists() for name in FILES if name != "verdicts.svg")  # one seed tests nothing
    (small / "empty").mkdir()
    for bad, message in (
        (small / "nowhere", "no such folder"),
        (small / "empty", "no record.json below it"),
    ):
        code, out, err = cli(command.main, str(bad))
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1


def test_needs_neither_torch_nor_hydra(small: Path) -> None:
    """The whole report and its verification, figures and page included."""
    complete(small)
    probe = (
        "import sys; from pathlib import Path\n"
        "from lra.report import write_report; from lra.report.check.verify import verify\n"
        f"write_report(Path({str(small)!r}))\n"
        f"assert verify(Path({str(small)!r}))[1] == []\n"
        "assert not {'torch', 'hydra', 'omegaconf'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_report_is_the_same_to_the_byte_when_built_again(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "column"
    shutil.copytree(whole / "books", folder / "books")

    def built() -> dict[str, bytes]:
        write_report(folder)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    first = built()
    assert {*FILES} < {*first}
    assert built() == first


def put_curve(path: Path, accuracies: list[float | None]) -> None:
    """Evaluations at steps 10, 20, ..."""
    lines = [json.dumps({"step": 10 * n, "val_accuracy": value}) for n, value in enumerate(accuracies, start=1)]
    path.with_name(record.METRICS).write_text("".join(f"{line}\n" for line in lines))


def test_steps_to_the_accuracy_of_the_transformer_of_the_same_seed(tmp_path: Path) -> None:
    """From scratch and with nothing frozen, whatever the name of its case."""
    vanilla = {"attention": "softmax", "variant": "transformer"}
    for seed, accuracies in enumerate(([20.0, 35.0, 30.0], [50.0, None, 41.0]), start=1):
        put_curve(put(tmp_path, seed, 30.0, **vanilla, settings={"case": "none"}), accuracies)
    frozen = put(tmp_path, 1, 30.0, **vanilla, settings={"case": "frozen"})
    change(frozen, config={"train": {"freeze": ["qkv"]}})
    put_curve(frozen, [32.0, 34.9, 34.0])
    started = put(tmp_path, 2, 30.0, **vanilla, settings={"case": "started"})
    change(started, config={"init": {"sha256": "0"}})
    put_curve(started, [41.0, 50.5])
    put_curve(put(tmp_path, 1, 30.0, settings={"model.depth": 2}), [90.0])
    page = page_of(tmp_path)
    start = page.index("### Steps to the Transformer's validation accuracy: ListOps")
    assert [line for line in page[start:].split("\n\n")[2].splitlines() if "Trans" in line] == [
        "| Transformer (case=frozen) | 10 / never |  |",
        "| Transformer (case=none) | 20 (30.00) / 20 (35.00) | 10 (41.00) / 10 (50.00) |",
        "| Transformer (case=started) |  | 10 / 20 |",
    ]
    put_curve(put(tmp_path, 1, 30.0, **vanilla, settings={"case": "another"}), [1.0])
    assert "### Steps" not in page_of(tmp_path)


def test_lower_is_better_where_perplexity_counts() -> None:
    curve = {"step": [1, 2, 3, 4], "val_perplexity": [9.0, None, 7.0, 5.0]}
    assert records.reached(curve, "val_perplexity", 7.0, lower=True) == 3
    assert records.reached(curve, "val_perplexity", 4.0, lower=True) is None
    assert records.reached(curve, "val_perplexity", 7.0, lower=False) == 1


def test_the_layout_of_table_2(tmp_path: Path) -> None:
    systems = {"softmax": "transformer", "simple": "simple_resl"}
    for attention, variant in systems.items():
        for depth in (1, 2, 10):
            for seed in (1, 2):
                settings = {"model.depth": depth, "model.dim": 64}
                put(tmp_path, seed, 80.0 + depth + seed, attention=attention, variant=variant, settings=settings)
    page = page_of(tmp_path)
    start = page.index("### By number of blocks: ListOps")
    assert page[start:].split("\n\n")[1].splitlines()[0] == (
        "| blocks | Transformer (model.dim=64) | Simple-ResL (model.dim=64) | Transformer (model.dim=64), published "
        "| Simple-ResL (model.dim=64), published |"
    )
    assert "| 10 | 91.50 ± 0.71 (2) [n2] | 91.50 ± 0.71 (2) ? [n2] |  |  |" in page


def test_the_page_has_eighty_lines_at_most(tmp_path: Path) -> None:
    for number in range(50):
        for task in range(12):
            put(tmp_path / str(task), 1, 37.0, attention=f"system{number:02d}", task=f"task{task}", baselines={})
    lines = files_of(tmp_path)["README.md"].splitlines()
    assert len(lines) <= 80
    assert "22 more systems in the page." in lines


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="getrusage has the peak of the parent, too")
def test_ten_thousand_runs_are_reported_within_a_minute(tmp_path: Path) -> None:
    """In 500 cells: a minute of a processor, and 2 GiB."""
    rng = np.random.default_rng(3)
    systems = ("simple", "linear", "performer", "s4d", "gla")
    for attention, rate, seed in itertools.product(systems, range(100), range(20)):
        put(tmp_path, seed, round(rng.normal(50, 2), 2), attention=attention, settings={"train.lr": rate})
    program = (
        "import re, sys, time; from pathlib import Path; from lra.report import write_report\n"
        "write_report(Path(sys.argv[1]))\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())\n"
        "print(time.process_time(), peak[1])"
    )
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    seconds, kilobytes = map(float, said.stdout.split())
    assert seconds <= 60
    assert kilobytes <= 2 << 20
