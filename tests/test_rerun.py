"""lra-train rerun=: a kept run is trained again, and every difference is listed."""

import json
import shutil
from pathlib import Path

import pytest
from support import Commands, train_in

from lra.cli import report, train
from lra.config import configure
from lra.core.paths import CHECKOUT
from lra.records import record
from lra.records.names import METRICS, RUNS
from lra.records.runs import read_runs

SMOKE = ("experiment=smoke", "threads=1", "out=kept", "train.steps=4", "train.warmup=2", "train.eval_every=4")
CELL = "train.eval_every=4,train.steps=4,train.warmup=2"
SIMPLE = Path(f"kept/listops/paper/simple/simple/{CELL}/seed1")
AGAIN = f"reruns/kept/listops/paper/simple/simple/{CELL}/seed1"


def test_attentions_and_tasks_of_kept_runs_are_found_with_their_options() -> None:
    configs = [run.record.config for path in (CHECKOUT / "results").glob(f"*/{RUNS}") for run in read_runs(path)]
    nodes = {json.dumps(config[key]): (key, config[key]) for config in configs for key in ("attention", "task")}
    assert len(nodes) > 60
    for key, node in nodes.values():
        built = configure.build(node, key, supplied=int(key == "attention"))
        assert built.func.__name__ == node["_target_"].rpartition(".")[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return train_in(tmp_path_factory.mktemp("kept"), cache, *SMOKE)


@pytest.fixture
def kept(cli: Commands, trained: Path) -> Commands:
    shutil.copytree(trained / "kept", "kept")
    return cli


def test_the_same_run_is_equal_to_the_last_bit(kept: Commands) -> None:
    """A run is named by its record or its folder."""
    code, out, _ = kept(train.main, f"rerun={SIMPLE / record.NAME}")
    assert (code, out.splitlines()[-1]) == (0, f"{SIMPLE / record.NAME}: equal to the last bit ({AGAIN})")
    made, was = record.read(Path(AGAIN) / record.NAME), record.read(SIMPLE / record.NAME)
    assert (made["test"], made["config"], made["task"]) == (was["test"], was["config"], was["task"])
    code, _, err = kept(train.main, f"rerun={SIMPLE}")
    assert code == 2
    assert f"{AGAIN}: holds an earlier rerun; delete it, or choose another out=..." in err


def test_a_kept_run_is_trained_with_its_own_settings(cli: Commands) -> None:
    """Use a sweep over a setting, whose folder has an equal sign."""
    sweep = ("--multirun", *SMOKE, "max_hours=null", "system=transformer", "train.lr=0.05,0.01")
    assert cli(train.main, *sweep)[0] == 0
    assert cli(report.main, "--keep", "kept")[0] == 0
    shutil.rmtree("kept/listops")
    cell = "listops/paper/softmax/transformer/train.lr=0.01/seed1"
    place = f"kept/{RUNS}/{cell}"
    code, said, _ = cli(train.main, f"rerun='{place}'", "out=a")
    assert (code, said.splitlines()[-1]) == (0, f"{place}: equal to the last bit (a/{cell})")


def test_differences_from_the_kept_run_are_listed(kept: Commands) -> None:
    """The first evaluation, every number of the record, and the conditions."""
    lines = (SIMPLE / METRICS).read_text().replace('"step": 4', '"step": 4, "extra": 1')
    (SIMPLE / METRICS).write_text(lines)
    run = record.read(SIMPLE / record.NAME)
    run["files"] |= record.sha256(SIMPLE, METRICS)
    run["test"]["last"]["correct"] += 1
    run["provenance"] |= {"commit": "another", "cpu": "abacus"}
    record.write(SIMPLE, run)
    code, out, _ = kept(train.main, f"rerun={SIMPLE}")
    assert code == 1
    told = out[out.index(f"{SIMPLE}: ") :].splitlines()
    correct = run["test"]["last"]["correct"]
    assert told[:3] == [
        f"{SIMPLE}: not equal to the last bit ({AGAIN})",
        "  step 4: extra: 1 then, None now",
        f"  test.last.correct: {correct} then, {correct - 1} now",
    ]
    assert [line.split(":")[0] for line in told[3:]] == ["  commit", "  cpu"]


def test_a_run_with_earlier_noise_cannot_be_equal(cli: Commands) -> None:
    assert cli(train.main, *SMOKE, "model.dropout=0.1")[0] == 0
    [folder] = [path.parent for path in Path("kept").rglob(record.NAME)]
    run = record.read(folder / record.NAME)
    assert run["provenance"]["noise"] == 2
    run["provenance"]["noise"] = 1
    run["test"]["last"]["correct"] += 1
    record.write(folder, run)
    code, out, _ = cli(train.main, f"rerun='{folder}'")
    said = out[out.rindex(f"{folder}: ") :].splitlines()
    assert (code, len(said)) == (1, 1)
    assert "the noise algorithm changed from version 1 to 2, so the results cannot be equal" in said[0]


def test_a_rerun_needs_the_initial_weights(kept: Commands) -> None:
    taking = (f"init.folder={SIMPLE}", "init=checkpoint", "attention=softmax")
    assert kept(train.main, *SMOKE, *taking)[0] == 0
    [taken] = [path.parent.relative_to("kept") for path in Path("kept").rglob(f"softmax/**/{record.NAME}")]
    code, _, err = kept(train.main, f"rerun=kept/{taken}")
    assert (code, "set init=checkpoint" in err) == (2, True)
    code, out, err = kept(train.main, f"rerun=kept/{taken}", "init=checkpoint", f"init.folder={SIMPLE}")
    assert code == 0, err
    assert out.splitlines()[-1] == f"kept/{taken}: equal to the last bit (reruns/kept/{taken})"


def test_impossible_reruns_are_one_line(kept: Commands) -> None:
    for words, fault in (
        (("rerun=nowhere",), "nowhere: no record.json there; expected a run's folder"),
        ((f"rerun={SIMPLE}", "train.lr=0.1"), "train.lr=0.1: "),
        ((f"rerun={SIMPLE}", "experiment=smoke"), "experiment=smoke: "),
        (("--multirun", f"rerun={SIMPLE}", "seed=1,2"), f"rerun={SIMPLE}: one run at a time"),
    ):
        code, out, err = kept(train.main, *words)
        assert (code, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith(f"lra-train: error: {fault}")
        assert not Path("reruns").exists()


def test_other_data_are_named_before_anything_is_trained(kept: Commands) -> None:
    run = record.read(SIMPLE / record.NAME)
    run["provenance"]["data_sha256"] = "0" * 64
    record.write(SIMPLE, run)
    code, _, err = kept(train.main, f"rerun={SIMPLE}")
    assert (code, err.count(f"data: expected SHA-256 {'0' * 64}, as the run recorded, found ")) == (2, 1)
    assert not Path("reruns").exists()
