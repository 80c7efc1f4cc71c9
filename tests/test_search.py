"""hydra/sweeper=optuna: the objective is the validation, and a search ends with the best settings of each system."""

from pathlib import Path

import pytest
import yaml
from reports import put, softmax
from support import Commands

from lra.cli import train
from lra.records.record import RunRecord
from lra.sweep import search

TINY = ("experiment=smoke", "task=listops_short", "train.steps=4", "train.eval_every=2", "train.warmup=2")


def test_a_search_ends_with_the_best_settings_of_each_system(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Rank settings by mean validation over finished seeds, without keys that are typed but not searched."""
    typed = {"train.steps": 500}
    for rate, accuracies in ((0.01, (30.0, 40.0)), (0.05, (50.0, 10.0)), (0.1, (36.0,))):
        for seed, accuracy in enumerate(accuracies):
            put(tmp_path, 101 + seed, accuracy, settings={"train.lr": rate, **typed})
    put(tmp_path, 103, None, settings={"train.lr": 0.5, **typed})
    put(tmp_path, 101, 20.0, settings={"train.lr": 0.05, **typed}, **softmax())
    with pytest.raises(SystemExit, match="1"):  # one run failed
        search.conclude(tmp_path, ["train.lr=0.01,0.05,0.1,0.5", "train.steps=500"])
    rows = yaml.safe_load((tmp_path / "best.yaml").read_text())
    found = [(row["task"], row["attention"], row["settings"], row["validation"], row["n"]) for row in rows]
    assert found == [
        ("listops", "simple", {"train.lr": 0.1}, 36.0, 1), ("listops", "softmax", {"train.lr": 0.05}, 20.0, 1)
    ]  # fmt: skip
    shown = capsys.readouterr()
    assert "1 run failed" in shown.err
    assert [line.split()[-3:] for line in shown.out.splitlines()[2:4]] == [["0.1", "36", "1"], ["0.05", "20", "1"]]


def test_a_search_names_what_it_searched_where_one_setting_is_left(tmp_path: Path) -> None:
    put(tmp_path, 101, 30.0, settings={"train.lr": 0.01})
    put(tmp_path, 101, 0.0, status="diverged", settings={"train.lr": 1e9})
    search.conclude(tmp_path, ["train.lr=0.01,1e9"])
    [row] = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert row["settings"] == {"train.lr": 0.01}


def test_a_search_with_a_refused_trial_exits_as_a_mistake_does(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    put(tmp_path, 101, 30.0, settings={"train.lr": 0.01})
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused/error.log").write_text("a mistake\n")
    with pytest.raises(SystemExit, match="2"):
        search.conclude(tmp_path, ["train.lr=0.01,0.1"])
    assert "1 run refused: refused" in capsys.readouterr().err


def test_the_objective_is_the_validation_and_less_perplexity_is_better(tmp_path: Path) -> None:
    assert search.objective(RunRecord.read(put(tmp_path, 1, 30.0))) == 30.0
    perplexity = {"accuracy": 1.0, "correct": 20, "examples": 2000, "loss": 1.0, "perplexity": 7.0, "step": 50}
    path = put(tmp_path, 2, 12.0, metric="perplexity", validation={"best": perplexity, "last": perplexity})
    assert search.objective(RunRecord.read(path)) == -7.0


@pytest.mark.filterwarnings("ignore")  # of Optuna and SQLAlchemy
def test_a_search_trains_and_reads_finished_runs(cli: Commands) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    words = ("--multirun", "hydra/sweeper=optuna", *TINY, "system=simple", "train.lr=0.01,0.02", "out=rates")
    code, out, err = cli(train.main, *words)
    assert code == 0, err
    records = sorted(Path("rates").rglob("record.json"))
    assert [path.parent.name for path in records] == ["seed101", "seed101"]
    assert "validation accuracy" in out and "test accuracy" not in out
    before = [path.read_bytes() for path in records]
    best = Path("rates/best.yaml").read_bytes()
    assert cli(train.main, *words)[0] == 0
    assert [path.read_bytes() for path in records] == before and Path("rates/best.yaml").read_bytes() == best
    [row] = yaml.safe_load(best)
    _, shown, _ = cli(train.main, *TINY, "system=simple", "rates=rates/best.yaml", "--cfg", "job", "--package", "train")
    assert f"\nlr: {row['settings']['train.lr']}\n" in shown
    rates = ("--multirun", *TINY, "system=simple,linear", "rates=rates/best.yaml", "out=table", "seed=1")
    code, _, err = cli(train.main, *rates)
    assert code == 0 and "no settings for listops_short linear" in err, err
    trained = map(RunRecord.read, Path("table").rglob("record.json"))
    found = {record.attention: record.config["train"]["lr"] for record in trained}
    assert found["simple"] == row["settings"]["train.lr"] != found["linear"]


@pytest.mark.filterwarnings("ignore")
def test_a_search_does_not_select_on_the_test_split(cli: Commands) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    arguments = ("--multirun", "hydra/sweeper=optuna", "experiment=smoke", "task=text", "attention=simple")
    code, _, err = cli(train.main, *arguments, "train.lr=0.01,0.05")
    assert (code, "validates on its test split" in err, "no run of this search is finished" in err) == (2, True, True)
    assert not list(Path().rglob("record.json"))
