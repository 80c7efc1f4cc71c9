"""The report: numbers by hand, missing and failed cells, what it refuses to pool, what may be bold, its receipts."""

import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from golden import folder as golden
from omegaconf import OmegaConf
from support import Commands, composed

from lra import record
from lra.errors import UserError
from lra.files import digest, write_json
from lra.report import Report, curves, latex, write_report
from lra.report import __main__ as command
from lra.report.layout import Grid, Text
from lra.report.markdown import markdown
from lra.report.published import Published
from lra.report.records import Cell, Key
from lra.report.table import Column, sections
from lra.report.verify import verify

FILES = ("README.md", "pairs.csv", "seeds.csv", "table1.csv", "table1.json", "table1.tex")


def put(root: Path, seed: int, accuracy: float | None, **changes: object) -> Path:
    """A small record in its place; accuracy None makes it a failed run."""
    finished = accuracy is not None
    correct = round(20 * accuracy) if finished else 0
    entry = {"accuracy": accuracy, "correct": correct, "examples": 2000, "loss": 1.0, "step": 50}
    last = {**entry, "accuracy": 1.0, "correct": 20, "step": 100}
    run = {
        "task": "listops",
        "task_version": 1,
        "attention": "simple",
        "variant": "simple",
        "protocol": "paper",
        "settings": {},
        "seed": seed,
        "selection": "best_val",
        "metric": "accuracy",
        "status": "finished" if finished else "failed",
        "steps": 100,
        "test": {"last": last, "best_val": entry} if finished else {},
        "validation": {"best": entry, "last": entry} if finished else {},
        "baselines": {"majority class": 17.05, "root operator": 36.2} if finished else {},
        "seconds": {"train": 60.0, "evaluate": 6.0},
        "tokens_per_second": 1000.0,
        "config": {"model": {"depth": 6}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": seed},
        "provenance": {
            "commit": "abc",
            "dirty": False,
            "data_sha256": "d1",
            "packages": {"torch": "2.13.0"},
            "python": "3.11",
            "device": "cpu",
            "cpu": "one",
            "threads": 2,
            "precision": "fp32",
        },
    } | changes
    run["provenance"] = {**run["provenance"], "config_sha256": digest(run["config"])}
    settings = ",".join(f"{key}={value}" for key, value in run["settings"].items())
    folder = root / "listops" / run["protocol"] / run["attention"] / run["variant"] / settings / f"seed{seed}"
    record.write(folder, run)
    return folder / record.NAME


def change(path: Path, **parts: dict) -> None:
    """Merge nested dictionaries into a record."""

    def merged(old: dict, new: dict) -> dict:
        changed = {
            name: merged(old.get(name, {}), part) if isinstance(part, dict) else part for name, part in new.items()
        }
        return {**old, **changed}

    record.write(path.parent, merged(record.read(path), parts))


def declare(root: Path, *cells: dict) -> None:
    base = {"task_name": "listops", "protocol": "paper", "selection": "best_val", "settings": {}}
    entries = [{**base, **cell, "folder": f"listops/paper/{cell['attention']}/{cell['variant']}"} for cell in cells]
    write_json(root / "sweep.json", {"schema": 1, "cells": entries})


def files_of(folder: Path, *arguments: object) -> dict[str, str]:
    """The text files of a report, without its figures."""
    return Report(folder, *arguments).files(figures=[])


def page_of(folder: Path, *arguments: object) -> str:
    return files_of(folder, *arguments)["README.md"]


def write_files(folder: Path) -> None:
    for name, text in files_of(folder).items():
        (folder / name).write_text(text)


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, accuracy in enumerate((37.0, 38.0, 37.5), start=1):
        put(tmp_path, seed, accuracy)
    put(tmp_path, 1, 36.35, attention="softmax", variant="transformer")
    put(tmp_path, 2, None, attention="softmax", variant="transformer", reason="fire")
    put(tmp_path, 1, 30.0, attention="mine", variant="transformer", settings={"model.depth": 2})
    declare(
        tmp_path,
        {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3, 4]},
        {"attention": "softmax", "variant": "transformer", "seeds": [1, 2]},
        {"attention": "simple", "variant": "simple_res", "seeds": [1, 2]},
    )
    return tmp_path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The results folder of tests/golden."""
    root = tmp_path / "golden"
    golden.make(root)
    return root


def test_the_table_by_hand(folder: Path) -> None:
    page = page_of(folder)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    interval = "[36.26, 38.74]"  # 37.5 +- 4.302653 x 0.5 / sqrt(3)
    assert lines[:8] == [
        "| system | complexity | best | mean ± sd | 95 % interval | seeds | published | mean - published |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| *baseline: majority class* |  |  | 17.05 |  |  |  |  |",
        "| *baseline: root operator* |  |  | 36.20 |  |  |  |  |",
        "| Transformer | O(L²) | 36.35 | 36.35 |  | 1/2, 1 failed | 36.37 | -0.02 |",
        f"| Simple | O(L) | 38.00 | 37.50 ± 0.50 | {interval} | 3/4, 1 missing | 37.45 | +0.05 |",
        "| Simple-Res | O(L) | missing | missing |  | 0/2, 2 missing | 37.10 |  |",
        "| mine, transformer (model.depth=2) |  | 30.00 | 30.00 |  | 1 |  |  |",
    ]
    assert "Protocol `paper`, selection `best_val`" in page
    assert "| Simple | [37.00](listops/paper/simple/simple/seed1/record.json) |" in page
    assert "| Transformer | [36.35](listops/paper/softmax/transformer/seed1/record.json) | [failed](" in page
    assert "commit: abc" in page
    assert "6 runs, 6.6 minutes" in page


def test_the_spread_and_the_differences_by_hand(folder: Path) -> None:
    """Gains 0.5 and 0.8463 x 0.5 = 0.42. The only common seed of Simple and the Transformer is 1: 37 - 36.35."""
    page = page_of(folder)
    assert "| Simple | 37.00 | 38.00 | 0.50 | 0.42 | 17 |" in page
    assert "| Simple minus | mean ± sd | 95 % interval | p | p (Holm) | seeds | seeds to see 0.5 |" in page
    assert "| Transformer | +0.65 |  |  |  | 1 |  |" in page
    assert "| *baseline: root operator* | +1.30 ± 0.50 | [0.06, 2.54] | 0.046 |  | 3 |  |" in page


def test_the_csv_carries_every_digit(folder: Path) -> None:
    files = files_of(folder)
    rows = {row["system"]: row for row in lines_of(files["table1.csv"])}
    simple = rows["Simple"]
    found = [simple[name] for name in ("best", "mean", "sd", "minimum", "maximum", "done", "declared")]
    assert found == ["38.0", "37.5", "0.5", "37.0", "38.0", "3", "4"]
    assert float(simple["low"]) == pytest.approx(37.5 - 4.302652730 * 0.5 / 3**0.5)
    assert float(simple["mean_minus_published"]) == pytest.approx(37.5 - 37.45)
    assert (simple["published_source"], simple["published_mean"]) == ("SimpleTRON v4", "37.15")
    assert rows["Simple-Res"]["best"] == ""
    seeds = lines_of(files["seeds.csv"])
    assert len(seeds) == 4 + 2 + 2 + 1
    assert {row["status"] for row in seeds} == {"finished", "failed", "missing"}
    one = next(row for row in seeds if row["system"] == "Simple")
    assert one["record"].endswith("seed1/record.json")
    assert one["record_sha256"] == hashlib.sha256((folder / one["record"]).read_bytes()).hexdigest()
    pairs = lines_of(files["pairs.csv"])
    assert len(pairs) == 4 * 3 / 2
    assert [row["mean_difference"] for row in pairs if row["other"] == "Transformer"] == ["0.65"]


def test_the_json_says_the_same_as_the_csv(whole: Path) -> None:
    files = files_of(whole)
    found = json.loads(files["table1.json"])
    for lines, cells in (
        (lines_of(files["table1.csv"]), found["cells"]),
        (lines_of(files["pairs.csv"]), found["pairs"]),
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
        "print(hashlib.sha256(repr(Report(Path(sys.argv[1])).files(figures=[])).encode()).hexdigest())"
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


def test_protocols_have_tables_of_their_own(folder: Path) -> None:
    put(folder, 1, 39.0, protocol="strict", attention="softmax", variant="transformer")
    page = page_of(folder)
    assert page.index("## Protocol `paper`") < page.index("## Protocol `strict`")
    assert "| Transformer | O(L²) | 39.00 | 39.00 |  | 1 | 36.37 | +2.63 |" in page


def test_the_selection_rule_decides_which_accuracy_is_shown(tmp_path: Path) -> None:
    put(tmp_path, 1, 40.0, selection="last")
    page = page_of(tmp_path)
    assert "selection `last`" in page
    assert "| Simple | O(L) | 1.00 | 1.00 |" in page
    assert "Asked for" not in page


def test_another_selection_can_be_asked_for_and_is_labelled(folder: Path) -> None:
    page = page_of(folder, "last")
    assert "## Protocol `paper`, selection `last`" in page
    assert "Asked for with `--selection`; these runs' own rule is `best_val`." in page
    assert "| Simple | O(L) | 1.00 | 1.00 ± 0.00 | [1.00, 1.00] | 3/4, 1 missing |" in page


def test_a_selection_that_some_runs_lack_is_a_gap_not_a_zero(whole: Path) -> None:
    """Text alone was validated on its test split."""
    rows = {(row["task"], row["system"]): row for row in lines_of(files_of(whole, "best_test")["table1.csv"])}
    assert rows["text", "Linear ELU"]["done"] == "5"
    assert (rows["matching", "Simple-ResL"]["mean"], rows["matching", "Simple-ResL"]["problems"]) == (
        "", "5 without best_test",
    )  # fmt: skip


def test_a_selection_that_no_run_has_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="--selection best_test: no record below .* has it"):
        Report(folder, "best_test")


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


# Published numbers


def test_published_values_stand_only_beside_the_same_data(tmp_path: Path) -> None:
    put(tmp_path, 1, 90.0, task="listops (length 10-50)")
    page = page_of(tmp_path)
    assert "37.45" not in page
    assert "No published figure is for this data" in page


def test_settings_that_are_not_the_published_ones_are_named(tmp_path: Path) -> None:
    def config(steps: int) -> dict:
        return {"model": {"depth": 6}, "train": {"lr": 0.005, "steps": steps}}

    said = "Other settings here: train.steps 1000 (15000 there)."
    put(tmp_path, 1, 37.0, config=config(1000))
    put(tmp_path, 1, 37.0, config=config(15000), variant="simple_res")
    assert said in page_of(tmp_path)
    assert said in files_of(tmp_path)["table1.tex"]
    put(tmp_path, 1, 37.0, config=config(15000))
    assert "Other settings" not in page_of(tmp_path)


@pytest.mark.parametrize("task", ["text", "matching", "listops"])
def test_the_published_settings_are_those_of_our_recipes(task: str) -> None:
    recipe = composed(f"task={task}", "system=simple", "protocol=paper")
    for key, value in Published().sources[0].settings[task].items():
        assert OmegaConf.select(recipe, key) == value, key


def test_the_published_table_is_the_papers() -> None:
    """Rows, columns and numbers of Table 1, and that Long Range Arena's rows were taken over as they are."""
    published = Published()
    paper, earlier, arena = published.sources
    names = list(published.systems("listops"))
    assert (names[0], names[1], names[-1], len(names)) == ("Random", "Transformer", "Simple-ResL", 21)
    assert sorted(["listops", "books", "text", "matching"], key=published.task_order) == [
        "text", "matching", "listops", "books",
    ]  # fmt: skip
    assert [paper.number("Simple", task) for task in ("text", "matching", "listops")] == [66.75, 73.92, 37.45]
    assert [earlier.number("Simple", "matching", which) for which in ("best", "mean")] == [67.92, 67.04]
    for name in arena.best:
        assert all(paper.number(name, task) == arena.number(name, task) for task in ("text", "matching", "listops"))
    assert arena.number("Performer", "image") == 42.77
    depths = [paper.number(f"Simple-ResL (model.depth={depth})", "ag_news") for depth in range(1, 13)]
    assert (depths[0], depths[-1]) == (90.90, paper.number("Simple-ResL", "ag_news"))
    assert None not in depths


