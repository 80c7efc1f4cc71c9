"""The figures: what they draw against the records, what is left out, and that they are the same to the byte."""

import itertools
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from furnish import BLOCKS, EVALUATIONS, EVERY, batch_costs, curve, evaluation, furnish, results
from golden.folder import make
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from reports import put
from scipy import stats

from lra.core.errors import UserError
from lra.records import record
from lra.records.run_files import RunFiles
from lra.report import Report, write_report
from lra.report.read import records
from lra.report.render import figures
from lra.report.render.figures import DrawnSystem, shade
from lra.report.statistics import columns
from lra.report.statistics.table import Column

LISTOPS = "listops"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two columns: ListOps by accuracy, books by perplexity."""
    whole, root = tmp_path_factory.mktemp("golden"), tmp_path_factory.mktemp("figures") / "two"
    make(whole)
    for part in ("listops/paper", "books/paper"):
        shutil.copytree(whole / part, root / part)
    furnish(root)
    return root


@pytest.fixture(scope="module")
def written(folder: Path) -> list[Path]:
    return figures.write_figures(folder, Report(folder).columns)


def drawn(
    folder: Path, name: str, task: str = "listops", protocol: str = "paper"
) -> tuple[Figure, Column, list[DrawnSystem]]:
    """The figure of a column, and its column and systems."""
    columns = {column.key: column for column in Report(folder).columns}
    column = columns[protocol, "best_val", task]
    systems = figures.drawn(column)
    draw, _ = figures.DRAWINGS[name]
    return draw(column, systems), column, systems


def test_all_figures_of_all_columns_are_written(folder: Path, written: list[Path]) -> None:
    stems = {path.stem for path in written}
    assert {name for name in figures.DRAWINGS if f"{name}_{LISTOPS}" in stems} == {*figures.DRAWINGS} - {
        "depth", "difficulty", "batches", "batches_each",
    }  # fmt: skip
    assert {name for name in figures.DRAWINGS if f"{name}_books" in stems} == {*figures.DRAWINGS} - {
        "depth", "difficulty",
    }  # fmt: skip
    assert sorted(written) == sorted(path.relative_to(folder) for path in (folder / "figures").iterdir())
    for path in written:
        data = (folder / path).read_bytes()
        if path.suffix == ".svg":
            assert ElementTree.fromstring(data).tag.endswith("svg")
            assert b"<dc:date>" not in data
        else:
            assert data.startswith(b"\x89PNG")


def test_what_the_records_do_not_hold_is_not_drawn(folder: Path) -> None:
    _, column, systems = drawn(folder, "cost")
    bare = [replace(system, runs=[], curves=[]) for system in systems]
    assert [draw(column, bare) for draw, _ in figures.DRAWINGS.values()] == [None] * len(figures.DRAWINGS)


def test_same_bytes_when_drawn_again(folder: Path, written: list[Path], tmp_path: Path) -> None:
    """In another process, with another hash seed and another matplotlibrc; and without pyplot's state, or torch."""
    (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\nfigure.dpi: 50\n")
    copy = tmp_path / "copy"
    shutil.copytree(folder / "books", copy / "books")  # the column with all figures
    program = (
        "import sys; from pathlib import Path; from lra.report import Report; from lra.report.render import figures\n"
        f"folder = Path({str(copy)!r}); figures.write_figures(folder, Report(folder).columns)\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    environment = {"PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(tmp_path), "PATH": "", "HOME": str(Path.home())}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    again = sorted(path.relative_to(copy) for path in (copy / "figures").iterdir())
    assert again == sorted(path for path in written if "books" in path.stem)
    assert [path.name for path in again if (folder / path).read_bytes() != (copy / path).read_bytes()] == []


@pytest.mark.parametrize("names", [("curves_a.svg", "curves_b.svg"), ()])
def test_a_report_written_again_leaves_no_figure_of_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """What the earlier report did not draw stays."""
    put(tmp_path, 1, 37.0)
    place = tmp_path / "figures"
    place.mkdir()
    (place / "mine.svg").write_text("")

    def write(names: tuple[str, ...]) -> set[str]:
        def draw(folder: Path, shown: list) -> list[Path]:
            for name in names:
                (folder / "figures" / name).write_text(name)
            return [Path("figures", name) for name in names]

        monkeypatch.setattr(figures, "write_figures", draw)
        write_report(tmp_path)
        return {path.name for path in place.iterdir()}

    earlier = ("curves_a.svg", "curves_a.png", "seeds_a.svg")
    assert write(earlier) == {"mine.svg", *earlier}
    assert write(names) == {"mine.svg", *names}


def test_curves_are_the_mean_over_the_seeds_and_its_interval(folder: Path) -> None:
    figure, _, systems = drawn(folder, "curves")
    panel = figure.axes[0]
    for system, line, band in zip(systems, panel.lines, panel.collections, strict=True):
        seeds = list(system.row.cell.scores())
        values = np.array([[evaluation(seed, n)["val_accuracy"] for n in range(1, EVALUATIONS + 1)] for seed in seeds])
        np.testing.assert_array_equal(line.get_xdata(), EVERY * np.arange(1, EVALUATIONS + 1))
        np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
        assert isinstance(band, PolyCollection)
        [shape] = band.get_paths()
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert shape.vertices[:, 1].min() == pytest.approx(low.min())
        assert shape.vertices[:, 1].max() == pytest.approx(high.max())


def test_more_systems_than_can_be_told_apart_have_a_panel_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "TOGETHER", 3)
    figure, _, systems = drawn(folder, "curves")
    assert [panel.get_title() for panel in figure.axes] == [system.name for system in systems]


