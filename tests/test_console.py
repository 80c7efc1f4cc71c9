"""What a run says while it goes."""

import io
import re

import pytest

from lra.core import console


def test_the_rate_is_that_of_the_steps_since_the_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], []
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.Bar, "update", lambda _bar, _done, text: said.append(text.split(", ")[-1]))
    with console.TrainingBar("run", 7, 0) as bar:
        for step, (seconds, evaluated) in enumerate([(2, False), (3, False), (11, True), (4, False)], 1):
            now[0] += seconds
            if evaluated:
                bar.evaluated("accuracy 50.00")
            bar.step(step, 0.5, 600)
    assert said == ["300 tokens/s", "240 tokens/s", "240 tokens/s", "150 tokens/s"]


def test_a_long_evaluation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False)
    with console.TrainingBar("run", 7, 0) as bar:
        bar.step(3, 0.5, 600)
        for done in (0, 250, 500):
            bar.evaluating(3, done, 2000)
            now[0] += 11
    assert capsys.readouterr().err.splitlines() == [
        "run: 3/7 evaluating 250/2,000, 15 s left",
        "run: 3/7 evaluating 500/2,000, 29 s left",
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
        "run: 901/1000 loss 0.500, 10 tokens/s, 21 min left",
        "run: 902/1000 loss 0.500, 10 tokens/s, 21 min left",
    ]


def test_a_long_step_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """40 examples a step, 5 in a part, which takes 3 s: a step takes 24 s, and seven of them 168 s."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False)
    with console.TrainingBar("run", 7, 0) as bar:
        for done in range(0, 40, 5):
            bar.within(done, 40)
            now[0] += 3
        bar.step(1, 0.5, 240)
        bar.within(0, 40)
    assert capsys.readouterr().err.splitlines() == [
        "run: 0/7 this step 20/40, 3 min left",
        "run: 1/7 loss 0.500, 10 tokens/s, 2 min left",
    ]


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (119, "119 s"), (1260, "21 min"), (1_418_546, "394 h")])
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert console.span(seconds) == said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 60 columns, put in the place of standard error."""
    made = Terminal()
    monkeypatch.setattr(console.sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    return made


def drawn(bar: console.TrainingBar) -> list[str]:
    """What stands in the terminal now."""
    shown = bar._bar
    with shown.console.capture() as capture:
        shown.console.print(*shown.get_renderables())
    return re.sub(r"\x1b\[[0-9;]*m", "", capture.get()).splitlines()


def test_the_bar_moves_within_a_step_and_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    now, _ = [100.0], terminal(monkeypatch)
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    bar = console.TrainingBar("[3/45] listops simple/simple_resl (paper) seed 1", 2, 0)
    for done in (0, 5, 10):
        bar.within(done, 20)
        now[0] += 3
    top, note = drawn(bar)
    assert len(top) <= 60
    assert " 0/2 " in top
    assert "this step 10/20" in note
    assert bar._bar.tasks[0].completed == 0.5
    bar.step(1, 2.5, 600)
    assert "loss 2.500, 67 tokens/s" in drawn(bar)[1]
    bar.evaluating(1, 0, 2000)
    now[0] += 2
    bar.evaluating(1, 500, 2000)
    assert "evaluating 500/2,000" in drawn(bar)[1]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    shown = terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    with console.Bar("run", 3) as bar:
        bar.update(1, "loss 0.5")
    assert not re.search(r"\x1b\[[0-9;]*m", shown.getvalue().replace("\x1b[0m", ""))
    assert (bar._bar is None) == (value == "dumb")
