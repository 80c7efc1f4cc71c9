"""The answer of a report: verdicts, caveats, systems over several tasks, and their pictures."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reports import change, declare, files_of, lines_of, page_of, put
from scipy import stats

from lra.core.errors import UserError
from lra.records import record
from lra.report import Report
from lra.report.check.numbers import Quantities
from lra.report.render.figures import stem
from lra.report.render.pictures import dot_of


def put_systems(root: Path, runs: dict[str, dict[int, float]], **changes: object) -> None:
    """Cells that a sweep declared, from accuracies by seed; `softmax` is the Transformer."""
    cells = []
    for attention, scores in runs.items():
        variant = "simple" if attention == "simple" else "transformer"
        for seed, accuracy in scores.items():
            put(root, seed, accuracy, attention=attention, variant=variant, **changes)
        cells.append({"attention": attention, "variant": variant, "seeds": list(scores)})
    declare(root, *cells)


VANILLA = {1: 37.0, 2: 37.5, 3: 36.5, 4: 39.0, 5: 39.5}
ALIKE = {1: 37.1, 2: 37.4, 3: 36.6, 4: 38.9, 5: 39.4}
FAR = {1: 41.0, 2: 41.5, 3: 42.0}


def rows_of(folder: Path) -> dict[str, dict[str, str]]:
    return {row["system"]: row for row in lines_of(files_of(folder)["table1.csv"])}


def test_verdicts_are_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Linear minus the Transformer is 4.5 over seeds 1 to 3, though the means differ by 3.6; the page says so."""
    put_systems(tmp_path, {"softmax": VANILLA, "linear": FAR, "simple": {seed: 30.0 + seed / 10 for seed in VANILLA}})
    rows = rows_of(tmp_path)
    assert rows["Transformer"]["verdict"] == rows["Transformer"]["reference"] == ""
    linear, simple = rows["Linear ELU"], rows["Simple"]
    assert (linear["verdict"], linear["common_seeds"], linear["reference"]) == ("better", "3", "Transformer")
    assert float(linear["difference"]) == pytest.approx(4.5)
    assert simple["verdict"] == "worse"
    page = files_of(tmp_path)["README.md"]
    assert "1 better (Linear ELU +4.50 [" in page
    assert "up to 0.90 from those of the printed means" in page
    assert "+4.50 (means: +3.60)" in page_of(tmp_path)


def test_what_is_within_the_margin_is_equivalent_where_the_seeds_can_tell(tmp_path: Path) -> None:
    put_systems(
        tmp_path, {"softmax": {seed: 37 + seed / 10 for seed in VANILLA}, "simple": {s: 37 + s / 9 for s in VANILLA}}
    )
    assert rows_of(tmp_path)["Simple"]["verdict"] == "equivalent"


def test_what_cannot_be_told_is_undecided_with_the_seeds_that_would_decide(tmp_path: Path) -> None:
    put_systems(tmp_path, {"softmax": VANILLA, "simple": ALIKE})
    row = rows_of(tmp_path)["Simple"]
    assert row["verdict"] == "undecided"
    assert f", {row['seeds_to_decide']} seeds each would decide" in files_of(tmp_path)["README.md"]
    assert int(row["seeds_to_decide"]) > 5


def test_a_sweep_says_its_reference_and_its_margin(tmp_path: Path) -> None:
    put_systems(tmp_path, {"softmax": VANILLA, "simple": ALIKE, "linear": FAR})
    path = tmp_path / "sweep.json"
    cells = json.loads(path.read_text())["cells"]
    record.declare(path, [{**cell, "reference": "Linear ELU", "margin": 9.0} for cell in cells])
    rows = rows_of(tmp_path)
    assert {name: row["reference"] for name, row in rows.items()} == {
        "Transformer": "Linear ELU", "Simple": "Linear ELU", "Linear ELU": "",
    }  # fmt: skip
    assert rows["Simple"]["verdict"] == "equivalent"
    record.declare(path, [{**cell, "margin": margin} for margin, cell in enumerate(cells, start=1)])
    with pytest.raises(UserError, match="give sweep.reference and sweep.margin once"):
        files_of(tmp_path)


def test_both_collapsed_is_no_equivalence(tmp_path: Path) -> None:
    """Also where one system alone gives one answer in every seed."""
    at_majority = {seed: 17.05 for seed in VANILLA}
    put_systems(tmp_path, {"softmax": at_majority, "simple": at_majority, "linear": {1: 17.0, 2: 17.1, 3: 17.05}})
    rows = rows_of(tmp_path)
    assert {rows[name]["verdict"] for name in ("Simple", "Linear ELU")} == {"untested"}
    assert rows["Simple"]["caveats"] == "collapsed 5/5; below baseline; untested"
    assert "Simple: both collapsed in every seed" in files_of(tmp_path)["README.md"]
    quantities = Quantities(tmp_path.parent)
    assert quantities.text(f"{tmp_path.name}/listops/Simple/not collapsed") == "0 of 5"


