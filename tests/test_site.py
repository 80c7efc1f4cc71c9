"""The site: its quoted messages, and the pages of tasks. bash scripts/docs.sh builds it, and checks every link."""

import ast
import importlib
import re
from functools import cache

import pytest

from lra.config.compose import options
from lra.core.paths import CHECKOUT, PACKAGE

PAGE = CHECKOUT / "docs" / "errors.md"
HOLE = "…"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not a checkout")


@cache
def texts() -> list[str]:
    """Every text of the code, with a hole where a value goes in."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return [text for node in nodes if (text := said(node))]


def said(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) or HOLE for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


MESSAGES = re.findall(r"^```text\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE) if PAGE.exists() else []


@pytest.mark.parametrize("message", MESSAGES)
def test_every_quoted_message_is_one_of_the_code(message: str) -> None:
    assert message in texts()


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
