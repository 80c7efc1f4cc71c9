"""Sweeps: checked before the first run, shared by processes, stopped, resumed, and summed up at the end."""

import json
import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import Child
from support import Commands, composed

import lra
from lra.cli import train
from lra.core import files
from lra.records import record
from lra.records.names import CONFIG, LOCK
from lra.runs import sweep_time
from lra.runs.build import assemble
from lra.runs.settings import settings_of
from lra.training.progress import TrainingBar

SMOKE = ("--multirun", "experiment=smoke", "out=runs")
SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")
SEED1 = Path("runs/listops/paper/simple/simple/seed1")


def test_several_processes_share_a_sweep_and_run_nothing_twice(cli: Commands) -> None:
    """Two processes start at once, like hosts that share a file system, and leave each other's runs alone."""
    line = (*SMOKE, "seed=1,2", *SHORT)
    ended = [child.ends() for child in [Child(*line) for _ in range(2)]]
    codes = [each.code for each in ended]
    assert set(codes) <= {0, 75}, ended
    assert 0 in codes, "the last to end saw everything finished"
    for each in ended:
        assert "2 of 2 runs finished" in each.err if each.code == 0 else "another process" in each.err
    shown = [line for each in ended for line in each.out.splitlines() if "test accuracy" in line]
    assert sum(line.startswith("[") for line in shown) == 2
    assert len([*Path("runs").rglob(record.NAME)]) == 2
    code, _, err = cli(train.main, *line)
    assert (code, "2 runs, 0 to train" in err) == (0, True)


def test_a_run_that_another_process_trains_is_left_to_it(cli: Commands) -> None:
    SEED1.mkdir(parents=True)
    with files.hold(SEED1 / LOCK, 0):
        code, out, err = cli(train.main, *SMOKE, *SHORT, "seed=1,2,3")
    assert code == 75, err
    assert "another process trains it" in err
    assert "2 of 3 runs finished, 1 running" in err
    assert out.index("seed 2: test accuracy") < out.index("seed 3: test accuracy")


def test_a_signal_within_a_run_ends_the_sweep(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = TrainingBar.step

    def signalled(bar: TrainingBar, step: int, *rest: object) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        shown(bar, step, *rest)

    monkeypatch.setattr(TrainingBar, "step", signalled)
    code, _, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT)
    assert (code, err.count("paused (SIGTERM)")) == (143, 1), err
    assert len(list(Path("runs").rglob(CONFIG))) == 1
    assert "0 of 3 runs finished, 1 paused, 2 waiting" in err


def test_references_to_other_keys_are_resolved_in_each_run(cli: Commands) -> None:
    words = (*SMOKE, "model.dim=8,16", "model.mlp_dim=${model.dim}", *SHORT)
    assert "2 of 2 runs finished" in cli(train.main, *words)[2]
    configs = [json.loads(path.read_text()) for path in Path("runs").rglob(CONFIG)]
    assert sorted((config["model"]["dim"], config["model"]["mlp_dim"]) for config in configs) == [(8, 8), (16, 16)]


# ---------------------------------------------------------------- before the first run


@pytest.mark.parametrize(
    ("word", "out"),
    [("attention=simple,linear", "${hydra:runtime.choices.attention}"), ("seed=1,2", "n${hydra:job.num}")],
)
def test_an_out_that_differs_between_runs_is_refused(cli: Commands, word: str, out: str) -> None:
    code, _, err = cli(train.main, *SMOKE, word, f"out={out}")
    assert (code, err.count("\n"), f"out={out}: differs between the runs" in err) == (2, 1, True), err
    assert not list(Path().rglob(CONFIG))


