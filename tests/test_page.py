"""index.html: the data it carries against the records, and the page itself in a real browser."""

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from browser import Visit
from furnish import EVALUATIONS, EVERY, curve, evaluation, furnish
from golden.folder import make
from scipy import stats

from lra.records import record
from lra.report import Report
from lra.report.read.records import PROBES
from lra.report.render.figures import write_figures
from lra.report.render.markup import ASSETS
from lra.report.render.pages import POINTS_OF_A_CURVE, _curve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "golden"
    make(root)
    furnish(root)
    return root


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    report = Report(folder)
    return write_page(report, write_figures(folder, report.columns[-1:]))


def write_page(report: Report, figures: list[Path]) -> Path:
    path = report.folder / "index.html"
    path.write_text(report.page(map(str, figures)))
    return path


class Parts(HTMLParser):
    """Addresses, scripts and texts of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("href", "src")]
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, text: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += text
        elif self._inside != "style":
            self.text += text


def test_what_the_published_numbers_are_stands_below_the_table(folder: Path, page: Path) -> None:
    columns = [column for section in Report(folder).sections for column in section.columns]
    said = {f"{column.task}: {column.published}" for column in columns if column.published}
    assert said
    for note in said:
        assert Parts(page).text.count(note) == 1


def data_of(path: Path) -> dict:
    return json.loads(Parts(path).scripts[0])


def cell_of(data: dict, task: str, name: str, protocol: str = "paper") -> dict:
    [matching] = [
        cell
        for cell in data["cells"]
        if (cell["task"], cell["name"], cell["protocol"]) == (task, name, f"{protocol}, best_val")
    ]
    return matching


def test_its_numbers_are_those_of_the_records(folder: Path, page: Path) -> None:
    data = data_of(page)
    sections = Report(folder).sections
    rows = [row for section in sections for column in section.columns for row in column.rows]
    assert len(data["cells"]) == len(rows)
    for cell, row in zip(data["cells"], rows, strict=True):
        assert {run["seed"]: run["status"] for run in cell["runs"]} == {s: row.cell.status(s) for s in row.cell.seeds()}
        assert {run["seed"]: run["score"] for run in cell["runs"] if run.get("score") is not None} == row.cell.scores()
        for run in cell["runs"]:
            if "path" in run:
                stored = record.read(folder / run["path"])
                assert {**cell["config"], "seed": run["seed"]} == stored["config"]
                assert cell["provenance"] | run["provenance"] == stored["provenance"]
                assert run["test"] == {rule: entry[cell["metric"]] for rule, entry in stored.get("test", {}).items()}


@pytest.mark.parametrize("counts", [(96, 97, 100), (59, 61, 121), (2, 60, 200)])
def test_curves_of_different_lengths_have_points_in_common(counts: tuple[int, ...]) -> None:
    """Of a chart over seeds: those of the longest curve, as far as another goes."""
    kept: dict[tuple[int, ...], int] = {}
    for count in counts:
        _curve({"step": [*range(1, count + 1)], "val_loss": [0.5] * count}, kept)
    coarsest = max(kept, key=lambda steps: steps[1] - steps[0])
    for steps in kept:
        assert len(steps) <= POINTS_OF_A_CURVE
        assert {step for step in coarsest[:-1] if step <= steps[-1]} <= set(steps)


def test_curves_keep_their_ends_and_shape(page: Path) -> None:
    data = data_of(page)
    run = cell_of(data, "listops", "Simple")["runs"][0]
    steps = data["steps"][run["curve"]["step"]]
    assert POINTS_OF_A_CURVE / 2 < len(steps) <= POINTS_OF_A_CURVE < EVALUATIONS
    assert (steps[0], steps[-1]) == (EVERY, EVERY * EVALUATIONS)
    assert {b - a for a, b in pairwise(steps)} == {EVERY, 2 * EVERY}
    expected = [evaluation(1, step // EVERY)["val_accuracy"] for step in steps]
    np.testing.assert_allclose(run["curve"]["val_accuracy"], expected, rtol=1e-4)
    assert len(data["steps"]) == 1


def test_kept_predictions_are_those_of_the_run(folder: Path, page: Path) -> None:
    for cell in data_of(page)["cells"]:
        for run in cell["runs"]:
            if "right" in run:
                predicted, labels = np.load((folder / run["path"]).with_name("predictions.npy"))
                bits = np.unpackbits(np.frombuffer(base64.b64decode(run["right"]), dtype=np.uint8))
                np.testing.assert_array_equal(bits[: len(labels)], predicted == labels)


def test_quantiles_are_those_of_a_printed_table(page: Path) -> None:
    np.testing.assert_allclose(data_of(page)["quantiles"], [12.706, 4.303, 3.182, 2.776], atol=5e-4)


def test_it_fetches_nothing(folder: Path, page: Path) -> None:
    """Its links lead to files below the folder, to the page over all folders, or into itself."""
    beside = {"../index.html", "README.md", "details.md", "table1.csv", "table1.tex"}
    addresses = {address for address in Parts(page).addresses if not address.startswith("#")}
    assert addresses >= beside
    for address in addresses - beside:
        assert re.match(r"figures/[\w.-]+\.(svg|png)$", address)
        assert (folder / address).exists()
    assert "default-src 'none'" in page.read_text()
    assert "connect-src" not in page.read_text()


def test_the_licence_of_the_library_is_in_the_page(page: Path) -> None:
    licence = (ASSETS / "uPlot.LICENSE").read_text()
    assert "MIT" in licence
    assert licence in page.read_text()


def test_same_bytes_when_built_again(folder: Path, page: Path) -> None:
    before = page.read_bytes()
    report = Report(folder)
    write_page(report, write_figures(folder, report.columns[-1:]))
    assert page.read_bytes() == before


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><b>&amp;\"'"
    make(tmp_path / "golden")
    for path in sorted((tmp_path / "golden").rglob(record.NAME)):
        run = record.read(path)
        record.write(path.parent, run | {"attention": run["attention"] + evil, "task": evil + run["task"]})
    plain, report = tmp_path / "golden", Report(tmp_path / "golden")
    parts = Parts(write_page(report, []))
    assert len(parts.scripts) == 3
    assert "b" not in parts.tags
    assert evil in parts.text
    assert data_of(plain / "index.html")["cells"][0]["attention"].endswith(evil)


def test_it_is_valid_html(page: Path) -> None:
    html5lib = pytest.importorskip("html5lib")
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(page.read_text())
    assert parser.errors == []


# In Chromium.


@pytest.fixture
def visit(browser: object, page: Path) -> Visit:
    return Visit(browser, page)


def column(visit: Visit, heading: str) -> list[str]:
    headings = [text.split("\u00a0")[0] for text in visit.texts("#cells thead tr > *")]
    place = headings.index(heading) + 1
    return visit.texts(f"#cells tbody tr:not([hidden]) > :nth-child({place})")


def sort_by(visit: Visit, heading: str) -> str:
    buttons = [text.split("\u00a0")[0] for text in visit.texts("#cells thead button")]
    visit.click("#cells thead button", buttons.index(heading))
    [order] = visit.js("return [...document.querySelectorAll('#cells [aria-sort]')].map((e) => e.ariaSort)")
    return order


def test_a_heading_sorts_up_and_down(visit: Visit, page: Path) -> None:
    means = [cell["facts"]["mean ± sd"] for cell in data_of(page)["cells"]]
    present = sorted(float(mean.split()[0]) for mean in means if mean != "missing")
    assert sort_by(visit, "mean ± sd") == "ascending"
    assert [float(text.split()[0]) for text in column(visit, "mean ± sd") if text != "missing"] == present
    assert sort_by(visit, "mean ± sd") == "descending"
    assert [float(text.split()[0]) for text in column(visit, "mean ± sd") if text != "missing"] == present[::-1]
    assert sort_by(visit, "published") == "ascending"
    published = column(visit, "published")
    assert published == sorted(filter(None, published), key=float) + [""] * published.count("")
    assert sort_by(visit, "system") == "ascending"
    assert column(visit, "system") == sorted(column(visit, "system"), key=str.casefold)


def test_filters_and_words_narrow_the_table(visit: Visit, page: Path) -> None:
    cells = data_of(page)["cells"]
    visit.js(
        "const form = document.getElementById('filters'); form.elements.task.value = 'listops';"
        "form.dispatchEvent(new Event('input'))"
    )
    wanted = [cell["name"] for cell in cells if cell["task"] == "listops"]
    assert column(visit, "system") == wanted
    visit.browser.find_element("name", "text").send_keys("STRICT luna")
    assert column(visit, "system") == [c["name"] for c in cells if (c["task"], c["name"]) == ("listops", "Luna")]
    assert visit.texts("#filters output") == [f"1 of {len(cells)} shown"]
    visit.click("#filters button")
    assert len(column(visit, "system")) == len(cells)


def open_cell(visit: Visit, page: Path, task: str, name: str) -> dict:
    data = data_of(page)
    cell = cell_of(data, task, name)
    link = visit.browser.find_element("css selector", f"#cells a[href='#cell/{data['cells'].index(cell)}']")
    link.send_keys("\ue007")  # Enter
    visit.settle()
    return cell


def test_enter_opens_a_cell_and_escape_leaves_it(visit: Visit, page: Path, folder: Path) -> None:
    cell = open_cell(visit, page, "listops", "Simple")
    assert visit.texts("dialog[open] h2") == ["Simple"]
    assert visit.js("return document.activeElement.closest('dialog') !== null")
    shown = visit.texts("dialog .scroll")[0]
    for run in cell["runs"]:
        assert f"{run['score']:.2f}" in shown
    links = visit.js("return [...document.querySelectorAll('dialog a')].map((e) => decodeURI(e.pathname))")
    assert [str(folder / run["path"]) for run in cell["runs"]] == [link for link in links if link.endswith(record.NAME)]
    assert len(visit.browser.find_elements("css selector", "dialog canvas")) == 3 + len(PROBES)  # of each block
    assert "collapsed" in shown
    visit.press("\ue00c")  # Escape
    assert visit.texts("dialog[open]") == []
    assert visit.js("return document.activeElement.textContent") == "Simple"


def test_charts_have_their_numbers_as_tables(visit: Visit, page: Path) -> None:
    open_cell(visit, page, "listops", "Simple")
    visit.click("dialog figure summary")
    lines = [line.split() for line in visit.texts("dialog figure details[open] tbody tr")]
    assert POINTS_OF_A_CURVE / 2 < len(lines) <= POINTS_OF_A_CURVE
    assert [float(number) for number in lines[0]] == pytest.approx(
        [EVERY, *(evaluation(seed, 1)["val_accuracy"] for seed in (1, 2, 3, 4, 5))], rel=1e-4
    )


def test_charts_are_drawn(visit: Visit, page: Path) -> None:
    open_cell(visit, page, "listops", "Simple")
    painted = visit.js(
        "return [...document.querySelectorAll('dialog canvas')].map((c) => new Set(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data).size)"
    )
    assert min(painted) > 20


def tick(visit: Visit, selector: str, count: int = 2) -> None:
    for box in visit.browser.find_elements("css selector", selector)[:count]:
        box.click()


def test_two_systems_are_compared_by_seed(visit: Visit, page: Path) -> None:
    data = data_of(page)
    first, second = cell_of(data, "text", "Transformer"), cell_of(data, "text", "Linear ELU")
    for cell in (first, second):
        visit.click(f"#cells input[value='{data['cells'].index(cell)}']")
    visit.click("#tray button")
    shown = visit.texts("dialog")[0]
    differences = [a["score"] - b["score"] for a, b in zip(first["runs"], second["runs"], strict=True)]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert f"{fmean(differences):+.2f} ± {np.std(differences, ddof=1):.2f} (sd)" in shown
    assert f"95 % t-interval {low:+.2f} to {high:+.2f}, n = 5" in shown
    assert re.search(r"attention\s+softmax\s+linear", shown)
    assert "config.protocol" not in shown
    assert len(visit.browser.find_elements("css selector", "dialog canvas")) == 3


def test_two_runs_are_compared_by_example(visit: Visit, page: Path, folder: Path) -> None:
    cell = open_cell(visit, page, "listops", "Simple-Res")
    tick(visit, "dialog tbody input")
    visit.click("dialog .tray button")
    right = []
    for run in cell["runs"][:2]:
        predicted, labels = np.load((folder / run["path"]).with_name("predictions.npy"))
        right.append(predicted == labels)
    first, second = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    p = stats.binomtest(first, first + second).pvalue
    shown = visit.texts("dialog")[0]
    assert f"the first is right on {first} test examples, only the second on {second}" in shown
    assert float(re.search(r"exact p = ([\d.e-]+\d)", shown).group(1)) == pytest.approx(p, rel=0.05)
    assert re.search(r"seed\s+1\s+2", shown)


def test_other_tasks_are_not_compared(visit: Visit, page: Path) -> None:
    data = data_of(page)
    for task in ("text", "listops"):
        visit.click(f"#cells input[value='{data['cells'].index(cell_of(data, task, 'Simple'))}']")
    visit.click("#tray button")
    assert "cannot be compared" in visit.texts("dialog")[0]
    assert "t-interval" not in visit.texts("dialog")[0]


def test_any_number_of_systems_is_compared_with_the_first(visit: Visit, page: Path) -> None:
    data = data_of(page)
    cells = [cell_of(data, "listops", name) for name in ("Transformer", "Simple", "Simple-Res", "Simple-ResL")]
    for cell in cells:
        visit.click(f"#cells input[value='{data['cells'].index(cell)}']")
    visit.click("#tray button")
    shown = visit.texts("dialog")[0]
    first, *others = ({run["seed"]: run["score"] for run in cell["runs"] if run.get("score")} for cell in cells)
    for name, other in zip(("Simple", "Simple-Res", "Simple-ResL"), others, strict=True):
        differences = [first[seed] - other[seed] for seed in first if seed in other]
        mean, sd = fmean(differences), np.std(differences, ddof=1)
        assert f"Transformer − {name}. Paired by seed, first minus second: {mean:+.2f} ± {sd:.2f} (sd)" in shown


def test_what_a_table_shows_stands_in_the_address(browser: object, visit: Visit, page: Path) -> None:
    """Also behind what is open, and when it is left; another reader of the address sees the same."""
    visit.js(
        "const form = document.getElementById('filters'); form.elements.task.value = 'listops';"
        "form.dispatchEvent(new Event('input'))"
    )
    sort_by(visit, "mean ± sd")
    sort_by(visit, "mean ± sd")
    shown = column(visit, "system")
    assert visit.js("return new URLSearchParams(location.hash.split('?')[1]).get('task')") == "listops"
    visit.click("#cells tbody tr:not([hidden]) td:nth-child(4)")
    assert len(visit.texts("dialog[open] h2")) == 1
    address = visit.js("return location.href")
    other = Visit(browser, page)
    browser.get(address)
    other.settle()
    assert len(other.texts("dialog[open] h2")) == 1
    other.press("\ue00c")
    assert column(other, "system") == shown
    assert "#?task=listops" in other.js("return location.href")


def test_the_rows_that_are_shown_are_handed_on(visit: Visit) -> None:
    """As CSV and as LaTeX."""
    visit.browser.find_element("name", "text").send_keys("strict luna")
    visit.click("#csv")
    given = visit.js("return document.querySelector('dialog textarea').value")
    [line] = csv.DictReader(io.StringIO(given))
    assert line["system"] == "Luna"
    assert line["mean ± sd"] == column(visit, "mean ± sd")[0]
    visit.press("\ue00c")
    visit.click("#latex")
    head, row = re.findall(r"^(.*) \\\\$", visit.js("return document.querySelector('dialog textarea').value"), re.M)
    assert len(head.split(" & ")) == len(row.split(" & ")) == len(line)
    assert row.split(" & ")[list(line).index("mean ± sd")] == line["mean ± sd"].replace("±", r"$\pm$")


def test_what_means_something_to_latex_is_written_as_text(visit: Visit) -> None:
    """In the first cell of a line a bracket or a star would be an option of the end of the line before."""
    first = "document.querySelector('#cells tbody tr').cells[1]"
    visit.js(f"{first}.replaceChildren('[S] a^2|b <c> *')")
    visit.click("#latex")
    lines = visit.js("return document.querySelector('dialog textarea').value").splitlines()
    assert lines[4].startswith(r"{[}S] a\textasciicircum{}2$|$b $<$c$>$ {*} & ")


def test_a_page_without_a_clipboard_copies_what_is_selected(visit: Visit) -> None:
    """As over plain http, which has none."""
    visit.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    visit.js("window.asked = []; document.execCommand = (name) => window.asked.push(name)")
    visit.click("#csv")
    visit.click("dialog textarea + p button")
    assert visit.js("return window.asked") == ["copy"]


def test_the_matrix_has_every_cell_once_and_leads_to_it(page: Path) -> None:
    text = page.read_text()
    matrix = re.search(r'<table class="matrix">(.*?)</table>', text, re.DOTALL)[1]
    cells = data_of(page)["cells"]
    links = re.findall(r'<a href="#cell/(\d+)">(?:<strong>)?([^<]*)', matrix)
    assert sorted(int(number) for number, _ in links) == list(range(len(cells)))
    for number, mean in links:
        shown = cells[int(number)]["facts"]["mean ± sd"]
        assert shown.startswith(mean) or shown == "missing"
    for cell in cells:
        assert cell["name"] in matrix


def test_addresses_open_what_they_name(browser: object, page: Path) -> None:
    visit = Visit(browser, page)
    browser.get(page.as_uri() + "#cell/2")
    visit.settle()
    assert visit.texts("dialog[open] h2") == [data_of(page)["cells"][2]["name"]]
    browser.back()
    visit.settle()
    assert visit.texts("dialog[open]") == []
    for unknown in ("#cell/9999", "#compare/1", "#nothing"):
        browser.get(page.as_uri() + unknown)
        visit.settle()
        assert visit.texts("dialog[open]") == []


def ground(visit: Visit) -> str:
    return visit.js("return getComputedStyle(document.body).backgroundColor")


def test_light_and_dark(browser: object, page: Path) -> None:
    """As the system says, until the reader chooses."""
    light, dark = ground(Visit(browser, page)), ground(visit := Visit(browser, page, scheme="dark"))
    assert light == "rgb(255, 255, 255)" != dark
    visit.click("#theme")
    assert ground(visit) == light
    visit.click("#theme")
    assert ground(visit) == dark


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("address", ["", "#cell/1", "#compare/0/1"])
def test_nothing_is_wider_than_the_screen(browser: object, page: Path, width: int, address: str) -> None:
    visit = Visit(browser, page, width)
    browser.get(page.as_uri() + address)
    visit.settle()
    assert visit.js("return document.documentElement.scrollWidth") <= width
    assert visit.js("const d = document.querySelector('dialog'); return d.scrollWidth - d.clientWidth") <= 0


def test_it_loads_nothing_but_itself(visit: Visit) -> None:
    assert visit.js("return performance.getEntriesByType('resource').length") == 0
    visit.click("#figures summary")
    visit.js("document.querySelectorAll('#figures img').forEach((e) => { e.loading = 'eager'; })")
    visit.browser.execute_async_script(
        "Promise.all([...document.querySelectorAll('#figures img')].map((e) => e.decode())).then(arguments[0])"
    )
    assert visit.js("return [...document.querySelectorAll('#figures img')].every((e) => e.naturalWidth > 0)")
    visit.settle()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [5, 1])
def test_two_thousand_runs_open_within_two_seconds(browser: object, tmp_path: Path, seeds: int) -> None:
    """In cells of five seeds, and each a cell of its own."""
    make(tmp_path / "golden")
    run = record.read(next((tmp_path / "golden").rglob("listops/paper/simple/simple/seed1/record.json")))
    root = tmp_path / "many"
    for number in range(2000):
        settings = {"train.lr": number // seeds}
        place = root / "listops" / f"train.lr={number // seeds}" / f"seed{number % seeds}"
        curve(place, number % seeds)
        record.write(place, run | {"settings": settings, "seed": number % seeds})
    made = write_page(Report(root), [])
    loaded = []
    for _ in range(3):  # the machine may be busy with other tests
        visit = Visit(browser, made)
        visit.settle()
        assert visit.texts("#filters output") == [f"{2000 // seeds} of {2000 // seeds} shown"]
        loaded.append(visit.js("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert min(loaded) < 2000
