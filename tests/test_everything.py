"""scripts/everything.sh: parts that fail stop no others, what passed is not run again, and the page says what ran."""

import subprocess
import sys
from pathlib import Path

import everything as script
import pytest
import reruns

from lra.core.paths import CHECKOUT
from lra.records.names import RECEIPTS

PARTS = {
    "good": "echo good >>../ran; echo '=== 5 passed, 2 skipped, 1 deselected in 3.21s (0:00:03) ==='",
    "bad": "echo bad >>../ran; echo it is broken; exit 3",
    "last": "echo last >>../ran; test ! -e ../broken",
}


def git(*words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


def committed(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    git("add", ".")
    git("commit", "--message", "one")


def test_a_commit_of_another_clone_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    git("init")
    committed("a.py", "a")
    assert script.changed("suite", "HEAD") == []
    assert script.changed("suite", "ab" * 20) == ["ab" * 20]


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that runs it with PARTS in a repository of its own, and gives its exit code."""
    monkeypatch.setattr(script, "PARTS", dict(PARTS))
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    git("init")
    committed("results/README.md", "# Results")
    committed(".gitignore", "/runs/")

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["everything.sh", *words])
        return script.main()

    return call


def ran() -> list[str]:
    return Path("../ran").read_text().split()


def test_a_part_that_fails_stops_no_other(everything, capsys: pytest.CaptureFixture) -> None:
    assert everything() == 1
    assert ran() == ["good", "bad", "last"]
    good, bad, last = capsys.readouterr().out.splitlines()
    assert good.startswith("good: passed; 5 passed, 2 skipped; 0 min ")
    assert bad.startswith("bad: failed, exit code 3; it is broken; 0 min ")
    log = Path("runs/everything/bad.log")
    assert bad.endswith(f" ({log})")
    assert (log.read_text(), last.split(";")[0]) == ("it is broken\n", "last: passed")
    page = Path("results/everything.md").read_text()
    assert "2 of 3 parts passed" in page
    assert f"| bad | `{PARTS['bad']}` | failed, exit code 3 | it is broken | 0 min " in page


def test_what_passed_is_run_again_only_for_another_tree(everything) -> None:
    everything()
    committed("results/everything.md", Path("results/everything.md").read_text())
    assert everything() == 1
    assert ran() == ["good", "bad", "last", "bad"]
    committed("code.py", "other = 1")
    assert everything("good", "last") == 0
    assert ran() == ["good", "bad", "last", "bad", "good", "last"]
    good, bad = page_rows("good", "bad")
    assert good.endswith(" | ")
    assert bad.endswith(" | 1 in code.py")


@pytest.mark.parametrize("place", ["folder/", "folder/script.py"])
def test_what_other_parts_alone_read_sends_no_part_back(
    place: str, everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "READ_BY", {place: {"last"}})
    everything("good", "last")
    committed("folder/script.py", "other = 1")
    assert everything("good", "last") == 0
    assert ran() == ["good", "last", "last"]
    first, other = (line.split(" | ")[-2] for line in page_rows("good", "last"))
    assert first != other  # each with the commit at which it passed


def page_rows(*parts: str) -> list[str]:
    lines = Path("results/everything.md").read_text().splitlines()
    return [next(line for line in lines if line.startswith(f"| {part} |")).removesuffix(" |") for part in parts]


@pytest.mark.parametrize(
    ("file", "part", "said"),
    [
        ("code.py", "good", "code.py: not as in HEAD; commit first, since what passes is kept by the commit"),
        ("results/everything.md", "goood", "goood: no such part; did you mean 'good'?"),
    ],
)
def test_a_refusal_is_one_line(everything, file: str, part: str, said: str, capsys: pytest.CaptureFixture) -> None:
    Path(file).write_text("changed")
    assert everything(part) == 2
    assert capsys.readouterr().err == f"everything.sh: error: {said}\n"
    assert not Path("../ran").exists()


@pytest.mark.parametrize(
    ("log", "counts"),
    [
        ("a: 3 records, 0 mismatches\nb: 5 records, 1 mismatches\n", "2 folders, 8 records, 1 mismatches"),
        ("1 failed, 7 passed in 11.00s\nit goes on\n\n", "1 failed, 7 passed"),
        ("first\n 200 kills, 0 lost \n", "200 kills, 0 lost"),
        ("", ""),
    ],
)
def test_counts(log: str, counts: str) -> None:
    assert script.counts(log) == counts


@pytest.mark.parametrize(
    ("differs", "ended", "verdict"),
    [
        ("tokens.computed: 203 then, 211 now", "steps", "near"),  # batches are cut as the processor likes it
        ("tokens.real: 197 then, 199 now", "steps", "wrong"),
        ("tokens.real: 197 then, 199 now", "solved", "near"),  # at another evaluation
        ("config.train.lr: 0.1 then, 0.2 now", "solved", "wrong"),
        ("parameters: 7 then, 11 now", "steps", "wrong"),
    ],
)
def test_a_rerun_elsewhere_is_near_where_it_was_given_the_same(
    differs: str, ended: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"kept/seed1: not equal to the last bit ({tmp_path})\n  {differs}\n  instructions: a then, b now\n"
    done = subprocess.CompletedProcess([], 1, stdout=said, stderr="")
    monkeypatch.setattr(reruns.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(reruns.record, "read", lambda path: {"test": {"last": {"accuracy": 53.0}}, "ended": ended})
    results = {"metric": "accuracy", "test": {"last": {"accuracy": 55.0}}}
    assert reruns.compared(reruns.Kept(1.0, "kept/seed1", results), "out")[0] == verdict


@pytest.mark.parametrize(
    ("metric", "accuracy", "perplexity", "verdict"),
    [
        ("accuracy", 58.0, 4.0, "near"),  # the perplexity of a classifier is no result of its task
        ("accuracy", 58.25, 2.0, "wrong"),
        ("perplexity", 97.0, 2.09, "near"),
        ("perplexity", 53.0, 2.11, "wrong"),
    ],
)
def test_a_rerun_elsewhere_drifts_in_the_metric_of_its_task(
    metric: str, accuracy: float, perplexity: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"kept/seed1: not equal to the last bit ({tmp_path})\n  instructions: a then, b now\n"
    done = subprocess.CompletedProcess([], 1, stdout=said, stderr="")
    monkeypatch.setattr(reruns.subprocess, "run", lambda *_, **__: done)
    now = {"test": {"last": {"accuracy": accuracy, "perplexity": perplexity}}}
    monkeypatch.setattr(reruns.record, "read", lambda path: now)
    then = {"metric": metric, "test": {"last": {"accuracy": 53.0, "perplexity": 2.0}}}
    assert reruns.compared(reruns.Kept(1.0, "kept/seed1", then), "out")[0] == verdict


@pytest.mark.skipif(not (CHECKOUT / "results").exists(), reason="not a checkout")
def test_the_kept_runs_are_of_many_tasks_and_attentions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    runs = reruns.chosen()
    tasks, attentions = ({run.what[side] for run in runs} for side in (0, 1))
    assert len({run.path for run in runs}) == len(runs) == 12
    assert min(len(tasks), len(attentions)) >= 5
    assert len(tasks) + len(attentions) > len(runs)
    assert all(f"{RECEIPTS}/" in run.path for run in runs)


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ((0, "equal"), (0, "equal"), "equal"),
        ((1, "not equal"), (0, "equal"), "equal"),  # of a record that was made elsewhere
        ((1, "not equal"), (1, "not equal"), "wrong"),
        ((2, ""), (0, "equal"), "wrong"),
    ],
)
def test_two_codes_on_one_machine_are_equal_or_wrong(
    before: tuple[int, str], now: tuple[int, str], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], cwd: str | None, **_: object) -> subprocess.CompletedProcess:
        asked.append((cwd, next(part for part in command if part.startswith("rerun="))))
        code, words = before if cwd else now
        said = f"kept: {words} to the last bit ({tmp_path})\n  instructions: a then, b now\n" if words else ""
        return subprocess.CompletedProcess(command, code, stdout=said, stderr="")

    monkeypatch.setattr(reruns.subprocess, "run", run)
    monkeypatch.setattr(reruns.record, "read", lambda path: {"test": {"last": {"accuracy": 53.0}}})
    kept = reruns.Kept(
        seconds=1.0, path="kept/seed1", record={"metric": "accuracy", "test": {"last": {"accuracy": 53.0}}}
    )
    assert reruns.compared_with("other", kept, "out")[0] == verdict
    assert asked[0] == ("other", f"rerun='{Path('kept/seed1').absolute()}'")
    assert asked[1:] == ([(None, f"rerun='{tmp_path}'")] if before[1] else [])


def test_a_commit_that_is_not_there_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    with pytest.raises(SystemExit, match="^reruns: error: --against no-such: .*no-such"), reruns.code_of("no-such"):
        pass
