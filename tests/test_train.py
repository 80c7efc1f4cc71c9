"""lra-train from the command line: runs, sweeps, records, refusals."""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from hydra.types import RunMode
from support import Commands, composed, options, strip_times, train_in

from lra.cli import train
from lra.config.cell import cell_of, varied_keys
from lra.core import paths
from lra.records import provenance, record
from lra.records.names import ERRORS, METRICS
from lra.records.record import Sweep
from lra.runs.build import assemble
from lra.runs.describe import measure_step
from lra.runs.settings import settings_of
from lra.training.trainer import Trainer

SMOKE = ("experiment=smoke", "out=runs")
SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")
SIMPLE = Path("runs/listops/paper/simple/simple")


def metrics(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        assert line.pop("seconds") > line.pop("train_seconds") > 0
    return lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return train_in(tmp_path_factory.mktemp("once"), cache, *SMOKE)


@pytest.fixture
def once(cli: Commands, trained: Path) -> Commands:
    """The commands, in a folder with one finished run."""
    shutil.copytree(trained / "runs", "runs")
    return cli


def test_a_run_leaves_the_record_of_the_contract(once: Commands) -> None:
    written = record.read(SIMPLE / "seed1" / record.NAME)
    known = ("attention", "variant", "protocol", "seed", "status", "steps", "resumes")
    assert [written[key] for key in known] == ["simple", "simple", "paper", 1, "finished", 20, 0]
    assert written["task"] == "listops (length 10-60, depth 5, args 5, 200/50/70 examples)"
    assert written["baselines"].keys() == {"majority class", "root operator", "first three tokens"}
    assert written["test"].keys() == {"last", "best_val"}
    for entry in written["test"].values():
        assert entry["examples"] == 70
        assert entry["accuracy"] == 100 * entry["correct"] / 70
    assert written["validation"].keys() == {"best", "last"}
    assert written["test_in_train"] == 0
    assert written["provenance"].keys() >= {
        "commit", "dirty", "config_sha256", "data_sha256", "packages", "python", "platform", "cpu", "threads",
        "device", "precision", "started", "finished",
    }  # fmt: skip
    assert written["peak_memory_bytes"] is None or written["peak_memory_bytes"] > 1e7
    assert written["seconds"].keys() == {"train", "evaluate"} and min(written["seconds"].values()) > 0
    lines = metrics(SIMPLE / "seed1")
    assert [line["step"] for line in lines] == [10, 20]
    assert lines[0].keys() == {"step", "epoch", "lr", "train_loss", "val_loss", "val_accuracy", "tokens", "tokens_real"}
    assert lines[0]["tokens"] == 10 * 8 * 60
    text = (SIMPLE / "seed1" / record.NAME).read_text()
    assert str(Path.home()) not in text
    assert os.environ["LRA_CACHE"] not in text


def test_the_commit_is_that_of_this_code() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=paths.CHECKOUT, capture_output=True, text=True, check=True)
    assert provenance._commit()["commit"] == head.stdout.strip()


def test_the_same_seed_twice_is_the_same_to_the_byte(once: Commands) -> None:
    """This holds after an earlier attempt that left half a line, too."""
    first = SIMPLE / "seed1"
    second = Path("two") / first.relative_to("runs")
    second.mkdir(parents=True)
    (second / METRICS).write_text("{half a line")
    assert once(train.main, "experiment=smoke", "out=two")[0] == 0
    assert json.dumps(metrics(first)) == json.dumps(metrics(second))
    records = [strip_times(record.read(path / record.NAME)) for path in (first, second)]
    assert json.dumps(records[0]) == json.dumps(records[1])


def test_a_finished_run_is_skipped_and_another_configuration_refused(once: Commands) -> None:
    path = SIMPLE / "seed1" / record.NAME
    before = path.stat().st_mtime_ns
    code, _, err = once(train.main, *SMOKE, "device=cpu", "workers=1")
    assert (code, path.stat().st_mtime_ns) == (0, before)
    assert "finished before, nothing to do" in err
    code, _, err = once(train.main, "--multirun", *SMOKE, "seed=1", "train.lr=0.5", "model.depth=1")
    assert (code, path.stat().st_mtime_ns) == (2, before)
    assert "model.depth: 2 there, 1 now" in err
    assert "train.lr: 0.05 there, 0.5 now" in err


