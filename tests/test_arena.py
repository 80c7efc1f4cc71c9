"""The six tasks of Long Range Arena side by side: ours and the published rows of the same protocol."""

import re
from html import unescape
from pathlib import Path

import pytest
from reports import page_of, put
from support import composed

from lra.report import Report
from lra.report.read.published import Published

SIX = ["listops", "text", "matching", "image", "pathfinder", "pathx"]


def table(page: str) -> dict[tuple[str, str], list[str]]:
    """The numbers of each row, by its system and whose they are."""
    lines = page.split("### Long Range Arena\n\n")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().strip("*") for cell in line.split("|")[1:-1]] for line in lines]
    return {(name, whose): numbers for name, whose, *numbers in cells}


def shown(page: str) -> dict[tuple[str, str], list[str]]:
    """The same of index.html, of the last protocol."""
    lines = page.split("<caption>Long Range Arena, protocol s4")[1].split("</table>")[0].split("<tr")[2:]
    cells = [[unescape(text) for text in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", line)] for line in lines]
    return {(name, whose): numbers for name, whose, *numbers in cells}


def test_ours_stand_beside_the_published_rows_of_their_protocol(tmp_path: Path) -> None:
    """Baselines and the local system come first; copies and other protocols do not count; averages are by hand."""
    s4 = {"protocol": "s4", "variant": "transformer"}
    for seed, shift in ((1, -1.0), (2, 1.0)):
        for task, value in (("listops", 60.0), ("image", 87.0), ("image (JPEG copies)", 99.0)):
            put(tmp_path / task, seed, value + shift, task=task, attention="s4d", **s4)
        put(tmp_path / "local", seed, 50.0 + shift, task="image", attention="conv", **s4)
        put(tmp_path / "other", seed, 11.0, task="image", attention="s4d", protocol="lra", variant="transformer")
    rows = table(page_of(tmp_path).split("## Protocol `s4`")[1])
    assert list(rows)[:3] == [("best trivial guess", "here"), ("Convolution: no long range", "here"), ("S4D", "here")]
    assert rows["S4D", "here"] == ["60.00", "", "", "87.00", "", "", "73.50 (2)"]
    assert rows["Convolution: no long range", "here"] == ["", "", "", "50.00", "", "", "50.00 (1)"]
    assert rows["best trivial guess", "here"][:4] == ["36.20", "", "", "36.20"]
    assert rows["S4", "S4 paper"] == ["59.60", "86.82", "90.90", "88.65", "94.20", "96.35", "86.09"]
    assert rows["Mamba", "arXiv:2505.09022"][-1] == "66.59"
    assert rows["Mamba", "MLRA report, second-hand"][0] == "44.86"
    assert not any(whose == "Long Range Arena" for _, whose in rows)
    assert shown(Report(tmp_path).page([])) == rows


@pytest.mark.parametrize(
    ("source", "system", "average"),  # as the papers print them; of five where Path-X is at chance
    [
        ("Long Range Arena", "Transformer", 54.39),
        ("Long Range Arena", "Linear ELU", 50.55),
        ("Long Range Arena", "BigBird", 55.01),
        ("Long Range Arena", "Local Attention", 46.06),
        ("S4D paper, second-hand", "S4D (attention.init=inv)", 85.50),
        ("S4D paper, second-hand", "S4D-LegS", 84.89),
        ("S5 paper", "S5", 87.46),
        ("Mega paper, second-hand", "Mega", 88.21),
        ("Mega paper, second-hand", "Mega (attention.chunk=128)", 85.66),
        ("Never Train from Scratch, second-hand", "Rotary, self-pretrained", 86.2),
        ("arXiv:2505.09022", "B2S6", 87.71),
    ],
)
def test_published_rows_have_their_published_average(source: str, system: str, average: float) -> None:
    [table] = [known for known in Published().sources if known.name == source]
    numbers = [table.best[system][task] for task in SIX if task in table.best[system]]
    assert sum(numbers) / len(numbers) == pytest.approx(average, abs=0.0101 if average != 86.2 else 0.051)


@pytest.mark.parametrize("protocol", ["lra", "s4"])
def test_the_experiment_composes_under_each_protocol(protocol: str) -> None:
    for task in ("listops", "image", "pathx"):
        cfg = composed("experiment=lra", f"protocol={protocol}", f"task={task}", "system=other/conv")
        assert (cfg.attention.width, cfg.hydra.runtime.choices.protocol) == (5, protocol)
    assert cfg.hydra.sweeper.params.task.split(",") == SIX
    assert Published().arena == SIX
