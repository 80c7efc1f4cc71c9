"""Published numbers: those of the papers, of our recipes' settings, and of a user's own file."""

import json
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from reports import put
from support import composed, options

from lra.core.errors import UserError
from lra.core.paths import conf_dir
from lra.records.names import TABLE, TABLE_TEX
from lra.reports import Report
from lra.reports.published import Published


@pytest.mark.parametrize("task", ["text", "matching", "listops"])
def test_the_published_settings_are_those_of_our_recipes(task: str) -> None:
    recipe = composed(f"task={task}", "system=simple", "protocol=paper")
    for key, value in Published().sources[0].settings[task].items():
        assert OmegaConf.select(recipe, key) == value, key


def test_the_published_table_is_the_papers() -> None:
    """Rows, columns and numbers of Table 1; the paper took over the rows of Long Range Arena unchanged."""
    published = Published()
    paper, earlier, arena, *_ = published.sources
    later = {name for source in published.sources if source.protocol == "s4" for name in source.best}
    numbers = {name for source in published.sources for name, known in source.best.items() if "listops" in known}
    names = [row.name for row in published.systems.values() if row.name in numbers - later]
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


def check_options(group: str, rows: dict[str, dict[str, str]]) -> None:
    """Rows are options of the group and choose an attention and a variant; one of them is composed."""
    assert options(group) == sorted(rows)
    assert {row["attention"] for row in rows.values()} <= {*options("attention")}
    assert {row["variant"] for row in rows.values()} <= {*options("variant")}
    option, row = list(rows.items())[-1]
    choices = composed(f"system={'other/' * (group == 'system/other')}{option}").hydra.runtime.choices
    assert (choices.attention, choices.variant) == (row["attention"], row["variant"])


def test_a_row_of_table_1_is_declared_once_and_everywhere() -> None:
    """Options, sweeps and published values follow from conf/table1.yaml."""
    rows = yaml.safe_load((conf_dir() / "table1.yaml").read_text())["systems"]
    runs = {row["option"]: row for row in rows if "option" in row}
    check_options("system", runs)
    published = Published()
    for task in ("text", "matching", "listops"):
        numbers = [name for name, best in published.sources[0].best.items() if task in best]
        assert numbers == [row["name"] for row in rows]
    for preset in ("table1", "table1_small"):
        assert composed(f"experiment={preset}").hydra.sweeper.params.system == "glob(*)", "every option"


def test_further_systems_are_declared_once() -> None:
    rows = {row["option"]: row for row in yaml.safe_load((conf_dir() / "systems.yaml").read_text())["systems"]}
    check_options("system/other", rows)
    published = Published()
    for row in rows.values():
        assert published.name(row["attention"], row["variant"], "") == row["name"]
        assert published.complexity(row["attention"]) == row["complexity"]


OWN = """
systems: [{name: Mine, attention: mine, variant: transformer, complexity: O(1)}]
sources:
  - name: My paper
    reference: me, 2026
    numbers: means of 3 seeds
    best: {Mine (model.depth=2): {listops: 41.5}, Theirs: {listops: 42.5}, Mine: {mytask: 1.5}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    put(tmp_path, 1, 37.0)
    put(tmp_path, 1, 30.0, attention="mine", variant="transformer", settings={"model.depth": 2})
    return tmp_path


def test_a_users_own_published_numbers(small: Path) -> None:
    (small / "published.yaml").write_text(OWN)
    put(small, 1, 2.5, attention="mine", variant="simple", task="mytask", baselines={})
    table = Report(small).texts()[TABLE]
    assert "Mine (model.depth=2),mine,transformer,model.depth=2,O(1),1,30," in table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [{name: x}]", r"sources\.0\.reference: Field required"),
        ("source: []", r"source: Extra inputs are not permitted"),
        (OWN.replace("41.5", "many"), r"best\.Mine \(model\.depth=2\)\.listops: .*valid number.*found 'many'"),
        ("tasks: {text: 2001-99-99}", "month must be in 1..12"),
        (OWN.replace("My paper", "SimpleTRON v2"), "source 'SimpleTRON v2' exists already"),
        ("a: [", "not readable"),
    ],
)
def test_a_mistake_in_published_numbers_is_one_line(small: Path, text: str, message: str) -> None:
    (small / "published.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        Report(small)
    assert str(caught.value).startswith(str(small / "published.yaml"))
    assert "\n" not in caught.value.args[0]


@pytest.mark.parametrize(
    "text", [r"O(\input{/etc/passwd})", r"O(L)$\input{x}$", "O(L\\\\L)", "O(#)", "O(L_a^b)", "O({)"]
)
def test_a_complexity_is_a_formula_or_text_and_never_a_command(small: Path, text: str) -> None:
    (small / "published.yaml").write_text(
        f"systems: [{{name: Mine, attention: mine, variant: transformer, complexity: {json.dumps(text)}}}]\n"
    )
    line = next(line for line in Report(small).texts()[TABLE_TEX].splitlines() if line.startswith("Mine"))
    assert set(re.findall(r"\\[A-Za-z]+", line)) <= {r"\textbackslash", r"\textasciicircum", r"\pm"}