OWN = """
systems: [{name: Mine, attention: mine, variant: transformer, complexity: O(1)}]
sources:
  - name: My paper
    reference: me, 2026
    numbers: means of 3 seeds
    best: {Mine (model.depth=2): {listops: 41.5}, Theirs: {listops: 42.5}, Mine: {mytask: 1.5}}
"""


def test_a_users_own_published_numbers(folder: Path) -> None:
    (folder / "published.yaml").write_text(OWN)
    (folder / "more.yaml").write_text(OWN.replace("My", "Your").replace("Mine", "Yours").replace("mine", "yours"))
    put(folder, 1, 2.5, attention="mine", variant="simple", task="mytask", baselines={})
    page = page_of(folder, None, [folder / "more.yaml"])
    assert "| Mine (model.depth=2) | O(1) | 30.00 | 30.00 |  | 1 |" in page
    assert (
        "| system | ours: paper, best_val | SimpleTRON v4 | SimpleTRON v2 | Long Range Arena | My paper | Your paper |"
    ) in page
    assert "| Theirs |  |  |  |  | 42.50 | 42.50 |" in page
    assert "| Mine (model.depth=2) | 30.00 (1) |  |  |  | 41.50 |  |" in page
    assert "- My paper: me, 2026 (means of 3 seeds)" in page
    with pytest.raises(UserError, match=r"published.yaml: system 'Mine' is known already"):
        page_of(folder, None, [folder / "published.yaml"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [{name: x}]", r"sources\.0\.reference: Field required"),
        ("source: []", r"source: Extra inputs are not permitted"),
        (OWN.replace("41.5", "many"), r"best\.Mine \(model\.depth=2\)\.listops: .*valid number.*found 'many'"),
        (OWN.replace("My paper", "SimpleTRON v2"), "source 'SimpleTRON v2' is known already"),
        ("a: [", "not a readable file of published numbers"),
    ],
)
def test_a_mistake_in_published_numbers_is_one_line(folder: Path, text: str, message: str) -> None:
    (folder / "published.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        page_of(folder)
    assert str(caught.value).startswith(str(folder / "published.yaml"))
    assert len(str(caught.value).splitlines()) == 1


# What may be bold


def column_of(scores: dict[str, Sequence[float]], declared: int = 5, metric: str = "accuracy", **more: float) -> Column:
    """A column of complete cells from scores by seed, with trivial baselines."""

    def cell(name: str, values: Sequence[float]) -> Cell:
        run = {"status": "finished", "selection": "last", "baselines": more}
        runs = {
            seed: {
                **run,
                "seed": seed,
                "path": f"{name}{seed}/record.json",
                "test": {"last": {metric: value, "step": 1}},
            }
            for seed, value in enumerate(values, start=1)
        }
        key = Key("paper", "last", "stub", name, "transformer", "")
        return Cell(key, runs, set(range(1, declared + 1)), metric)

    [section] = sections(Path("nowhere"), [cell(name, values) for name, values in scores.items()], Published())
    return section.columns[0]


A, B, C = (40.0, 41.0, 42.0, 41.5, 40.5), (38.1, 39.0, 39.9, 39.6, 38.5), (37.0, 38.2, 39.0, 38.4, 37.5)


def test_rows_are_sorted_by_the_size_of_their_settings() -> None:
    texts = ["", "model.depth=1", "model.depth=2", "model.depth=12", "train.lr=0.01 x=3", "train.lr=0.5 x=1"]
    keys = [Key("paper", "last", "text", "simple", "simple", text) for text in texts]
    assert sorted(keys[::-1], key=Published().order) == keys


def test_a_row_that_beats_all_others_is_bold() -> None:
    column = column_of({"a": A, "b": B, "c": C}, chance=10.0)
    assert column.bold == "a, transformer"
    assert column.verdict.startswith("a, transformer is better than every other row (the closest call: +")
    assert [comparison.other for comparison in column.against] == ["b, transformer", "c, transformer", "chance"]
    assert column_of({"a": A, "b": B, "c": C}, metric="perplexity", chance=80.0).bold == "c, transformer"


def test_holms_correction_is_over_all_tests_of_the_table() -> None:
    p_values = [comparison.difference.p for comparison in column_of({"a": A, "b": B, "c": C}).against]
    adjusted = [comparison.holm for comparison in column_of({"a": A, "b": B, "c": C}).against]
    assert adjusted == pytest.approx([max(2 * min(p_values), p) for p in p_values])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (column_of({"a": A, "b": A[::-1]}), "has the best mean, but"),
        (column_of({"a": A, "b": B}, chance=40.9), "to chance, p = "),
        (column_of({"a": A, "b": B}, root=45.0), "-4.00 to root, p < 0.001"),
        (column_of({"a": A, "b": B}, declared=6), "not all seeds that a sweep declared are done of a, transformer, b"),
        (column_of({"a": A[:4], "b": B}), "not all seeds that a sweep declared are done of a, transformer."),
        (column_of({"a": A}), "there are no two systems"),
        (column_of({"a": A, "b": [score - 1 for score in A]}), "differences that vary"),
        (column_of({"a": A[:1], "b": B[:1]}, declared=1), "at least two seeds"),
    ],
)
def test_nothing_else_is_bold(column: Column, reason: str) -> None:
    assert column.bold is None
    assert column.verdict.startswith("No row is bold: ")
    assert reason in column.verdict


