"""What each system can, by its accuracy: cards.md."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from golden.folder import make
from reports import change, complete, declare, put
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.records import record
from lra.report import Report, write_cards, write_pages, write_report
from lra.report.check.overview import write_overview
from lra.report.check.verify import verify
from lra.report.render import cards


def page_of(folder: Path) -> str:
    return cards.page(Report(folder))


COSTS = {
    "rows": {
        "simple": {
            "settings": "scale length",
            "lengths": {"1024": {"ratio": [1.02, 0.9, 1.1], "memory": 1.0}, "4096": {"ratio": [1, 1, 1], "memory": 1}},
        },
        "luna": {"settings": "memory 7", "lengths": {"1024": {"ratio": [3.25, 3, 4], "memory": 5.5}}},
    },
    "flags": {"simple": {"order": False, "mask": True, "causal": False, "variants": True}},
}


@pytest.mark.parametrize(
    ("mean", "interval", "baseline", "expected"),
    [
        (95.0, (90.0, 100.0), 20.0, "yes"),
        (95.0, None, 20.0, "yes"),
        (96.0, (95.0, 97.0), 97.0, "no"),  # the baseline does it, too
        (94.99, (94.0, 96.0), 20.0, "partly"),
        (25.0, (20.01, 29.99), 20.0, "partly"),
        (25.0, (20.0, 30.0), 20.0, "unclear"),
        (60.0, (10.0, 110.0), 20.0, "unclear"),
        (60.0, None, 20.0, "unclear"),
        (24.99, (24.9, 25.1), 20.0, "no"),
        (5.0, (4.0, 6.0), 20.0, "no"),
    ],
)
def test_a_word_for_an_accuracy(
    mean: float, interval: tuple[float, float] | None, baseline: float, expected: str
) -> None:
    assert cards.word(mean, interval, baseline) == expected


@pytest.fixture
def furnished(tmp_path: Path) -> Path:
    """One column with baselines of 17.05 and 36.2, and costs beside its folder."""
    root = tmp_path / "kept"
    for seed, (solved, learned, stuck) in enumerate([(97.0, 50.0, 37.0), (99.0, 52.0, 36.0)], start=1):
        put(root, seed, solved, attention="softmax", variant="transformer")
        put(root, seed, learned)
        put(root, seed, stuck, attention="luna", variant="transformer")
    declare(
        root,
        {"attention": "softmax", "variant": "transformer", "seeds": [1, 2]},
        {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3]},
        {"attention": "luna", "variant": "transformer", "seeds": [1, 2]},
    )
    for path in root.rglob("simple/**/record.json"):
        more = 20 * (record.read(path)["seed"] == 2)
        easy, hard = ({"examples": 1000, "correct": correct + more} for correct in (700, 300))
        change(path, diagnostics={"pairs": {"2": easy, "8": hard}})
    (tmp_path / cards.ATTENTIONS).write_text(json.dumps(COSTS))
    return root


def rows_of(page: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines}


def card_of(page: str, system: str) -> str:
    return re.split(r"\n(?=#)", page.split(f"### {system}\n")[1])[0]


def test_a_row_and_a_card_say_what_the_records_and_the_costs_give(furnished: Path) -> None:
    page = write_cards(furnished).read_text()
    rows = rows_of(page)
    assert rows["system"][-7:] == [
        *("time, L = 1,024", "memory, L = 1,024", "time, L = 4,096", "memory, L = 4,096", "order", "mask", "causal")
    ]
    assert [rows[name][1].split()[0] for name in ("Transformer", "Simple", "Luna")] == ["yes", "partly", "no"]
    assert rows["Simple"][1].endswith(" − (2/3, 1 missing)")
    assert rows["Simple"][1].startswith("partly 51.00 [38.29, 63.71]")  # t of one degree of freedom: 12.706
    assert rows["Simple"][2:] == ["1.02", "1.00", "1.00", "1.00", "no", "yes", "no"]
    assert rows["Luna"][2:6] == ["3.25", "5.50", "not measured", "not measured"]
    assert rows["Transformer"][2:6] == ["not measured"] * 4
    simple = card_of(page, "Simple")
    assert "- Partly: ListOps (51.00).\n- Worse than Transformer: ListOps.\n" in simple
    assert ", by pairs of the example: 71.00 at 2, 31.00 at 8.\n" in simple
    assert "1.02 times the time and 1.00 times the memory at 1,024 positions; 1.00 times" in simple
    assert "(with scale length).\n- It supports: order no, mask yes, causal no.\n" in simple
    transformer = card_of(page, "Transformer")
    assert "than" not in transformer
    assert "- Its costs were not measured.\n- It supports: not known.\n" in transformer
    assert "the strongest baseline is root operator, 36.20." in page


def test_where_there_is_a_goal_yes_is_for_those_whose_seeds_all_reached_it(tmp_path: Path) -> None:
    ends = {"softmax": ("solved", "solved"), "simple": ("solved", "steps"), "luna": ("steps", "steps")}
    for attention, of_seeds in ends.items():
        for seed, ended in enumerate(of_seeds, start=1):
            config = {"train": {"goal": 97.0, "steps": 700}, "seed": seed}
            accuracy = 96.0 + seed if ended == "solved" else 30.0 if attention == "luna" else 96.0
            variant = "simple" if attention == "simple" else "transformer"
            put(tmp_path, seed, accuracy, attention=attention, variant=variant, ended=ended, steps=100, config=config)
    rows = rows_of(page_of(tmp_path))
    cells = [" ".join(rows[name][1].split()[:5]) for name in ("Transformer", "Simple", "Luna")]
    assert cells == ["yes 2 of 2 97.50", "partly 1 of 2 96.50", "no 0 of 2 30.00"]


def test_what_ran_causally_has_a_causal_form(furnished: Path) -> None:
    for path in furnished.rglob(record.NAME):
        change(path, config={"task": {"causal": True}})
    rows = rows_of(page_of(furnished))
    assert {rows[name][-1] for name in ("Transformer", "Simple", "Luna")} == {"yes"}


def test_a_folder_of_several_protocols_has_a_table_for_each_and_leaves_perplexity_out(tmp_path: Path) -> None:
    make(tmp_path / "kept")
    page = page_of(tmp_path / "kept")
    assert re.findall(r"## In one table: protocol (\w+)", page) == ["paper", "strict"]
    assert "books" not in page.lower()
    assert "No cost stands here" in page
    put(tmp_path / "other", 1, 50.0, metric="perplexity")
    with pytest.raises(UserError, match="no task here has an accuracy"):
        write_cards(tmp_path / "other")


@pytest.mark.parametrize("write", [write_pages, write_report])
def test_a_report_renews_the_cards_that_are_there(furnished: Path, write: Callable[[Path], Path]) -> None:
    complete(furnished)
    write_cards(furnished)
    [path] = furnished.rglob("luna/**/seed1/record.json")
    shutil.rmtree(path.parent)
    assert verify(furnished)[1]
    write(furnished)
    assert verify(furnished)[1] == []


def test_cards_that_are_there_are_verified_and_listed(furnished: Path, cli: Commands) -> None:
    root = furnished
    complete(root)
    write_pages(root)
    code, out, _ = cli(command.main, str(root), "--cards")
    assert (code, out) == (0, "")
    assert verify(root)[1] == []
    assert "- [kept/cards.md](kept/cards.md): What each system can\n" in write_overview(furnished.parent).read_text()
    costs = furnished.parent / cards.ATTENTIONS
    text = costs.read_text()
    costs.write_text(text.replace("1.02", "9.02"))
    assert all(line.startswith("cards.md, line ") for line in verify(root)[1])
    assert verify(root)[1]
    costs.write_text(text.replace('"memory": 1.0', '"memory": -1.0'))
    [fault] = verify(root)[1]
    assert fault.startswith(f"{costs}: rows.simple.lengths.1024.memory: ")
    code, _, err = cli(command.main, str(root), "--cards")
    assert (code, len(err.splitlines())) == (2, 1)
    costs.write_text(text)
    assert verify(root)[1] == []
