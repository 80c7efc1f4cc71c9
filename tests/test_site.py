"""The generated pages of the site; scripts/docs.sh builds it and checks every link."""

import importlib

import pytest

from lra.config.compose import options
from lra.core.paths import CHECKOUT

pytestmark = pytest.mark.skipif(not (CHECKOUT / "docs" / "site").exists(), reason="not a checkout")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CHECKOUT / "docs" / "site"))
        return importlib.import_module("tasks").pages(CHECKOUT)


class TestPagesOfTasks:
    def test_there_is_one_for_each_task(self, pages: dict[str, str]) -> None:
        assert set(pages) == {f"tasks/{name}.md" for name in options("task")}

    def test_a_task_of_pictures_shows_some(self, pages: dict[str, str]) -> None:
        assert "](data:image/png;base64," in pages["tasks/pathfinder_short.md"]

    def test_a_probe_marks_what_is_scored(self, pages: dict[str, str]) -> None:
        assert '<span class="scored">' in pages["tasks/parity.md"]