def test_what_no_sweep_declared_is_not_bold(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    assert "No row is bold: not all seeds that a sweep declared are done of Transformer, Simple, mine" in page_of(
        folder
    )


def test_systems_that_are_alike_are_rarely_bold_and_one_that_is_better_often() -> None:
    rng = np.random.default_rng(17)

    def some_bold(ahead: float) -> bool:
        scores = rng.normal(37, 1, 5) + rng.normal(0, 0.5, (4, 5))
        scores[0] += ahead
        return column_of(dict(zip("abcd", scores.tolist(), strict=True))).bold is not None

    assert sum(some_bold(0.0) for _ in range(300)) < 0.05 * 300
    assert sum(some_bold(2.5) for _ in range(100)) > 0.8 * 100


# Predictions


def put_predictions(path: Path, right: Sequence[int], labels: Sequence[int] = (1, 2) * 1000) -> None:
    """Predictions beside a record that are right at these places alone."""
    labels = np.array(labels, dtype=np.uint8)
    predicted = labels + 1
    predicted[list(right)] -= 1
    np.save(path.with_name("predictions.npy"), np.stack([predicted, labels]))
    change(path, test={"best_val": {"correct": len(right), "accuracy": len(right) / 20}})


def test_mcnemar_counts_the_test_examples(folder: Path) -> None:
    """Simple alone is right about 10 examples, the Transformer about 3: p = 2 x (1 + 13 + 78 + 286) / 2^13."""
    put_predictions(folder / "listops/paper/simple/simple/seed1/record.json", range(740))
    put_predictions(folder / "listops/paper/softmax/transformer/seed1/record.json", [*range(730), 800, 801, 802])
    files = files_of(folder)
    found = next(pair for pair in json.loads(files["table1.json"])["pairs"] if pair["other"] == "Transformer")
    assert found["mcnemar"] == [
        {"seed": 1, "only_system": 10, "only_other": 3, "p": pytest.approx(378 / 4096)},
    ]
    assert "| Transformer | +0.35 |  |  |  | 1 |  | 0/1 |" in files["README.md"]


def test_predictions_belong_to_the_checkpoint_that_was_selected(folder: Path) -> None:
    """The last step is another checkpoint than the best, so the predictions say nothing of it."""
    for place in ("simple/simple", "softmax/transformer"):
        put_predictions(folder / f"listops/paper/{place}/seed1/record.json", range(740))
    assert "McNemar |" in page_of(folder)
    assert "McNemar |" not in page_of(folder, "last")


def test_predictions_of_other_labels_are_refused(folder: Path) -> None:
    put_predictions(folder / "listops/paper/simple/simple/seed1/record.json", range(740))
    put_predictions(folder / "listops/paper/softmax/transformer/seed1/record.json", range(740), labels=(2, 1) * 1000)
    with pytest.raises(UserError, match=r"simple/seed1/record.json and .*transformer/seed1/.* on different labels"):
        page_of(folder)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.uint8), np.zeros(2000, np.uint8)])