@pytest.mark.parametrize(("width", "task", "is_narrow"), [
    (64, "listops", True), (512, "listops", False), (64, "listops (limit 7)", False),
])  # fmt: skip
def test_a_model_that_is_narrower_than_the_published_one_says_so(
    tmp_path: Path, width: int, task: str, is_narrow: bool
) -> None:
    """Table 3 of SimpleTRON has 512 for ListOps; other data have no published number to stand beside."""
    put_systems(tmp_path, {"softmax": FAR, "simple": ALIKE}, task=task)
    for path in tmp_path.rglob("record.json"):
        change(path, config={"model": {"dim": width}})
    assert ("narrow" in rows_of(tmp_path)["Simple"]["caveats"].split("; ")) == is_narrow


def test_caveats_stand_wherever_the_number_does(tmp_path: Path) -> None:
    """In the README, all tables, the data and LaTeX."""
    put_systems(tmp_path, {"softmax": FAR, "simple": {1: 30.0, 2: 30.5, 3: 31.0}}, task="listops (limit 7)")
    for path in tmp_path.rglob("record.json"):
        change(path, test={"best_test": record.read(path)["test"]["best_val"]}, config={"init": {"sha256": "0"}})
    files = files_of(tmp_path)
    labels = ["selected on test", "below baseline", "n = 3", "partial data", "pretrained"]
    assert rows_of(tmp_path)["Simple"]["caveats"] == "; ".join(labels)
    assert "listops-small [T n3 P W] |" in files["README.md"]
    assert "(3) − [B] |" in files["README.md"].replace("(3/3)", "(3)")
    assert f"| {', '.join(labels)} |" in files["details.md"]
    of_all, of_simple = "selected on test, n = 3, partial data, pretrained", "below baseline"
    assert f"Every row: {of_all}." in files["table1.tex"]
    assert rf"& {of_simple} \\" in files["table1.tex"]
    path = Path("figures", f"{stem('cost', 'listops-small')}.svg")
    said = f"listops-small: score and cost. Every row: {of_all}. {of_simple}: Simple."
    report = Report(tmp_path)
    assert f"({path})\n\n{said}\n" in report.files({path.as_posix(): ""})["details.md"]
    shown = re.sub("<[^>]+>", "", report.page([path.as_posix()]))
    assert said.replace("cost.", "cost (SVG, PNG).") in shown
    assert "T selected on test" not in files["table1.tex"]  # one task has no matrix


def test_systems_over_tasks_by_hand(tmp_path: Path) -> None:
    """The Transformer's baseline is 36.2 in both tasks: (37.9 - 36.2) / 63.8 and (41.5 - 36.2) / 63.8."""
    for task, (softmax, linear) in {"text": (VANILLA, FAR), "listops": (FAR, VANILLA)}.items():
        for attention, scores in {"softmax": softmax, "linear": linear}.items():
            for seed, accuracy in scores.items():
                put(tmp_path / task, seed, accuracy, attention=attention, variant="transformer", task=task)
    [systems] = Report(tmp_path).across.values()
    assert [known.system for known in systems] == ["Transformer", "Linear ELU"]
    for known in systems:
        assert known.score[0] == pytest.approx(((37.9 + 41.5) / 2 - 36.2) / 63.8)
        assert known.rank[0] == 1.5
        assert known.score[1][0] < known.score[0] < known.score[1][1]
    assert systems[0].better is None
    assert systems[1].better[0] == 0.5  # all of its runs win one task, none the other
    assert "### Over the tasks" in page_of(tmp_path)


def test_the_picture_has_a_dot_for_every_verdict(whole: Path) -> None:
    """At the place of its estimate between the ends of its interval, in a panel for each task that was tested."""
    picture = ElementTree.fromstring(files_of(whole)["verdicts.svg"])
    space = {"svg": "http://www.w3.org/2000/svg"}
    rows = picture.findall("svg:g", space)
    expected = [row for row in lines_of(files_of(whole)["table1.csv"]) if row["difference_low"]]
    assert sorted(row.get("class") for row in rows) == sorted(row["verdict"] for row in expected)
    assert len(picture.findall("svg:rect", space)) == len({(row["task"], row["protocol"]) for row in expected})
    for row in rows:
        [line] = [line for line in row.findall("svg:line", space) if line.get("class") == "i"]
        assert float(line.get("x1")) <= float(row.find("svg:circle", space).get("cx")) <= float(line.get("x2"))


def test_the_dot_of_a_row_is_on_one_scale_with_its_seeds_its_interval_and_the_baseline(tmp_path: Path) -> None:
    """Their places are one straight line of their numbers; the interval is Student's."""
    put_systems(tmp_path, {"softmax": VANILLA, "linear": FAR})
    [column] = Report(tmp_path).columns
    values = list(FAR.values())
    [row] = [row for row in column.rows if row.name == "Linear ELU"]
    ends = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    dot = dot_of(column, row)
    places = [float(place) for place in (*dot["seeds"], *dot["ends"], dot["tick"], dot["mean"])]
    numbers = [*values, *ends, 36.2, np.mean(values)]
    slope, start = np.polyfit(numbers, places, 1)
    assert slope > 1
    np.testing.assert_allclose(places, slope * np.array(numbers) + start, atol=0.11)  # a tenth of a pixel
