"""Numbers in Markdown that the records fill in: against values that are computed here, from the records' own words."""

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest
from golden.folder import CORRECT, EXAMPLES, make
from reports import put
from support import Commands

from lra.cli import report as command
from lra.core.errors import UserError
from lra.core.files import write_json
from lra.records import record
from lra.records.names import METRICS
from lra.report import write_pages
from lra.report.check.numbers import Quantities, fill, mismatches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a results folder `sweep` and a benchmark `steps`."""
    root = tmp_path_factory.mktemp("results")
    make(root / "sweep")
    straight = {"subject": "straightforward", "allocated_bytes": 7_000_000, "flops": 13e9, "ratio": [1.0, 1.0, 1.0]}
    ours = {"subject": "lra", "length": 17, "allocated_bytes": 3_500_000, "flops": 11e9, "ratio": [0.5, 0.25, 0.75]}
    textbook = {"subject": "textbook:softmax", "ratio": [1.25]}
    write_json(root / "bench" / "steps" / "bench.json", {"results": [straight, ours, textbook]})
    write_json(root / "bench" / "empty" / "bench.json", {})
    return root


def accuracies(system: str, protocol: str = "strict", task: str = "listops") -> list[float]:
    return [100 * count / EXAMPLES for count in CORRECT[task, protocol, system]]


def test_quantities_are_those_of_the_records(folder: Path) -> None:
    luna, vanilla = accuracies("luna"), accuracies("transformer")
    differences = [accuracy - reference for accuracy, reference in zip(luna, vanilla, strict=True)]
    expected = {
        "sweep/listops strict/Luna/mean ± sd": f"{fmean(luna):.2f} ± {stdev(luna):.2f}",
        "sweep/listops strict/Luna/mean:.1f": f"{fmean(luna):.1f}",
        "sweep/listops strict/Luna/lowest": f"{min(luna):.2f}",
        "sweep/listops strict/*/runs": f"{min(luna + vanilla):.2f} to {max(luna + vanilla):.2f}",
        "sweep/listops strict/Luna, Transformer/means": f"{fmean(vanilla):.2f} to {fmean(luna):.2f}",
        "sweep/listops strict/Luna - Transformer/difference": f"{fmean(differences):+.2f}",
        "sweep/listops strict/Luna - Transformer/differences": f"{min(differences):+.2f} to {max(differences):+.2f}",
        "sweep/listops strict/Luna - root operator/lowest": f"{min(luna) - 35.45:+.2f}",
        "sweep/listops strict/root operator/baseline": "35.45",
        "published/SimpleTRON v4/listops/Simple": "37.45",
        "bench/steps/lra at 17/ratio [spread]": "0.50 [0.25, 0.75]",
        "bench/steps/lra at 17 beside straightforward/memory": "0.50",
        "bench/steps/straightforward/operations": "13",
        "bench/steps/textbook:softmax/ratio": "1.25",
        "bench/steps/textbook:softmax/ratio:.1f": "1.2",
    }
    quantities = Quantities(folder)
    assert {name: quantities.text(name) for name in expected} == expected


def test_quantities_of_a_race_are_those_of_its_seeds(tmp_path: Path) -> None:
    steps = {"softmax": (300, 500, 400, 350, 450), "linear": (1900, 2100, 2000, 0, 1800), "simple": (0, 0, 0, 0, 0)}
    config = {"train": {"goal": 99.0, "steps": 1900}}
    for system, of_seeds in steps.items():
        variant = "simple" if system == "simple" else "transformer"
        for seed, reached in enumerate(of_seeds, start=1):
            end = "solved" if reached else "no progress" if seed % 2 else "steps"
            how = {"ended": end, "steps": reached or 2300, "attention": system, "variant": variant}
            put(tmp_path / "race", seed, 99.5 if reached else 30.0, **how, config=config | {"seed": seed})
    expected = {
        "Transformer/solved": "5 of 5",
        "Transformer/median steps": "400",
        "Linear ELU, Simple/solved": "4 of 10",
        "*/no progress": "3 of 6",
        "Linear ELU/no progress": "0 of 1",
        "Linear ELU - Transformer/race": "slower",
        "Simple - Transformer/race": "slower",
    }
    quantities = Quantities(tmp_path)
    assert {name: quantities.text(f"race/listops/{name}") for name in expected} == expected
    for name in ("Simple/median steps", "Linear ELU - Simple/race"):  # half never got there; neither is the reference
        with pytest.raises(UserError, match="the records have no such number"):
            quantities.text(f"race/listops/{name}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sweep/listops strict/Luna", "expected FOLDER/COLUMN/SYSTEM/QUANTITY"),
        ("sweap/listops strict/Luna/mean", "no folder 'sweap' in .*did you mean 'sweep'?"),
        ("sweep/listops/Luna/mean", "nothing is called 'listops'"),
        ("sweep/listops strict/Lunar/mean", "no system is called 'Lunar'; did you mean 'Luna'?"),
        ("sweep/listops strict/Luna/solved", "the records have no such number"),
        ("sweep/listops strict/Luna/meen", "nothing is called 'meen'; did you mean 'mean'?"),
        ("sweep/listops strict/*/mean", "'mean' is of one system, not of 2"),
        ("sweep/listops strict/Luna/mean:.2q", "expected a format like .2f, found '.2q'"),
        ("sweep/listops strict/Luna/val_loss at 11", "the records have no such number"),
        ("published/SimpleTRON v4/listops/Nobody", "the records have no such number"),
        ("sweep/listops strict/*/steps to 100", "the records have no such number"),
        ("sweep/listops strict/Luna/val_accuracy in block 1", "the records have no such number"),
        (
            "sweep/listops strict/Luna beside Transformer/steps to 101",
            "expected a quantity of one number each|no quotient",
        ),
        ("bench/stops/lra/ratio", "bench.json: not a readable measurement"),
        ("bench/empty/lra/ratio", "bench.json: not a readable measurement"),
        ("bench/steps/lra/ratio", "did you mean 'lra at 17'?"),
        ("bench/steps/straightforward/seconds", "'straightforward' has no 'seconds'"),
    ],
)
def test_a_name_of_nothing_says_what_is_known(folder: Path, name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason.replace("?", r"\?")):
        Quantities(folder).text(name)


@pytest.mark.parametrize("quantity", ["mean ± sd", "lowest", "runs", "parameters"])
def test_a_row_without_a_finished_run_has_no_numbers(tmp_path: Path, quantity: str) -> None:
    put(tmp_path / "half", 1, None)
    with pytest.raises(UserError, match="none of its runs is finished"):
        Quantities(tmp_path).text(f"half/listops/Simple/{quantity}")


def test_systems_of_which_some_have_no_number_span_the_others(tmp_path: Path) -> None:
    """A failed run has no mean, and a single seed no standard deviation."""
    for seed, accuracy in ((1, 36.0), (2, 38.0)):
        put(tmp_path / "half", seed, accuracy)
    put(tmp_path / "half", 1, 31.0, attention="linear", variant="transformer")
    put(tmp_path / "half", 1, None, attention="softmax", variant="transformer")
    quantities = Quantities(tmp_path)
    assert quantities.text("half/listops/*/means") == "31.00 to 37.00"
    assert quantities.text("half/listops/*/sds") == "1.41 to 1.41"


@pytest.mark.parametrize(
    "name",
    [
        "Simple - Transformer/lowest",
        "Simple - Transformer/differences",
        "Simple - Transformer/p",
        "Linear ELU - majority class/highest",
        "Simple/gradient_norm at 50",
        "Simple/score_std in block 1",
        "Simple/score_std in blocks 1-2",
        "Simple/parameters",
        "Simple/frozen",
    ],
)
def test_a_number_that_no_record_has_is_said_to_be_none(tmp_path: Path, name: str) -> None:
    """No seed in common, a probe of each block, a block that was not probed, a key that the record lacks."""
    path = put(tmp_path / "half", 1, 36.0)
    line = {"step": 50, "gradient_norm": [0.5, 0.25], "score_std": [None, None]}
    path.with_name(METRICS).write_text(json.dumps(line) + "\n")
    run = {key: value for key, value in record.read(path).items() if "parameters" not in key}
    record.write(path.parent, run | {"files": record.sha256(path.parent, METRICS)})
    put(tmp_path / "half", 2, 37.0, attention="softmax", variant="transformer")
    put(tmp_path / "half", 1, None, attention="linear", variant="transformer")
    with pytest.raises(UserError, match="the records have no such number"):
        Quantities(tmp_path).text(f"half/listops/{name}")


def test_a_name_with_a_comma_stands_alone_and_in_a_list(tmp_path: Path) -> None:
    """As tables call a system that none of ours is."""
    put(tmp_path / "mixed", 1, 36.0)
    put(tmp_path / "mixed", 1, 31.0, attention="mine", variant="simple")
    quantities = Quantities(tmp_path)
    assert quantities.text("mixed/listops/mine, simple/mean") == "31.00"
    assert quantities.text("mixed/listops/Simple, mine, simple/means") == "31.00 to 36.00"
    lines = quantities.table("mixed: mine, simple, Simple").splitlines()
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| mine, simple", "| Simple"]


def test_filling_writes_the_numbers_alone(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    before = "# Words\n\nIt has <!--{sweep/listops strict/Luna/mean}-->12.34<!--{}--> there.\n| <!-- a remark --> |\n"
    page.write_text(before)
    quantities = Quantities(folder)
    [line] = mismatches(page, quantities)
    mean = f"{fmean(accuracies('luna')):.2f}"
    assert line.startswith(f"{page}:3: sweep/listops strict/Luna/mean: '12.34' stands there, the records say '{mean}'")
    assert fill(page, quantities) == 1
    assert page.read_text() == before.replace("12.34", mean)
    assert list(mismatches(page, quantities)) == []


def test_a_block_of_text_is_filled_as_a_whole(folder: Path, tmp_path: Path) -> None:
    """One mark before and one after; the words are part of what the records say."""
    page = tmp_path / "page.md"
    asked = "\nLuna has {sweep/listops strict/Luna/mean},\nand a step 13 of {bench/steps/lra at 17/operations}.\n"
    page.write_text(f"# Words\n\n<!--{{{asked}}}-->\nLuna has much.\n<!--{{}}-->\nmore\n")
    quantities = Quantities(folder)
    mean = f"{fmean(accuracies('luna')):.2f}"
    [line] = mismatches(page, quantities)
    assert line.startswith(f"{page}:7: Luna has {{sweep")
    assert f"'Luna has much.' stands there, the records say 'Luna has {mean},'" in line
    assert fill(page, quantities) == 1
    filled = f"\nLuna has {mean},\nand a step 13 of 11.\n"
    assert page.read_text() == f"# Words\n\n<!--{{{asked}}}-->{filled}<!--{{}}-->\nmore\n"
    assert list(mismatches(page, quantities)) == []
    page.write_text(page.read_text().replace("step 13 of 11.", "step 13 of 12."))
    [line] = mismatches(page, quantities)
    assert line.startswith(f"{page}:8: ")
    assert "'and a step 13 of 12.' stands there" in line


def test_a_table_is_that_of_the_report_in_the_rows_that_are_asked_for(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!--{table sweep: Luna}-->\n<!--{}-->\n\n<!--{table sweep}-->\n<!--{}-->\n")
    assert fill(page, Quantities(folder)) == 2
    short, whole = (part.split("<!--{}-->")[0].split("\n")[1:-1] for part in page.read_text().split("}-->")[1::2])
    readme = write_pages(folder / "sweep").read_text().split("\n")
    assert set(whole) < set(readme)
    assert [line for line in short if line not in whole] == [
        "| *strongest trivial baseline* |  | 62.50 | 50.00 | 35.45 | 11.95 | 805.44 | 35.45 |"
    ]
    assert any(line.startswith("| Luna |") for line in short)
    assert not any(line.startswith("| Transformer |") for line in short)
    assert any(line.startswith("| Transformer |") for line in whole)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<!--{table sweap}-->\n<!--{}-->", ":1: table sweap: no folder 'sweap'"),
        ("<!--{table sweep: Lunar}-->\n<!--{}-->", ":1: table sweep: Lunar: nothing is called 'Lunar'"),
        ("<!--{\n{sweep/listops strict/Lunar/mean}\n}-->\n<!--{}-->", "no system is called 'Lunar'"),
        (
            "x\n\nx <!--{sweep/listops strict/Luna/mean}-->1\n<!--{}-->",
            ":3: expected <!--{NAME}-->NUMBER<!--{}--> in one line",
        ),
        ("<!--{sweep/listops strict/Luna/mean}-->1<!--{}--> begins", ":1: a line must not begin with a number"),
        (
            "x <!--{sweep/listops strict/Luna/mean}-->1",
            ":1: expected <!--{NAME}-->NUMBER<!--{}-->, found one that is not closed",
        ),
        ("x <!--{sweep/listops strict/Lunar/mean}-->1<!--{}-->", ":1: sweep/listops strict/Lunar/mean: no system"),
    ],
)
def test_a_page_with_a_fault_is_left_as_it_is(folder: Path, tmp_path: Path, line: str, reason: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(line)
    with pytest.raises(UserError) as error:
        fill(page, Quantities(folder))
    assert reason in str(error.value)
    assert reason in "".join(mismatches(page, Quantities(folder)))
    assert page.read_text() == line


def test_the_commands_fill_and_verify_a_folder_of_folders(tmp_path: Path, cli: Commands) -> None:
    root = tmp_path / "results"
    make(root / "sweep")
    (root / "findings.md").write_text("It has <!--{sweep/listops strict/Luna/mean}-->1<!--{}-->.\n")
    text = tmp_path / "more.md"
    text.write_text("It has <!--{sweep/listops strict/Luna/best}-->2<!--{}-->.\n")
    assert cli(command.main, str(root / "sweep"))[0] == 0
    code, _, err = cli(command.main, str(root), "--overview", "--text", str(text))
    assert code == 0, err
    assert "-->40.00<!--" in text.read_text()
    text.write_text(text.read_text().replace("40.00", "40.01"))
    (root / "README.md").write_text("# Results\n")
    code, out, _ = cli(command.main, str(root), "--verify", "--text", str(text))
    assert code == 1
    assert f"{text}:1: sweep/listops strict/Luna/best: '40.01' stands there, the records say '40.00'" in out
    assert f"{root / 'README.md'}, line " in out
    assert str(root / "findings.md") not in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["sweep", "--verify", "--text", "more.md"], "--text: its numbers are of several folders; say --verify ."),
        (["sweep", "--text", "more.md"], "--text: it changes nothing in the report of a folder"),
        (["sweep", "--watch", "--selection", "last"], "--selection: it changes nothing in --watch"),
        (["sweep", "--submit", "--published", "more.yaml"], "--published: it changes nothing in --submit"),
        (["sweep", "--verify", "--pages-only"], "--pages-only: it changes nothing in --verify"),
        (["sweep", "--pages-only", "--selection", "last"], "--selection: --pages-only leaves no file that says which"),
        ([".", "--verify", "--selection", "last"], "--selection, --published: . holds results folders; verify one of"),
    ],
)
def test_an_option_that_would_do_nothing_is_a_mistake(words: list[str], reason: str, cli: Commands) -> None:
    """Silence would pass for a text that was verified."""
    make(Path("sweep"))
    assert cli(command.main, "sweep")[0] == 0
    code, out, err = cli(command.main, *words)
    assert (code, out) == (2, "")
    assert reason in err
