"""Reports: the numbers of tables against SciPy and NumPy, what a table pools, and texts in every format."""

import csv
import io
import itertools
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from reports import EXAMPLES, change, declare, put, race, softmax
from scipy import stats
from scipy.special import expit, logit

from lra.core.errors import UserError
from lra.records import record
from lra.records.names import PAGE, README, RUNS, SEEDS, SWEEP, TABLE, TABLE_TEX
from lra.records.runs import keep_runs, read_runs
from lra.reports import Report, write_report
from lra.reports.frame import short_names
from lra.reports.render import as_csv
from lra.reports.statistics import compare, holm, not_above, summarise

OURS, THEIRS, OTHERS = (37.0, 38.5, 37.5, 36.0), (35.0, 36.2, 35.5), (36.8, 37.2, 36.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three systems; a seed of one failed and a seed of another is missing."""
    for seed, accuracy in enumerate(OURS, start=1):
        put(tmp_path, seed, accuracy)
    for seed, accuracy in enumerate(THEIRS, start=1):
        put(tmp_path, seed, accuracy, **softmax())
    put(tmp_path, 4, None, **softmax())
    for seed, accuracy in enumerate(OTHERS, start=1):
        put(tmp_path, seed, accuracy, attention="linear", variant="transformer")
    names = {"simple": "simple", "softmax": "transformer", "linear": "transformer"}
    declare(tmp_path, *({"attention": name, "variant": names[name], "seeds": [1, 2, 3, 4]} for name in names))
    return tmp_path


def lines(folder: Path, name: str, **arguments: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Report(folder, **arguments).texts()[name])))


def rows(folder: Path, **arguments: object) -> dict[str, dict[str, str]]:
    """Return the rows of table.csv by system."""
    return {line["system"]: line for line in lines(folder, TABLE, **arguments)}


def test_a_cell_has_the_statistics_of_its_seeds(folder: Path) -> None:
    found = rows(folder)["Simple"]
    mean = np.mean(OURS) / 100
    slope = 1 / (mean * (1 - mean))
    low, high = 100 * expit(stats.t.interval(0.95, len(OURS) - 1, logit(mean), slope * stats.sem(OURS) / 100))
    best = np.mean([max(drawn) for drawn in itertools.product(OURS, repeat=len(OURS))])
    expected = {"n": 4, "mean": np.mean(OURS), "sd": np.std(OURS, ddof=1), "low": low, "high": high, "best": max(OURS)}
    assert {name: float(found[name]) for name in expected} == pytest.approx(expected, rel=1e-9)
    assert float(found["expected_best"]) == pytest.approx(best, rel=1e-9)
    assert [float(score) for score in found["seeds"].split()] == [*OURS]
    assert float(found["published"]) == 37.45


def test_a_difference_is_welchs_and_corrected_over_the_column(folder: Path) -> None:
    tests = {
        name: stats.ttest_ind(scores, THEIRS, equal_var=False)
        for name, scores in (("Simple", OURS), ("Linear ELU", OTHERS))
    }
    smaller, larger = sorted(test.pvalue for test in tests.values())
    corrected = {smaller: min(1, 2 * smaller), larger: max(min(1, 2 * smaller), larger)}
    by_system = rows(folder)
    for name, test in tests.items():
        found, interval = by_system[name], test.confidence_interval()
        assert found["reference"] == "Transformer"
        values = [float(found[key]) for key in ("difference_low", "difference_high", "p", "p_holm")]
        assert values == pytest.approx([*interval, test.pvalue, corrected[test.pvalue]])
    assert by_system["Transformer"]["reference"] == ""


@pytest.mark.parametrize("margin", [0.5, 2.0, 5.0])
def test_equivalence_is_two_one_sided_tests(margin: float) -> None:
    up = stats.ttest_ind(np.add(OURS, margin), THEIRS, equal_var=False, alternative="greater").pvalue
    down = stats.ttest_ind(np.subtract(OURS, margin), THEIRS, equal_var=False, alternative="less").pvalue
    found = compare(OURS, THEIRS, margin)
    assert found.p_equivalent == pytest.approx(max(up, down))
    assert (found.word() == "equivalent") == (max(up, down) < 0.05)


def test_holm_by_its_definition() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_comparisons_without_two_spreads_are_untested() -> None:
    assert compare([50.0], [40.0, 41.0], 1).word() == "untested"
    assert compare([50.0, 50.0], [40.1, 40.1], 1).word() == "untested"
    assert compare([], [40.0], 1).difference is None
    assert summarise([]).mean is None and summarise([3.0]).sd is None
    assert summarise([49.55] * 3).sd == 0


def test_lower_perplexity_is_better(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        put(tmp_path, seed, 30.0 + seed / 10, metric="perplexity", baselines={"unigram": 25.0})
        put(tmp_path, seed, 40.0 + seed / 10, metric="perplexity", baselines={"unigram": 25.0}, **softmax())
    found = rows(tmp_path)["Simple"]
    assert (found["verdict"], float(found["best"])) == ("better", 30.1)
    best = np.mean([min(drawn) for drawn in itertools.product((30.1, 30.2, 30.3), repeat=3)])
    assert float(found["expected_best"]) == pytest.approx(best)
    mean, sem = math.log(30.2 - 1), stats.sem((30.1, 30.2, 30.3)) / (30.2 - 1)
    interval = 1 + np.exp(stats.t.interval(0.95, 2, mean, sem))
    assert [float(found[name]) for name in ("low", "high")] == pytest.approx(interval.tolist())
    assert "No system beats the best trivial baseline on ListOps (unigram, 25.00)." in Report(tmp_path).texts()[README]


@pytest.mark.parametrize(
    "scores", [(99.1, 99.2, 98.9, 30.0, 99.0), (100.0, 0.0), (100.0, 100.0, 99.9), (0.0, 0.1), (100.0, 100.0)]
)
def test_statistics_of_accuracies_are_accuracies(scores: tuple[float, ...]) -> None:
    found = summarise(scores)
    assert 0 <= found.low <= found.mean <= found.high <= 100
    assert min(scores) <= found.expected_best <= max(scores) == found.best
    difference = compare(scores, (0.0, 3.0), 1)
    assert -100 <= difference.low <= difference.difference <= difference.high <= 100


def test_intervals_near_the_bound_cover_the_mean_more_often_than_those_of_t() -> None:
    """Three seeds each; accuracies have mean 98 % and standard deviation 3."""
    drawn = 100 * np.random.default_rng(1).beta(0.98 * 20, 0.02 * 20, (1000, 3))
    ours = [summarise(scores) for scores in drawn.tolist()]
    theirs = stats.t.interval(0.95, 2, drawn.mean(axis=1), stats.sem(drawn, axis=1))
    covered = np.mean([found.low <= 98 <= found.high for found in ours])
    assert 0.9 < covered < 0.97 and np.mean((theirs[0] <= 98) & (theirs[1] >= 98)) < 0.85


@pytest.mark.parametrize("correct", [360, 390, 396, 420])
def test_a_seed_at_the_majority_class_is_not_above_it_within_its_interval(correct: int) -> None:
    z, n = stats.norm.ppf(0.975), EXAMPLES
    share = correct / n
    centre, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = (centre - half) / (1 + z * z / n)
    assert not_above(correct, n, 18.0) == (100 * low <= 18.0)


def test_seeds_at_the_majority_class_are_a_footnote(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((17.05, 30.0, 17.5), start=1):
        put(tmp_path, seed, accuracy)
    assert rows(tmp_path)["Simple"]["majority_class"] == "2"
    assert "2 of 3 seeds no better than the majority class" in Report(tmp_path).texts()[README]


def test_missing_and_failed_seeds_are_named(folder: Path) -> None:
    by_system = rows(folder)
    assert [by_system[name]["problems"] for name in ("Transformer", "Linear ELU")] == ["1 failed", "1 missing"]
    states = [(line["system"], line["seed"], line["status"]) for line in lines(folder, SEEDS) if line["score"] == ""]
    assert states == [("Transformer", "4", "failed"), ("Linear ELU", "4", "missing")]
    assert "**10 of 12 runs are finished.**" in Report(folder).texts()[README]


@pytest.mark.parametrize(
    ("steps", "median"), [((100, 300, None), "300"), ((300, None, None, 100), "300"), ((300, None, None), "")]
)
def test_medians_count_seeds_that_do_not_solve_a_task_as_never(
    tmp_path: Path, steps: tuple[int | None, ...], median: str
) -> None:
    for seed, count in enumerate(steps, start=1):
        race(tmp_path, seed, count or 500, solved=count is not None)
    found, solved = rows(tmp_path)["Simple"], len(steps) - steps.count(None)
    assert [float(found[name]) for name in ("goal", "ran", "solved")] == [90, len(steps), solved]
    assert found["median_steps"] == median
    page = Report(tmp_path).texts()[README]
    assert f"| Simple | {solved} of {len(steps)} |" in page and (f"| Simple | {median} |" in page) == (median != "")


def test_the_reference_is_the_one_that_is_asked_for(folder: Path) -> None:
    cell = {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3, 4], "margin": 3.0}
    declare(folder, {**cell, "reference": "Linear ELU"})
    by_system = rows(folder)
    assert by_system["Simple"]["reference"] == by_system["Transformer"]["reference"] == "Linear ELU"


def test_a_pretrained_row_is_compared_with_its_row_from_scratch(tmp_path: Path) -> None:
    for seed in (1, 2):
        for known in ({}, softmax()):
            put(tmp_path, seed, 37.0 + seed, **known, settings={"case": "scratch"})
            put(tmp_path, seed, 38.0 + seed, **known, settings={"case": "pre"}, config={"pretrain": {"mask": 0.4}})
    by_system = rows(tmp_path)
    pretrained, scratch = (by_system[f"Simple (case={case})"] for case in ("pre", "scratch"))
    assert (pretrained["reference"], scratch["reference"]) == ("Simple (case=scratch)", "Transformer (case=scratch)")
    assert pretrained["footnotes"] == "starts from pretrained weights"


def test_another_selection_rule_shows_its_results(folder: Path) -> None:
    assert float(rows(folder, selection="last")["Simple"]["mean"]) == 1.0
    with pytest.raises(UserError, match="no run .* has this result; leave the option out"):
        Report(folder, "best_test")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config": {"train": {"lr": 0.1}}}, "a cell of the table but differ in config.train.lr"),
        ({"task_version": 2}, "a cell of the table but differ in task_version"),
        ({**softmax(), "provenance": {"data_sha256": "d2"}}, "a column of the table but differ in data"),
        (
            {**softmax(), "config": {"protocol": {"scale": "none"}}},
            "a column of the table but differ in config.protocol",
        ),
        ({"settings": {}, "seed": 1}, "have the same seed of one cell"),
        ({**softmax(), "baselines": {"majority class": 1.0}}, "one result of the majority class, found"),
    ],
)
def test_runs_that_differ_in_more_than_a_table_shows_are_refused(tmp_path: Path, changes: dict, expected: str) -> None:
    put(tmp_path, 1, 37.0)
    placed = {key: changes[key] for key in ("attention", "variant", "config", "baselines") if key in changes}
    path = put(tmp_path, 2, 37.0, **placed)
    change(path, **{key: value for key, value in changes.items() if key not in placed})
    with pytest.raises(UserError, match=re.escape(expected).replace(r"\ but", ".*but")):
        Report(tmp_path)


def test_fitted_baselines_may_differ_between_machines_and_inexact_resumes_are_noted(tmp_path: Path) -> None:
    """The table shows the best result of a fitted baseline."""
    for seed, value in ((1, 76.316), (2, 76.372), (3, 76.328)):
        path = put(tmp_path, seed, 37.0, baselines={"majority class": 17.05, "bag of words": value})
        change(path, **({"inexact": ["threads: 1, then 2"]} if seed == 2 else {}))
    cells = Report(tmp_path).cells
    assert cells[cells.system == "bag of words"]["mean"].tolist() == [76.372]
    [footnotes] = cells[cells.kind == "system"].footnotes
    assert "1 of 3 seeds resumed under other conditions (resume=inexact)" in footnotes


def test_a_setting_that_is_swept_may_differ(tmp_path: Path) -> None:
    for scale in ("length", "none"):
        put(tmp_path, 1, 37.0, settings={"protocol.scale": scale}, config={"protocol": {"scale": scale}})
    assert len(Report(tmp_path).cells) == 4


def test_a_sweep_of_rates_names_the_best_by_validation_and_compares_these(tmp_path: Path) -> None:
    """The other rate has the higher test result."""
    for known, shift in (({}, 0), (softmax(), 1)):
        for rate, test, validation in ((0.1, 40.0, 30.0), (0.2, 30.0, 45.0), (0.4, 35.0, 20.0)):
            for seed in (1, 2):
                path = put(tmp_path, seed, test + shift + seed, **known, settings={"train.lr": rate},
                           config={"train": {"lr": rate}})  # fmt: skip
                change(path, validation={"best": {"accuracy": validation + seed}})
    by_system = rows(tmp_path)
    found = {name: by_system[name] for name in ("Simple (train.lr=0.2)", "Simple (train.lr=0.1)")}
    assert [line["best_rate"] for line in found.values()] == ["True", "False"]
    assert [line["footnotes"] for line in found.values()] == ["best learning rate of this system by validation", ""]
    assert [line["reference"] for line in found.values()] == ["Transformer (train.lr=0.2)", ""]
    assert float(found["Simple (train.lr=0.2)"]["difference"]) == -1
    assert float(found["Simple (train.lr=0.1)"]["lr"]) == 0.1


def test_a_row_of_ones_own_at_the_rate_of_the_others_is_untuned(tmp_path: Path) -> None:
    mine = {"attention": "mine", "variant": "transformer", "row": {"name": "Mine", "complexity": "O(L)"}}
    for seed in (1, 2):
        put(tmp_path, seed, 37.0 + seed)
        put(tmp_path, seed, 38.0 + seed, **mine)
    by_system = rows(tmp_path)
    assert by_system["Mine"]["footnotes"] == "untuned: learning rate 0.005, as for other systems"
    assert by_system["Simple"]["footnotes"] == ""
    for seed in (1, 2):
        put(tmp_path, seed, 38.0 + seed, **mine, config={"train": {"lr": 0.1}})
    found = rows(tmp_path)["Mine"]
    assert (found["footnotes"], found["lr"]) == ("", "0.1")


def test_a_baseline_that_no_system_beats_is_named(tmp_path: Path) -> None:
    for accuracy, named in ((36.0, True), (36.3, False)):
        put(tmp_path, 1, accuracy)
        put(tmp_path, 1, 17.0, **softmax())
        page = Report(tmp_path).texts()[README]
        assert ("No system beats the best trivial baseline on ListOps (root operator, 36.20)." in page) == named


def test_a_report_is_the_same_from_folders_and_from_kept_runs(folder: Path, tmp_path: Path) -> None:
    before = Report(folder).texts()
    assert Report(folder).texts() == before
    keep_runs(folder, read_runs(folder))
    assert Report(folder / RUNS).texts() == before
    first = (folder / RUNS).read_bytes()
    keep_runs(folder, read_runs(folder / RUNS))
    assert (folder / RUNS).read_bytes() == first
    for path in [*folder.glob("listops"), folder / SWEEP]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert Report(folder).texts() == before, "with the missing seeds that the sweep declared"


def test_a_paused_run_is_not_kept(folder: Path) -> None:
    change(put(folder, 9, None), status="paused")
    with pytest.raises(UserError, match="seed9: paused; train it to its end, or delete it"):
        keep_runs(folder, read_runs(folder))
    assert not (folder / RUNS).exists()


def test_all_files_are_written(folder: Path) -> None:
    assert write_report(folder) == folder / README
    page = (folder / PAGE).read_text()
    assert page.count("<svg xmlns") > 4
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page.replace('xlink:href="#', ""))
    assert (folder / "seeds.svg").read_text().startswith("<svg")
    assert (folder / TABLE_TEX).read_text().count(r"\toprule") == 1


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        Report(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no record.json below it and no runs.jsonl in it"):
        Report(tmp_path)


# Names and texts of runs are text in every format.

HOSTILE = "<script>zq7x</script> | [a](javascript:zq7x) _b_ $\\input{x}$ =1+1"


def test_names_are_text_in_every_format(tmp_path: Path) -> None:
    name = {"name": HOSTILE, "complexity": "O(L)$\\input{x}$"}
    put(tmp_path, 1, 37.0, attention="mine", variant="transformer", row=name)
    put(tmp_path, 1, 36.0, attention="=other", variant="transformer")
    write_report(tmp_path)
    assert "<script>zq7x" not in (tmp_path / PAGE).read_text()
    readme = next(line for line in (tmp_path / README).read_text().splitlines() if "zq7x" in line)
    assert r"\<script>" in readme and r"\]\(" not in readme and r"\](javascript" in readme
    assert len(re.findall(r"(?<!\\)\|", readme)) == 4
    tex = next(line for line in (tmp_path / TABLE_TEX).read_text().splitlines() if "zq7x" in line)
    assert set(re.findall(r"\\[A-Za-z]+", tex)) <= {r"\textbackslash", r"\pm", r"\tnote"}
    assert "\n=" not in (tmp_path / TABLE).read_text() and ",=" not in (tmp_path / TABLE).read_text()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex; install TeX Live with its latex-extra")
def test_a_table_with_any_names_compiles(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = [HOSTILE, "a^b~c\\d", "{x}%#&_$", "Nyströmformer √L ± ² …", '`code` "quoted" [a]']
    for place, name in enumerate(names):
        put(
            folder, 1, 37.0, attention=f"mine{place}", variant="transformer", row={"name": name, "complexity": "O(L√L)"}
        )
    paper = tmp_path_factory.mktemp("paper")
    head = r"\documentclass{article}\usepackage{booktabs,threeparttable}\begin{document}"
    (paper / "paper.tex").write_text(f"{head}{Report(folder).texts()[TABLE_TEX]}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=paper, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0 and "Missing character" not in done.stdout, done.stdout[-2000:]


def test_no_text_of_a_table_is_a_formula() -> None:
    import pandas as pd

    frame = pd.DataFrame([{"a": "=1+1", "b": -1.5, "c": "@x"}, {"a": "+1", "b": 2, "c": "-x"}])
    assert as_csv(frame) == "a,b,c\n'=1+1,-1.5,'@x\n'+1,2,'-x\n"


def test_a_record_is_written_as_it_is_read(folder: Path) -> None:
    for path in folder.rglob("record.json"):
        before = path.read_bytes()
        run = record.RunRecord.read(path)
        record.write(path.parent, run.values())
        assert record.RunRecord.read(path) == run
        assert path.read_bytes() == before


def test_tasks_of_one_report_have_different_short_names() -> None:
    for tasks in (["reviews (a)", "reviews (b)", "reviews-2"], ["reviews-2", "reviews (a)", "reviews (b)"]):
        assert len({*short_names(tasks, {}).values()}) == 3
