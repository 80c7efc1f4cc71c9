"""hydra/sweeper=optuna: the objective is the validation, and a search ends with the best settings of each system."""

from pathlib import Path

import pytest
import yaml
from reports import put, softmax
from support import Commands, composed

from lra.cli import search, train
from lra.records.record import RunRecord
from lra.records.runs import read_runs

TINY = ("experiment=smoke", "task=listops_short", "train.steps=4", "train.eval_every=2", "train.warmup=2")


def test_settings_are_ranked_by_the_mean_validation_of_finished_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for rate, accuracies in ((0.01, (30.0, 40.0)), (0.05, (50.0, 10.0)), (0.1, (36.0,))):
        for seed, accuracy in enumerate(accuracies):
            put(tmp_path, 101 + seed, accuracy, settings={"train.lr": rate})
    put(tmp_path, 103, None, settings={"train.lr": 0.5})
    put(tmp_path, 101, 20.0, settings={"train.lr": 0.05}, **softmax())
    frame = search.ranked([run for run in read_runs(tmp_path) if run.record.status == "finished"])
    rows = frame[frame.attention == "simple"][["mean", "n", "train.lr"]]
    assert rows.values.tolist() == [[36.0, 1, 0.1], [35.0, 2, 0.01], [30.0, 2, 0.05]]
    with pytest.raises(SystemExit, match="1"):  # one run failed
        search.conclude(tmp_path)
    *_, simple, other, line = capsys.readouterr().out.splitlines()
    best = [simple.split(), other.split()]
    assert line == "train.lr: ${by_task:{listops:${by_attention:{simple:0.1, softmax:0.05}}}}"
    assert best == [
        ["listops", "simple", "simple", "0.1", "36", "1"], ["listops", "softmax", "transformer", "0.05", "20", "1"]
    ]  # fmt: skip


def test_the_objective_is_the_validation_and_less_perplexity_is_better(tmp_path: Path) -> None:
    assert search.objective(RunRecord.read(put(tmp_path, 1, 30.0))) == 30.0
    perplexity = {"accuracy": 1.0, "correct": 20, "examples": 2000, "loss": 1.0, "perplexity": 7.0, "step": 50}
    path = put(tmp_path, 2, 12.0, metric="perplexity", validation={"best": perplexity, "last": perplexity})
    assert search.objective(RunRecord.read(path)) == -7.0


@pytest.mark.filterwarnings("ignore")  # of Optuna and SQLAlchemy
def test_a_search_trains_and_reads_finished_runs(cli: Commands) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    words = ("--multirun", "hydra/sweeper=optuna", *TINY, "system=simple", "train.lr=0.01,0.05", "out=rates")
    code, out, err = cli(train.main, *words)
    assert code == 0, err
    records = sorted(Path("rates").rglob("record.json"))
    assert [path.parent.name for path in records] == ["seed101", "seed101"]
    before = [path.read_bytes() for path in records]
    assert cli(train.main, *words)[1].splitlines()[-1] == out.splitlines()[-1]
    assert [path.read_bytes() for path in records] == before
    line = yaml.safe_load(out.splitlines()[-1])
    best = composed("task=listops_short", "attention=simple", f"+train.found='{line['train.lr']}'").train
    assert best.found in (0.01, 0.05)


@pytest.mark.filterwarnings("ignore")
def test_a_search_does_not_select_on_the_test_split(cli: Commands) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    arguments = ("--multirun", "hydra/sweeper=optuna", "experiment=smoke", "task=text", "attention=simple")
    code, _, err = cli(train.main, *arguments, "train.lr=0.01,0.05")
    assert (code, "validates on its test split" in err, "no run of this search is finished" in err) == (2, True, True)
    assert not list(Path().rglob("record.json"))