def test_costs_are_those_of_the_records(folder: Path) -> None:
    """Costs that are the same for all are not drawn."""
    figure, _, systems = drawn(folder, "cost")
    assert [panel.get_xlabel() for panel in figure.axes] == ["training time (s)"]
    dots = {line.get_label(): line.get_xydata()[0] for line in figure.axes[0].lines if line.get_marker() != "None"}
    for system in systems:
        runs = [system.row.cell.runs[seed] for seed in system.row.cell.scores()]
        seconds, mean = dots[system.name]
        assert seconds == pytest.approx(np.mean([run["seconds"]["train"] for run in runs]))
        assert mean == pytest.approx(np.mean(list(system.row.cell.scores().values())))
    assert {text.get_text() for text in figure.axes[0].texts} == {system.name for system in systems}


def test_the_front_has_what_no_other_beats_for_less(folder: Path) -> None:
    _, _, systems = drawn(folder, "cost")
    points = [(system, float(cost)) for system, cost in zip(systems, (3, 1, 2, 5), strict=True)]
    scores = [(cost, system.row.summary.mean) for system, cost in points]
    expected = [(c, m) for c, m in sorted(scores) if not any(d <= c and n > m for d, n in scores)]
    assert figures._front(points, lower=False) == expected


def test_a_system_has_one_colour_in_every_folder_and_its_settings_have_shades(folder: Path) -> None:
    """Also where other systems stand beside it."""
    _, column, systems = drawn(folder, "cost")
    alone = figures.drawn(replace(column, rows=column.rows[2:]))
    assert [system.colour for system in alone] == [system.colour for system in systems[2:]]
    shades = [shade("#009E73", place, 3) for place in range(3)]
    assert shades[-1] == "#009e73"
    assert sorted(shades, key=lambda colour: -sum(to_rgb(colour))) == shades


def test_calibration_error_by_hand() -> None:
    points = [
        {"confidence": 20.0, "accuracy": 30.0, "examples": 1},
        {"confidence": 90.0, "accuracy": 86.0, "examples": 3},
    ]
    assert columns.calibration_error(points) == pytest.approx((10 + 3 * 4) / 4)


@pytest.mark.parametrize("place", range(len(records.PROBES)))
def test_probes_have_a_line_for_each_block_that_was_measured(folder: Path, place: int) -> None:
    figure, _, systems = drawn(folder, list(records.PROBES)[place])
    seeds = list(systems[0].row.cell.scores())
    measured = [block for block in range(BLOCKS) if (place, block) != (len(records.PROBES) - 1, 0)]
    for block, line in zip(measured, figure.axes[0].lines, strict=True):
        assert line.get_label() == f"block {block + 1}"
        assert line.get_ydata()[0] == pytest.approx(np.mean([(place + 1) * (block + 1) / (1 + seed) for seed in seeds]))


def test_quartiles_are_of_whole_windows_of_all_seeds() -> None:
    places, (low, middle, high) = figures.quartiles([np.arange(250.0), np.arange(250.0)])
    assert places.tolist() == [100, 200]
    assert middle.tolist() == [49.5, 149.5]
    assert (low[0], high[1]) == (np.quantile(np.arange(100), 0.25), pytest.approx(174.25, abs=0.5))


def test_the_costs_of_batches_are_drawn_whole_and_as_quartiles(folder: Path) -> None:
    figure, _, systems = drawn(folder, "batches", task="books")
    for system, line in zip(systems, figure.axes[0].lines, strict=True):
        pooled = np.concatenate([batch_costs(seed)[100:200] for seed in system.row.cell.scores()])
        np.testing.assert_array_equal(line.get_xdata(), [100, 200, 300])
        assert line.get_ydata()[1] == pytest.approx(np.median(pooled))
    figure, _, systems = drawn(folder, "batches_each", task="books")
    for system, panel in zip(systems, figure.axes, strict=True):
        dots = [line.get_ydata() for line in panel.lines if line.get_marker() == "."]
        np.testing.assert_array_equal(dots, [batch_costs(seed) for seed in system.row.cell.scores()])


def test_diagnostics_stand_beside_the_baseline(folder: Path) -> None:
    figure, _, systems = drawn(folder, "diagnostics")
    first = figure.axes[0]
    assert [panel.get_xlabel() for panel in figure.axes] == ["root operator", "length"]
    assert [text.get_text() for text in first.get_xticklabels()] == ["MIN", "MAX"]
    seeds = list(systems[0].row.cell.scores())
    np.testing.assert_allclose(first.lines[0].get_ydata(), [np.mean([200 + seed for seed in seeds]) / 5, 40])
    bars = [bar.get_segments()[0][0, 1] for bar in first.collections if isinstance(bar, LineCollection)]
    np.testing.assert_allclose(bars, [30, 100 * 550 / 1500])