def test_missing_data_are_named_before_the_first_run(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LRA_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = cli(
        train.main, "--multirun", "experiment=smoke", "task=listops,text,matching", "seed=1,2", "cache=own"
    )
    assert code == 2
    assert "imdb/train.jsonl" in err
    assert "tsv_data" in err
    assert "no data for text" in err.splitlines()[-1]
    assert not list(Path().rglob(CONFIG))


# ---------------------------------------------------------------- which runs are left


def test_a_diverged_run_is_not_trained_again(cli: Commands) -> None:
    line = (*SMOKE, *SHORT, "seed=1")
    assert cli(train.main, *line)[0] == 0
    record.write(SEED1, {**record.read(SEED1 / record.NAME), "status": "diverged", "reason": "so it was"})
    code, out, err = cli(train.main, *line)
    assert (code, ": test accuracy" in out, f"{SEED1}: diverged: so it was" in err) == (1, False, True)


def test_calls_from_several_threads_take_turns(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []

    def call(seed: int) -> None:
        try:
            ended.append(lra.train("experiment=smoke", "out=threads", f"seed={seed}", *SHORT).status)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ["finished"] * 2


def test_a_launcher_that_is_not_installed_is_named(cli: Commands) -> None:
    if find_spec("hydra_plugins.hydra_ray_launcher"):
        pytest.skip("it is installed")
    code, _, err = cli(train.main, *SMOKE, "seed=1,2", "hydra/launcher=ray")
    assert (code, err.count("\n"), "pip install hydra-ray-launcher" in err) == (2, 1, True)


# ---------------------------------------------------------------- rows and what is asked of a sweep


def test_a_row_is_added_to_a_sweep_and_multiplies_nothing(cli: Commands) -> None:
    words = ("--multirun", "experiment=smoke", "system=simple", "also=[linear,fnet]", "seed=1,2", "describe=true")
    code, out, err = cli(train.main, *words)
    assert code == 0, err
    rows = [Path(line.split('"')[3]).parent.parent.name for line in out.splitlines() if "run_folder" in line]
    assert rows == ["simple", "linear", "fnet"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["also=3", "system=simple,longformer"], "also=3: "),
        (["seed=1,2", "task.seed=${seed}"], "task.seed: 1 with seed=1, 2 with seed=2; "),  # a table would not pool them
        (["model.heads=1,2,3", "seed=1,2"], "model.heads=3 does not divide model.qkv_dim=16"),
        (["also=fnt", "system=simple,longformer"], "attention=fnt: no such option; did you mean 'fnet'?"),
        (["system=simple,transformer", "sweep.reference=Transfomer"], "expected a row of this sweep"),
    ],
)
def test_impossible_sweeps_are_one_line(words: list[str], key: str, cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", *words)
    assert (code, key in err.splitlines()[-1]) == (2, True), err
    assert not [*Path().rglob("sweep.json"), *Path().rglob(CONFIG)]


# ---------------------------------------------------------------- time


def test_the_tokens_of_a_training_include_its_pretraining() -> None:
    without, also = (
        assemble(settings_of(composed("experiment=smoke", *more)))
        for more in ((), ("pretrain=masked", "pretrain.train.steps=30", "pretrain.train.warmup=3"))
    )
    spec = without.builder.spec
    assert settings_of(composed("sweep.tokens=10000000000000")).sweep.tokens == 10**13, "as many as Table 1 reads"
    assert sweep_time.training_tokens(without) == without.recipe.steps * 8 * spec.documents * spec.max_len
    assert sweep_time.training_tokens(also) == (without.recipe.steps + 30) * 8 * spec.documents * spec.max_len


def test_a_sweep_above_max_hours_stops_in_its_first_run_and_goes_on_later(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_time, "MIN_SECONDS", 0.0)
    code, _, err = cli(train.main, *SMOKE, "seed=1,2", "max_hours=1e-9")
    assert code == 2, err
    assert "max_hours=1e-09" in err
    assert "0 of 2 runs finished, 1 paused, 1 waiting" in err
    code, _, err = cli(train.main, *SMOKE, "seed=1,2", "max_hours=null")
    assert (code, err.count("the sweep takes about")) == (0, 1), err
    assert "2 of 2 runs finished" in err
