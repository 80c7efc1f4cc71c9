"""Generated tables and the package graph in README, findings and CONTRIBUTING are up to date."""

import pytest
from cogapp import Cog

from lra.core.paths import CHECKOUT

TEXTS = ("README.md", "results/findings.md", "CONTRIBUTING.md")


@pytest.mark.skipif(not (CHECKOUT / "results").exists(), reason="not a checkout")
def test_generated_blocks_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert Cog().main(["cog", "-I", "docs/site", "--check", *TEXTS]) == 0