def test_accuracy_over_difficulty_has_a_panel_for_each_system(folder: Path) -> None:
    """Of the groups that have an order the first; a value that a seed lacks is left out."""
    _, column, systems = drawn(folder, "diagnostics")

    def probed(system: DrawnSystem, loss: int) -> DrawnSystem:
        pairs = {str(count): {"examples": 200, "correct": 200 - loss * count} for count in (2, 8, 16)}
        worse = {str(count): {"examples": 200, "correct": 200 - 3 * loss * count} for count in (2, 8)}
        groups = [{"position": pairs, "pairs": pairs}, {"position": worse, "pairs": worse}]
        return replace(system, runs=[{"diagnostics": group} for group in groups])

    shown = [probed(system, loss) for loss, system in enumerate(systems[:3])]
    figure = figures.over_difficulty(column, shown)
    assert [panel.get_title() for panel in figure.axes] == [system.title for system in shown]
    for loss, (system, panel) in enumerate(zip(shown, figure.axes, strict=True)):
        [coloured] = [line for line in panel.lines if line.get_color() == system.colour]
        np.testing.assert_allclose(coloured.get_ydata(), [100 - 2 * loss, 100 - 8 * loss])
        assert [text.get_text() for text in panel.get_xticklabels()] == ["2", "8"]
        assert len(panel.lines) == 3
    assert figures.over_difficulty(column, systems) is None


def test_accuracy_by_group_pools_the_counts() -> None:
    accuracies = columns.accuracy_by([results(1), results(3), {}])
    assert accuracies["root operator"]["MIN"] == {"accuracy": 100 * (201 + 203) / 1000, "baseline": 30.0}
    assert accuracies["length"] == {"500-999": {"accuracy": 100 * 500 / 1200}, "1000-1999": {"accuracy": 30.0}}
    assert columns.accuracy_by([{}]) == {}


def test_reliability_by_hand() -> None:
    low, high = columns.reliability([results(1), results(3)])
    assert low["examples"] == 3000
    assert low["confidence"] == pytest.approx((2 * 15 * 1000 + 2 * 20 * 500) / 3000)
    assert low["accuracy"] == pytest.approx((11 * 1000 + 13 * 1000 + 2 * 30 * 500) / 3000)
    assert high == {"confidence": pytest.approx(95), "accuracy": pytest.approx(80), "examples": 1000}


def test_seeds_are_taken_together_where_all_of_them_were_measured() -> None:
    first = {"step": [10, 20, 30], "val_loss": [3.0, None, 1.0]}
    second = {"step": [10, 20, 30, 40], "val_loss": [5.0, 4.0, 3.0, 2.0]}
    steps, values = records.over_seeds([first, second, {"step": [5]}], "val_loss")
    assert steps.tolist() == [10, 30]
    assert values.tolist() == [[3.0, 1.0], [5.0, 3.0]]
    assert [part.size for part in records.over_seeds([], "val_loss")] == [0, 0]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    curve(tmp_path, seed=1, evaluations=3)
    path = tmp_path / record.METRICS
    whole = records.read_curve(RunFiles(tmp_path), {"path": record.NAME, "packed": False})
    path.write_text(path.read_text() + '{"step": 40, "val_l')
    assert records.read_curve(RunFiles(tmp_path), {"path": record.NAME, "packed": False}) == whole
    assert whole["step"] == [10, 20, 30]
    assert whole["val_perplexity"] == [math.exp(loss) for loss in whole["val_loss"]]


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_line_is_named(tmp_path: Path, text: str) -> None:
    curve(tmp_path, seed=1, evaluations=2)
    path = tmp_path / record.METRICS
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(UserError, match=r"metrics.jsonl, line 3: expected"):
        records.read_lines(path)


def test_styles_differ() -> None:
    """Colour and marker together, for as many systems as there are pairs of them."""
    pairs = {(n % len(figures.COLOURS), n % len(figures.MARKERS)) for n in range(50)}
    assert len(pairs) == 50


# What dichromats see of linear RGB, after Machado, Oliveira and Fernandes (2009), table 1, severity 1.
DICHROMACY = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("kind", DICHROMACY)
def test_colours_can_be_told_apart_without_one_kind_of_cone(kind: str) -> None:
    """CIE 1976 distances of ten and more; red and green of equal lightness do not have it."""

    def seen(colours: list) -> list[np.ndarray]:
        rgb = np.array([to_rgb(colour) for colour in colours])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        linear = np.clip(linear @ np.array(DICHROMACY[kind]).T, 0, 1)
        xyz = linear @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
        f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
        return list(np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1))

    def nearest(colours: list) -> float:
        return min(float(np.linalg.norm(first - second)) for first, second in itertools.combinations(seen(colours), 2))

    assert nearest(list(figures.COLOURS)) > 10
    if kind == "deuteranopia":
        assert nearest([(0.75, 0.35, 0.0), (0.48, 0.5, 0.0)]) < 10
