"""What another stopping rule would have made of kept runs."""

from pathlib import Path

from support import Commands, recipe_of

from lra.records.names import RECORD
from lra.records.run_files import RunFiles
from lra.report.read.records import read_record
from lra.tools import stopping

KEPT = Path(__file__).parents[1] / "results/hour"


def test_the_own_rule_of_each_run_gives_its_own_end() -> None:
    files = RunFiles(KEPT)
    runs = [read_record(files, path) for path in files.find(RECORD)]
    ends = [kept.ended() for kept in stopping.kept_runs(files)]
    for run, (why, steps) in zip(runs, ends, strict=True):
        assert steps == run["steps"]
        assert why == run["ended"] or (why == "solved" and run["validation"]["last"]["accuracy"] >= 99)
    assert {why for why, _ in ends} == {"solved", "no progress", "steps"}


def curve(*accuracies: float, solved: bool = False, **recipe: object) -> stopping.ReplayableRun:
    """Validation after each 10 steps."""
    lines = [
        {"step": 10 * place, "val_accuracy": accuracy, "val_loss": 1.0}
        for place, accuracy in enumerate(accuracies, start=1)
    ]
    options = {"steps": 110, "eval_every": 10, "warmup": 3, "schedule": "constant", **recipe}
    return stopping.ReplayableRun(recipe_of(**options), solved, 10 * len(lines), lines)


def test_a_curve_with_a_long_plateau() -> None:
    """Five evaluations on a plateau, then 99 % twice: a patience of three ends it, ten steps of cooldown later."""
    run = curve(20, 40, 41, 41, 40, 41, 70, 99, 99, solved=True, goal=99.0, patience=7, cooldown=10)
    assert run.ended() == ("solved", 90)
    assert run.ended(patience=5) == ("solved", 90)  # 41 at step 30, and 70 before five evaluations are over
    assert run.ended(patience=3) == ("no progress", 70)
    assert run.ended(patience=5, progress=0.1) == ("solved", 90)
    assert run.ended(patience=4, progress=0.1) == ("no progress", 70)  # 41 is no tenth fewer wrong answers than 40
    assert run.ended(steps=80) == ("steps", 80)


def test_what_lies_beyond_the_kept_end_is_not_known() -> None:
    run = curve(20, 40, 40, 40, patience=2, progress=0.05)
    assert run.ended() == ("no progress", 40)
    assert run.ended(patience=3) == ("beyond", 40)
    assert list(stopping.table([run], [{"patience": 3, "progress": None, "steps": None}])) == [
        "1 runs, 0 solved, 40 steps",
        "patience  progress  steps  solved  lost  no progress  out of steps  beyond  steps kept",
        "       3       own    own       0     0            0             0       1        100%",
    ]


def test_solved_once_its_rate_has_fallen_is_solved_at_that_end_alone() -> None:
    run = curve(20, 40, 41, 99, solved=True, goal=99.0, patience=9, steps=40)
    assert run.ended() == ("solved", 40)
    assert run.ended(steps=30) == ("steps", 30)


def test_records_from_before_there_was_a_goal_can_be_read() -> None:
    runs = [*stopping.kept_runs(RunFiles(KEPT.parent / "table1_narrow_cpu"))]
    assert runs and all(why != "beyond" for run in runs for why, _ in [run.ended()])


def test_the_command(cli: Commands, tmp_path: Path) -> None:
    _, out, _ = cli(stopping.main, str(KEPT), "--steps", "700", "5000")
    lines = out.splitlines()
    assert lines[0].startswith("245 runs, ")
    assert [line.split()[:3] for line in lines[2:]] == [["own", "own", "700"], ["own", "own", "5000"]]
    assert lines[3].split()[4] == "0", "its own rule loses nothing"
    assert lines[3].endswith(" 100%")
    for words, fault in (
        ((str(KEPT), "--progress", "3"), "train.progress"),
        ((str(KEPT), "--patience", "0"), "train.patience"),
        ((str(tmp_path),), "no finished run below it has train.goal or train.patience"),
        ((str(tmp_path / "away"),), "no such folder"),
    ):
        code, _, err = cli(stopping.main, *words)
        assert code == 2
        assert err.startswith("lra.tools.stopping: error: ") and fault in err and err.count("\n") == 1
