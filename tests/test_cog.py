"""Tables in texts are those of the kept results."""

import pytest
from cogapp import Cog

from lra.core.paths import CHECKOUT

TEXTS = ("README.md", "results/findings.md")


@pytest.mark.skipif(not (CHECKOUT / "results").exists(), reason="not a checkout")
def test_tables_in_texts_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert Cog().main(["cog", "-I", "docs/site", "--check", *TEXTS]) == 0
