"""The page over the kept results, in Chromium: tabs, sorting, filtering; and what axe-core says of pages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Visit

from lra.core.paths import CHECKOUT

PAGE = CHECKOUT / "results" / "index.html"
AXE = "axe-core@4.14.1"
SITE = ["index.html", "README.html", "docs/api.html", "attentions/simple.html", "tasks/mqar.html"]


@pytest.fixture
def visit(browser: object) -> Visit:
    return Visit(browser, PAGE)


def names(visit: Visit) -> list[str]:
    return visit.texts(".panel:not([hidden]) tbody tr:not([hidden]):not(.baseline) th")


def shown(visit: Visit) -> list[str]:
    return visit.js("return [...document.querySelectorAll('.panel:not([hidden])')].map((e) => e.id)")


def test_one_benchmark_is_shown_at_a_time_and_the_address_says_which(browser: object, visit: Visit) -> None:
    tabs = visit.js("return [...document.querySelectorAll('[role=tab]')].map((e) => e.getAttribute('aria-controls'))")
    assert len(tabs) > 1 and shown(visit) == tabs[:1]
    visit.click("[role=tab]", 1)
    assert shown(visit) == tabs[1:2]
    assert browser.current_url.endswith(f"#{tabs[1]}")
    visit.press("\ue014")  # an arrow to the right
    assert shown(visit) == [tabs[2]]
    browser.get(f"{PAGE.as_uri()}#{tabs[1]}")
    assert shown(visit) == [tabs[1]]


def test_a_heading_sorts_by_what_is_better_and_then_the_other_way(visit: Visit) -> None:
    def ranks() -> list[float]:
        script = "return [...document.querySelectorAll('.panel:not([hidden]) tbody tr:not(.baseline)')]"
        return visit.js(f"{script}.map((row) => Number(row.cells[1].dataset.value))")

    before = ranks()
    assert len(before) > 3 and before != sorted(before, reverse=True)
    visit.click(".panel:not([hidden]) thead button", 1)
    assert ranks() == sorted(before, reverse=True)
    visit.click(".panel:not([hidden]) thead button", 1)
    assert ranks() == sorted(before)
    visit.click(".panel:not([hidden]) thead button", 0)
    assert names(visit) == sorted(names(visit), key=str.lower)


def test_words_filter_systems(browser: object, visit: Visit) -> None:
    every = names(visit)
    browser.find_element("id", "filter").send_keys("simple trans")
    visit.settle()
    wanted = [name for name in every if "simple" in name.lower() or "trans" in name.lower()]
    assert 1 < len(wanted) < len(every)
    assert names(visit) == wanted


def test_what_was_found_and_the_picture_are_on_the_first_screen(visit: Visit) -> None:
    wide = Visit(visit.browser, PAGE, width=1400)
    bottom = "return document.querySelector({!r}).getBoundingClientRect().bottom"
    assert wide.js(bottom.format("#lead")) < 900 and wide.js(bottom.format("#cost")) < 900
    narrow = Visit(visit.browser, PAGE, width=390)
    assert narrow.js(bottom.format("#cost")) < 2 * 900
    assert narrow.js("return document.documentElement.scrollWidth") <= 390


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core."""
    if not shutil.which("npm"):
        pytest.skip("no npm")
    place = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(["npm", "pack", "--silent", AXE], cwd=place, capture_output=True, text=True)
    if packed.returncode:
        pytest.skip(f"npm could not fetch {AXE}")
    subprocess.run(["tar", "xzf", packed.stdout.strip()], cwd=place, check=True)
    return (place / "package" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
class TestAxeFindsNothingSerious:
    @pytest.mark.parametrize("page", ["index.html", "hour/index.html", "ag_news_small/index.html"])
    def test_on_a_page_of_results(self, browser: object, axe: str, page: str, width: int, scheme: str) -> None:
        assert serious(browser, axe, CHECKOUT / "results" / page, width, scheme) == []

    @pytest.mark.parametrize("page", SITE)
    def test_on_a_page_of_the_site(
        self, browser: object, axe: str, built_site: Path, page: str, width: int, scheme: str
    ) -> None:
        assert serious(browser, axe, built_site / page, width, scheme) == []


def serious(browser: object, axe: str, page: Path, width: int, scheme: str) -> list[tuple]:
    """What axe-core calls serious or critical, with a few of the places."""
    visit = Visit(browser, page, width, scheme)
    visit.js(axe)
    run = "axe.run(document, {resultTypes: ['violations']}).then((found) => arguments[0](found.violations))"
    violations = browser.execute_async_script(run)
    return [
        (violation["id"], node["target"], node["failureSummary"])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:3]
    ]
