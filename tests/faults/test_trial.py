"""The trial itself: a few of its cases, and that it sees what it is there to see."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep

import pytest
from faults import __main__ as program
from faults import trial
from faults.files import judged
from faults.kinds import KINDS
from faults.runs import NEVER, Child, Ended, command
from faults.trial import Outcome, Verdict, cases, drawn, equal, tried

CASES = [
    ("kills", "pack"),
    ("kills", "preparation"),
    ("inputs", "unpacking: receipts.zip"),
    ("inputs", "pack: full disk"),
]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda value: value)
def test_a_case(kind: str, name: str) -> None:
    outcome = tried(cases(kind)[name], Random(name))
    assert outcome.verdict in trial.WELL, outcome


def fine(rng: Random, folder: Path) -> Outcome:
    return Outcome(f"nothing to {folder.name}", f"drawn {rng.random()}", Verdict.EQUAL)


def writes_outside(rng: Random, folder: Path) -> Outcome:
    Path("../precious/deep/thesis.txt").write_text("all work")
    return fine(rng, folder)


def leaves_something_at_home(rng: Random, folder: Path) -> Outcome:
    command(main=lambda: Path.home().joinpath("note").write_text("I was here"))
    return fine(rng, folder)


def leaves_a_process(rng: Random, folder: Path) -> Outcome:
    left.append(Child(main=lambda: sleep(600)))
    return fine(rng, folder)


def fails(rng: Random, folder: Path) -> Outcome:
    raise OSError("of the case")


left: list[Child] = []


@pytest.mark.parametrize(
    ("case", "seen"),
    [
        (writes_outside, r"touched outside: precious/deep/thesis\.txt$"),
        (leaves_something_at_home, r"touched outside: home/note$"),
        (leaves_a_process, r"processes are left: \d+ \("),
        (fails, r"^OSError: of the case \(test_trial.py:\d+\)$"),
    ],
)
def test_what_a_case_must_not_do_is_seen(monkeypatch: pytest.MonkeyPatch, case: Callable, seen: str) -> None:
    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.2)
    outcome = tried(case, Random(1))
    for child in left:
        os.kill(child.process, signal.SIGKILL)
        child.ends()
    left.clear()
    assert outcome.verdict == Verdict.WRONG
    assert re.search(seen, outcome.seen), outcome.seen


def test_how_an_end_is_judged(tmp_path: Path) -> None:
    line = "lra-train: error: no\n"
    assert equal("", Ended(0, "", ""), {"a": 1}, {"a": 1}).verdict == Verdict.EQUAL
    assert equal("", Ended(2, "", line), {"a": 1}, {"a": 1}).verdict == Verdict.LOST
    other = equal("", Ended(0, "", ""), {"a": {"b": 1}, "c": 3}, {"a": {"b": 2}, "c": 3})
    assert (other.verdict, other.seen) == (Verdict.WRONG, "another end: a: b: 1, expected 2")
    whole = Ended(0, "", ""), {}
    assert judged("", Ended(2, "", line), whole, tmp_path, {}).verdict == Verdict.REFUSED
    assert judged("", Ended(0, "", line), whole, tmp_path, {}).verdict == Verdict.EQUAL
    for code, err in ((2, ""), (2, line * 2), (-9, line), (1, f"Traceback: no\n{line}"), (NEVER, line)):
        assert judged("", Ended(code, "", err), whole, tmp_path, {}).verdict == Verdict.WRONG


def test_a_command_that_never_ends_is_ended() -> None:
    assert Child(main=lambda: sleep(600)).ends(0.1).code == NEVER


def test_a_seed_draws_all_cases_before_one_comes_again() -> None:
    for kind in trial.KINDS_OF_CASES:
        known = cases(kind)
        names = [drawn(kind, 3, number)[0] for number in range(1, 2 * len(known) + 1)]
        assert sorted(names[: len(known)]) == sorted(known)
        assert names[: len(known)] == names[len(known) :]
        assert names != [drawn(kind, 5, number)[0] for number in range(1, 2 * len(known) + 1)]
    first, same, other = (drawn("kills", 3, number)[2].random() for number in (7, 7, 8))
    assert first == same != other
    assert cases("kills").keys() == KINDS.keys()


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, *words: str) -> tuple[object, list[str]]:
    monkeypatch.setattr("sys.argv", ["faults", *words])
    monkeypatch.setattr(trial, "cases", lambda kind: {"kills": {"fine": fine}, "inputs": {"fails": fails}}[kind])
    with pytest.raises(SystemExit) as stop:
        program.main()
    return stop.value.code, capfd.readouterr().out.splitlines()


def test_cases_of_a_name(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    assert {drawn("kills", 3, number, "race")[0] for number in range(1, 9)} == {"race, no progress", "race, solved"}
    code, said = run(monkeypatch, capfd, "kills=3", "inputs=0", "of=fin")
    assert not code
    assert [line.split("  ")[:2] for line in said[:-1]] == [[f"kills:{number}", "fine"] for number in (1, 2, 3)]
    code, _ = run(monkeypatch, capfd, "kills=0", "of=fin")
    assert code == "faults: error: of=fin: expected a part of one of: fails"
    code, _ = run(monkeypatch, capfd, "case=kills:4", "of=fails")
    assert code == "faults: error: of=fails: expected a part of one of: fine"


def test_it_counts_and_says_how_to_repeat_what_was_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path
) -> None:
    code, said = run(monkeypatch, capfd, "kills=2", "inputs=0", "seed=5")
    assert not code
    assert said[-1].startswith("kills 2: 2 equal bytes, 0 one line, 0 lost, 0 wrong, ")
    for file in ("trial.json", "trial.md"):
        code, said = run(monkeypatch, capfd, "kills=1", "inputs=2", "seed=5", f"out={tmp_path / file}")
        assert code
        assert said.count("  again: bash scripts/faults.sh case=inputs:2 seed=5") == 1
        assert "; inputs 2: 0 equal bytes, 0 one line, 0 lost, 2 wrong, " in said[-1]
    kept = json.loads((tmp_path / "trial.json").read_text())
    assert kept["counts"]["inputs, wrong"] == 2
    assert [row["case"] for row in kept["cases"]] == ["kills:1", "inputs:1", "inputs:2"]
    assert "| inputs:2 | fails | the case itself failed |" in (tmp_path / "trial.md").read_text()
    case_lines = run(monkeypatch, capfd, "case=kills:2", "seed=5")[1]
    trial_lines = run(monkeypatch, capfd, "kills=2", "inputs=0", "seed=5")[1]
    assert case_lines[0].rpartition("  ")[0] == trial_lines[1].rpartition("  ")[0]


@pytest.mark.parametrize("word", ["kills=many", "kils=3", "case=kills", "case=kills:0", "case=others:3"])
def test_what_it_does_not_know_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, word: str
) -> None:
    code, said = run(monkeypatch, capfd, word)
    assert str(code).startswith(f"faults: error: {word}: expected ")
    assert said == []