def test_predictions_of_another_shape_are_refused(folder: Path, array: np.ndarray) -> None:
    np.save(folder / "listops/paper/simple/simple/seed1/predictions.npy", array)
    with pytest.raises(UserError, match=r"predictions.npy: expected an array of shape \(2, 2000\), found"):
        page_of(folder)


def test_damaged_predictions_are_named(folder: Path) -> None:
    (folder / "listops/paper/simple/simple/seed1/predictions.npy").write_bytes(b"")
    with pytest.raises(UserError, match="predictions.npy: not a readable array"):
        page_of(folder)


def test_collapsed_runs_and_outliers_are_flagged(whole: Path) -> None:
    """A seed at the majority class, and one below it that gives one answer to everything."""

    def flagged() -> dict[tuple[str, str], str]:
        rows = lines_of(files_of(whole)["seeds.csv"])
        return {(row["task"], row["seed"]): row["flags"] for row in rows if row["flags"]}

    assert flagged() == {("text", "3"): "collapsed outlier", ("listops", "3"): "collapsed outlier"}
    (whole / "listops/paper/simple/simple/seed3/predictions.npy").unlink()
    assert flagged() == {("text", "3"): "collapsed outlier", ("listops", "3"): "outlier"}


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"config": {"model": {"depth": 5}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": 9}},
            "differ in config.model.depth: 6 and 5",
        ),
        (
            {"config": {"model": {}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": 9}},
            "differ in config.model.depth: 6 and None",
        ),
        ({"task_version": 2}, "share a cell of the table but differ in task_version: 1 and 2"),
        ({"task_version": 2, "attention": "other"}, "share a column of the table but differ in task_version: 1 and 2"),
        (
            {"config": {"protocol": {"scale": "valid"}}, "attention": "other"},
            "share a column of the table but differ in config.protocol.scale: length and valid",
        ),
        ({"baselines": {"majority class": 3.0}}, "baseline 'majority class' is 3.0, elsewhere 17.05"),
    ],
)
def test_hidden_differences_are_not_pooled(folder: Path, changes: dict, message: str) -> None:
    put(folder, 9, 37.0, **changes)
    with pytest.raises(UserError, match=message):
        page_of(folder)