def test_a_single_run_has_what_is_set_in_its_path() -> None:
    cfg = composed(*SMOKE, "train.lr=0.5", "model={depth:1}", "task.train_size=60", "threads=2", "train.micro_batch=2")
    cell = cell_of(cfg, cfg.hydra, varied_keys(cfg, cfg.hydra))
    assert cell.settings == {"model.depth": 1, "task.train_size": 60, "train.lr": 0.5}
    cfg.hydra.mode = RunMode.MULTIRUN
    cfg.hydra.runtime.choices["hydra/sweeper"] = "optuna"
    assert {*varied_keys(cfg, cfg.hydra)} == {*cell.settings, "train.micro_batch"}, "trials do not share a folder"
    cfg = composed("task=files", "task.data=D/mine.csv", "task.name=other", "size=small", "precision=bf16")
    assert cell_of(cfg, cfg.hydra, varied_keys(cfg, cfg.hydra)).settings == {"precision": "bf16"}


def test_a_damaged_record_is_named(once: Commands) -> None:
    (SIMPLE / "seed1" / record.NAME).write_text("{")
    code, _, err = once(train.main, *SMOKE)
    assert code == 2
    assert "seed1/record.json: not readable" in err


def test_a_sweep_writes_its_report(cli: Commands) -> None:
    sweep = ("--multirun", *SMOKE, *SHORT, "system=simple,transformer")
    code, out, err = cli(train.main, *sweep, "seed=1,2")
    assert code == 0, err
    runs = sorted(path.parent.relative_to("runs").as_posix() for path in Path("runs").rglob(record.NAME))
    assert runs == [f"listops/paper/{row}/seed{n}" for row in ("simple/simple", "softmax/transformer") for n in (1, 2)]
    page = Path("runs/README.md").read_text()
    for system in ("Simple", "Transformer"):
        assert re.search(rf"\| {system} \|.*±", page)
    assert "(n = 2)" in page and "# Results: runs" in out
    assert "4 of 4 runs finished" in err
    assert [cell.seeds for cell in Sweep.read(Path("runs/sweep.json")).cells] == [[1, 2]] * 2
    code, _, err = cli(train.main, "--multirun", *SMOKE, *SHORT, "system=simple", "seed=3", "model.depth=2,1")
    assert code == 0
    cells = Sweep.read(Path("runs/sweep.json")).cells
    assert {cell.folder: cell.seeds for cell in cells} == {
        "listops/paper/simple/simple": [1, 2],
        "listops/paper/simple/simple/model.depth=1": [3],
        "listops/paper/simple/simple/model.depth=2": [3],
        "listops/paper/softmax/transformer": [1, 2],
    }


