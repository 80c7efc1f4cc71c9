"""Progress of a run in plain lines: how far it is, and how long it takes."""

import pytest

from lra.core import console
from lra.training import progress


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (1260, "21 min"), (1_418_546, "394 h")])
def test_durations(seconds: float, text: str) -> None:
    assert console.span(seconds) == text


def test_a_resumed_run_estimates_from_its_own_steps(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """One step of 13 s; an earlier process did 900 of 1,000. The token rate leaves evaluations out."""
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with progress.TrainingBar("resumed", 1000, 900) as bar:
        now += 13
        bar.step(901, 0.5, 130)
        now += 500
        bar.evaluated("accuracy 50.00")
        bar.step(902, 0.5, 130)
    first, second = capsys.readouterr().err.splitlines()
    assert "901/1000" in first and "10 tokens/s" in first and "21 min" in first
    assert "10 tokens/s" in second