def test_a_protocol_that_a_sweep_varies_is_no_hidden_difference(folder: Path) -> None:
    varied = {"config": {"protocol": {"scale": "valid"}}, "settings": {"protocol.scale": "valid"}}
    put(folder, 9, 37.0, **varied)
    assert "| Simple (protocol.scale=valid) |" in page_of(folder)


def test_other_data_are_not_pooled_in_a_column(folder: Path) -> None:
    change(put(folder, 9, 37.0), provenance={"data_sha256": "d2"})
    with pytest.raises(UserError, match="column 'listops': .* were run on different data"):
        page_of(folder)


def test_a_seed_that_stands_twice_is_refused_by_both_names(whole: Path) -> None:
    shutil.copytree(whole / "text/paper/simple/simple/seed2", whole / "text/copy/seed2")
    with pytest.raises(UserError) as caught:
        page_of(whole)
    assert "text/paper/simple/simple/seed2/record.json" in str(caught.value)
    assert "text/copy/seed2/record.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 7}', '{"schema": 1}'])
def test_a_damaged_record_is_named(folder: Path, text: str) -> None:
    path = put(folder, 9, 37.0)
    path.write_text(text)
    with pytest.raises(UserError, match=r"seed9/record.json: not a"):
        page_of(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": [{"folder": "x"}]}'])
def test_a_damaged_sweep_is_named(folder: Path, text: str) -> None:
    (folder / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"sweep.json: not what a sweep declares"):
        page_of(folder)


# Verification


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


# Names are text, not markup


HOSTILE = r"a|b *c* `d` <script> \e_f^g~h 50% & #1 {x} $y$ α"


def test_markdown_of_names(tmp_path: Path) -> None:
    shown = markdown(Grid(["x"], [[Text(HOSTILE)], [Text("n", bold=True, link="a b(c).json")]]))
    assert shown.splitlines()[2].startswith(r"| a\|b \*c\* \`d\` \<script> \\e_f^g~h 50%")
    assert shown.splitlines()[3] == "| [**n**](a%20b%28c%29.json) |"


def test_latex_of_names() -> None:
    shown = latex.escape(HOSTILE)
    assert shown == (
        r"a$|$b *c* `d` $<$script$>$ \textbackslash{}e\_f\textasciicircum{}g\textasciitilde{}h 50\% \& \#1 "
        r"\{x\} \$y\$ U+03B1"
    )


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex")
def test_latex_compiles_and_fits_the_page(whole: Path, tmp_path: Path) -> None:
    put(whole, 1, 36.0, attention=HOSTILE.replace("/", ""), task="Ümläut – 50% <task>", baselines={})
    (tmp_path / "table1.tex").write_text(files_of(whole)["table1.tex"])
    (tmp_path / "paper.tex").write_text(
        r"\documentclass[a4paper]{article}\usepackage[margin=2cm]{geometry}\usepackage{booktabs,graphicx}"
        r"\begin{document}\input{table1}\ref{tab:listops-strict-best-val}\end{document}"
    )
    for _ in range(2):
        done = subprocess.run(
            ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper"],
            cwd=tmp_path, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert (tmp_path / "paper.pdf").exists()
    assert not re.search(r"Overfull|undefined|Missing character|multiply", log)


# The command


def test_the_command(cli: Commands, folder: Path) -> None:
    code, out, err = cli(command.main, str(folder))
    assert code == 0
    assert out.startswith("# Results: ")
    assert "wrote" in err
    assert all((folder / name).exists() for name in FILES)
    (folder / "empty").mkdir()
    for bad, message in ((folder / "nowhere", "no such folder"), (folder / "empty", "no record.json below it")):
        code, out, err = cli(command.main, str(bad))
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1


def test_the_command_verifies(cli: Commands, folder: Path) -> None:
    assert cli(command.main, str(folder), "--selection", "last")[0] == 0
    assert cli(command.main, "--verify", str(folder)) == (0, f"{folder}: 6 records, 0 mismatches\n", "")
    page = folder / "README.md"
    page.write_text(page.read_text().replace("6 runs", "7 runs"))
    code, out, err = cli(command.main, "--verify", str(folder))
    assert (code, err) == (1, "")
    assert re.match(r"README.md, line \d+: found \"- 7 runs.*\", the records give \"- 6 runs.*\"", out)
    assert out.endswith("6 records, 1 mismatches\n")


def test_needs_neither_torch_nor_hydra(whole: Path) -> None:
    """The whole report of sixty records, figures and page included."""
    probe = (
        "import sys; from pathlib import Path\n"
        "from lra.report import write_report; from lra.report.verify import verify\n"
        f"write_report(Path({str(whole)!r}))\n"
        f"assert verify(Path({str(whole)!r}))[1] == []\n"
        "assert not {'torch', 'hydra', 'omegaconf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_the_report_is_the_same_to_the_byte_when_built_again(whole: Path) -> None:
    def built() -> dict[str, bytes]:
        write_report(whole)
        return {path.relative_to(whole).as_posix(): path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    first = built()
    assert {*FILES} < {*first}
    assert built() == first


# What the papers' further experiments ask for


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
    assert curves.reached(curve, "val_perplexity", 7.0, lower=True) == 3
    assert curves.reached(curve, "val_perplexity", 4.0, lower=True) is None
    assert curves.reached(curve, "val_perplexity", 7.0, lower=False) == 1


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
    assert "| 10 | 91.50 ± 0.71 (2) | 91.50 ± 0.71 (2) |  |  |" in page


def test_published_depths_stand_beside_ours(tmp_path: Path) -> None:
    for depth in (1, 12):
        changes = {"attention": "softmax", "variant": "transformer", "settings": {"model.depth": depth}}
        put(tmp_path, 1, 90.0, task="ag_news", baselines={}, **changes)
    page = page_of(tmp_path)
    assert "| blocks | Transformer | Transformer, published |" in page
    assert "| 1 | 90.00 (1) | 89.12 |\n| 12 | 90.00 (1) | 90.10 |" in page


def test_texts_are_quoted_as_text(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = put(tmp_path, seed, 30.0)
        path.with_name("sample.txt").write_text(f"Once {seed}\n\n<b>upon</b> | a\n# time *\n")
    assert "\nSimple, seed 1:\n\n> Once 1 \\<b>upon\\</b> \\| a # time \\*\n" in page_of(tmp_path)
    change(path, files={"sample.txt": "0"})
    with pytest.raises(UserError, match=r"seed2/sample.txt: its SHA-256 is not that of its record"):
        Report(tmp_path)