def test_a_failing_run_does_not_stop_the_others(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Trainer.train

    def fails_for_two(trainer: Trainer, *arguments: object) -> None:
        if trainer.seed == 2:
            raise RuntimeError("the machine is on fire")
        honest(trainer, *arguments)

    monkeypatch.setattr(Trainer, "train", fails_for_two)
    code, _, err = cli(train.main, "--multirun", *SMOKE, *SHORT, "seed=2,3")
    assert code == 1
    assert "failed: RuntimeError: the machine is on fire" in err
    assert "1 failed" in Path("runs/README.md").read_text()
    written = record.read(SIMPLE / "seed2" / record.NAME)
    assert (written["status"], written["reason"]) == ("failed", "RuntimeError: the machine is on fire")
    monkeypatch.setattr(Trainer, "train", honest)
    code, _, err = cli(train.main, "--multirun", *SMOKE, *SHORT, "seed=2,3")
    assert (code, "2 runs, 1 to train" in err, "(n = 2)" in Path("runs/README.md").read_text()) == (0, True, True)
    assert not (SIMPLE / "seed2" / ERRORS).exists()


def test_describe_trains_nothing(cli: Commands) -> None:
    code, out, _ = cli(train.main, "task=listops", "attention=softmax", "describe=true")
    assert code == 0
    described = json.loads(out)
    assert described["parameters"] == described["trainable_parameters"] == 21_019_658
    assert [step for step, _ in described["learning_rate"]] == [0, 1, 1000, 15000]
    assert described["tokens_per_step"] == 64_000
    assert described["run_folder"] == "runs/listops/paper/softmax/transformer/seed1"
    assert not Path("runs").exists()


def test_described_flops_are_those_of_the_formula(cli: Commands) -> None:
    """Forward per token: projections 6 D^2, K^T V and Q S 4 D Dh, feed-forward 4 D F; backward is twice that.

    The last block projects keys and values of all tokens and does the rest for the CLS, once per example, as the
    head's 2 (D F + F C). The Gram form, which the run takes, needs less.
    """
    command = ("task=listops", "attention=simple", "describe=true")
    _, out, _ = cli(train.main, *command, "attention.form=textbook")
    tokens, dim, head, hidden = 2001, 512, 64, 2048
    block = 6 * dim**2 + 4 * dim * head + 4 * dim * hidden
    last = tokens * (4 * dim**2 + 2 * dim * head) + 2 * dim**2 + 2 * dim * head + 4 * dim * hidden
    forward = 5 * tokens * block + last + 2 * (dim * hidden + hidden * 10)
    textbook = json.loads(out)["flops_per_step"]
    assert textbook == pytest.approx(32 * 3 * forward, rel=1e-6)
    _, out, _ = cli(train.main, *command)
    assert json.loads(out)["flops_per_step"] < 0.95 * textbook


@pytest.mark.parametrize("task", ["matching", "mqar"])
def test_a_step_is_measured_without_data(task: str) -> None:
    settings = settings_of(composed("experiment=smoke", f"task={task}", "train.batch_size=7", "train.micro_batch=3"))
    measured = measure_step(settings, assemble(settings))
    assert measured["examples"] == 3
    assert measured["hours"] * 3600 > measured["step_seconds"] > 0


def test_the_attention_chooses_its_variant_unless_told() -> None:
    def cell(*arguments: str) -> str:
        cfg = composed(*SMOKE, *arguments)
        return cell_of(cfg, cfg.hydra, []).folder.as_posix()

    assert cell("attention=simple") == "listops/paper/simple/simple"
    assert cell("attention=softmax") == "listops/paper/softmax/transformer"
    assert cell("attention=simple", "variant=transformer") == "listops/paper/simple/transformer"
    assert cell("system=simple_res") == "listops/paper/simple/simple_res"
    assert cell("system=simple_res", "variant=simple_resl") == "listops/paper/simple/simple_resl"


@pytest.mark.parametrize(
    ("system", "protocol"),
    [
        pytest.param(system, protocol, marks=[] if place % len(options("system")) == 0 else pytest.mark.slow)
        for place, (protocol, system) in enumerate(product(options("protocol"), options("system")))
    ],
)
def test_every_system_trains_under_every_protocol(cli: Commands, system: str, protocol: str) -> None:
    code, _, err = cli(train.main, *SMOKE, *SHORT, f"system={system}", f"protocol={protocol}", "model.depth=1")
    assert code == 0, err


def test_selection_is_what_the_protocol_says(cli: Commands) -> None:
    assert cli(train.main, *SMOKE, *SHORT, "protocol=lra")[0] == 0
    [path] = Path("runs/listops/lra").rglob(record.NAME)
    written = record.read(path)
    assert written["selection"] == "last"
    code, _, err = cli(train.main, *SMOKE, "train.selection=best_test", "seed=2")
    assert code == 2
    assert "has a separate validation split; use best_val or last" in err


def test_a_mistake_in_a_process_of_its_own_is_one_line(cli: Commands) -> None:
    command = [sys.executable, "-m", "lra", "train", *SMOKE, "sed=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lra-train: error: sed: unknown key; did you mean 'seed'?\n"


def test_without_any_choice_nothing_is_trained(cli: Commands) -> None:
    code, out, err = cli(train.main)
    assert (code, out, err.count("\n"), Path("runs").exists()) == (2, "", 1, False)
    assert train.QUICK in err
