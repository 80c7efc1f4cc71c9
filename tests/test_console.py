"""What a run says while it goes."""

import pytest

from lra.core import console


def test_the_rate_is_that_of_the_steps_since_the_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], []
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.Bar, "update", lambda _bar, _done, text="": said.append(text.split(", ")[-1]))
    with console.TrainingBar("run", 7, 0) as bar:
        for step, (seconds, evaluated) in enumerate([(2, False), (3, False), (11, True), (4, False)], 1):
            now[0] += seconds
            if evaluated:
                bar.evaluated("accuracy 50.00")
            bar.step(step, 0.5, 600)
    assert said == ["300 tokens/s,", "240 tokens/s,", "240 tokens/s,", "150 tokens/s,"]


def test_a_long_evaluation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False)
    with console.TrainingBar("run", 7, 0) as bar:
        bar.step(3, 0.5, 600)
        for done in (0, 250, 500):
            bar.evaluating(done, 2000)
            now[0] += 11
    assert capsys.readouterr().err.splitlines() == [
        "run: 3/7 evaluating 250/2,000, 77 s left",
        "run: 3/7 evaluating 500/2,000, 66 s left",
    ]


def test_the_time_left_is_that_of_the_steps_since_the_run_went_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False)
    with console.TrainingBar("run", 1000, 900) as bar:
        for step in (901, 902):
            now[0] += 13
            bar.step(step, 0.5, 130)
    assert capsys.readouterr().err.splitlines() == [
        "run: 901/1000 loss 0.500, 10 tokens/s, 1287 s left",
        "run: 902/1000 loss 0.500, 10 tokens/s, 1274 s left",
    ]
