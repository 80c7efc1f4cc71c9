"""Progress of a run: a bar in a terminal, lines elsewhere."""

import pytest

from lra.core import console


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    time = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: time[0])
    return time


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is no terminal."""
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False)


def test_the_rate_is_that_of_the_steps_since_the_last_evaluation(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = []
    monkeypatch.setattr(console.Bar, "update", lambda _bar, _done, text: notes.append(text.split(", ")[-1]))
    with console.TrainingBar("run", 7, 0) as bar:
        for step, (seconds, evaluated) in enumerate([(2, False), (3, False), (11, True), (4, False)], 1):
            now[0] += seconds
            if evaluated:
                bar.evaluated("accuracy 50.00")
            bar.step(step, 0.5, 600)
    assert notes == ["300 tokens/s", "240 tokens/s", "240 tokens/s", "150 tokens/s"]


@pytest.mark.usefixtures("piped")
def test_lines_say_how_far_steps_and_evaluations_are(now: list[float], capsys: pytest.CaptureFixture) -> None:
    """Seven steps of 24 s take 168 s. An earlier process did no step here."""
    with console.TrainingBar("run", 7, 0) as bar:
        now[0] += 24
        bar.step(1, 0.5, 240)
        for done in (0, 500):
            bar.evaluating(1, done, 2000)
            now[0] += 11
    with console.TrainingBar("resumed", 1000, 900) as bar:
        now[0] += 13
        bar.step(901, 0.5, 130)
    assert capsys.readouterr().err.splitlines() == [
        "run: 1/7 loss 0.500, 10 tokens/s, 2 min left",
        "run: 1/7 evaluating 500/2,000, 4 min left",
        "resumed: 901/1000 loss 0.500, 10 tokens/s, 21 min left",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (1260, "21 min"), (1_418_546, "394 h")])
def test_durations(seconds: float, text: str) -> None:
    assert console.span(seconds) == text
