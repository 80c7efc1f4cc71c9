"""lra-train from the command line: runs, sweeps, records, refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
from forked import Child, without_figures
from support import Commands, options, strip_times

from lra.cli import train
from lra.core import files, paths
from lra.records import provenance, record
from lra.records.names import ERRORS, LOCK, METRICS

SMOKE = ("experiment=smoke", "out=runs")
SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")
SIMPLE = Path("runs/listops/paper/simple/simple")


def metrics(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        assert line.pop("seconds") > line.pop("train_seconds") > 0
    return lines


def test_a_run_leaves_the_record_of_the_contract(cli: Commands) -> None:
    code, out, _ = cli(train.main, *SMOKE)
    assert code == 0
    assert "test accuracy " in out
    written = record.read(SIMPLE / "seed1" / record.NAME)
    assert {
        key: written[key] for key in ("attention", "variant", "protocol", "seed", "status", "steps", "resumes")
    } == {
        "attention": "simple",
        "variant": "simple",
        "protocol": "paper",
        "seed": 1,
        "status": "finished",
        "steps": 20,
        "resumes": 0,
    }
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
    lines = metrics(SIMPLE / "seed1")
    assert [line["step"] for line in lines] == [10, 20]
    assert lines[0].keys() == {"step", "epoch", "lr", "train_loss", "val_loss", "val_accuracy", "tokens", "tokens_real"}
    assert lines[0]["tokens"] == 10 * 8 * 60
    text = (SIMPLE / "seed1" / record.NAME).read_text()
    assert str(Path.home()) not in text
    assert os.environ["LRA_CACHE"] not in text


def test_the_commit_is_that_of_this_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a checkout it is the version."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=paths.CHECKOUT, capture_output=True, text=True, check=True)
    assert provenance._commit()["commit"] == head.stdout.strip()
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path / "site-packages")
    assert provenance._commit() == {"commit": f"lra {metadata.version('lra')}, installed", "dirty": None}


def test_the_same_seed_twice_is_the_same_to_the_byte(cli: Commands) -> None:
    for out in ("one", "two"):
        assert cli(train.main, "experiment=smoke", f"out={out}")[0] == 0
    assert cli(train.main, "experiment=smoke", "out=one", "seed=2")[0] == 0
    folder = SIMPLE.relative_to("runs")
    first, second, other = (
        Path("one") / folder / "seed1",
        Path("two") / folder / "seed1",
        Path("one") / folder / "seed2",
    )
    assert json.dumps(metrics(first)) == json.dumps(metrics(second))
    assert metrics(first) != metrics(other)
    records = [strip_times(record.read(path / record.NAME)) for path in (first, second)]
    assert json.dumps(records[0]) == json.dumps(records[1])


def test_a_finished_run_is_skipped_and_another_configuration_refused(cli: Commands) -> None:
    cli(train.main, *SMOKE, *SHORT)
    path = SIMPLE / "seed1" / record.NAME
    before = path.stat().st_mtime_ns
    code, _, err = cli(train.main, *SMOKE, *SHORT)
    assert (code, path.stat().st_mtime_ns) == (0, before)
    assert "finished before, nothing to do" in err
    assert cli(train.main, *SMOKE, *SHORT, "device=cpu", "workers=1")[0] == 0
    code, _, err = cli(train.main, *SMOKE, *SHORT, "train.lr=0.5", "model.depth=1")
    assert (code, path.stat().st_mtime_ns) == (2, before)
    assert "model.depth: 2 there, 1 now" in err
    assert "train.lr: 0.05 there, 0.5 now" in err
    assert len(err.strip().splitlines()) == 1


def test_a_run_that_was_cut_off_is_trained_again(cli: Commands) -> None:
    cli(train.main, *SMOKE, *SHORT)
    whole = metrics(SIMPLE / "seed1")
    (SIMPLE / "seed1" / record.NAME).unlink()
    (SIMPLE / "seed1" / METRICS).write_text("{half a line")
    assert cli(train.main, *SMOKE, *SHORT)[0] == 0
    assert metrics(SIMPLE / "seed1") == whole


def test_a_damaged_record_is_named(cli: Commands) -> None:
    cli(train.main, *SMOKE, *SHORT)
    (SIMPLE / "seed1" / record.NAME).write_text("{")
    code, _, err = cli(train.main, *SMOKE, *SHORT)
    assert code == 2
    assert "seed1/record.json: not readable" in err


def test_two_processes_do_not_share_a_run(cli: Commands) -> None:
    (SIMPLE / "seed1").mkdir(parents=True)
    with files.hold(SIMPLE / "seed1" / LOCK, 0):
        code, _, err = cli(train.main, *SMOKE)
    assert code == 75
    assert (err.count("\n"), "another process holds" in err) == (1, True)


def test_a_sweep_writes_its_report(cli: Commands) -> None:
    sweep = ("--multirun", *SMOKE, *SHORT, "system=simple,transformer", "model.depth=1,2")
    code, out, err = cli(train.main, *sweep, "seed=1,2")
    assert code == 0, err
    runs = sorted(path.parent.relative_to("runs").as_posix() for path in Path("runs").rglob(record.NAME))
    assert runs == [
        f"listops/paper/{system}/model.depth={depth}/seed{seed}"
        for system in ("simple/simple", "softmax/transformer")
        for depth in (1, 2)
        for seed in (1, 2)
    ]
    page = Path("runs/README.md").read_text()
    for system in ("Simple", "Transformer"):
        for depth in (1, 2):
            assert re.search(rf"\| {system} \(model\.depth={depth}\) \|.*±", page)
    assert "(n = 2)" in page and "# Results: runs" in out
    assert "8 of 8 runs finished" in err
    declared = json.loads(Path("runs/sweep.json").read_text())["cells"]
    assert [cell["seeds"] for cell in declared] == [[1, 2]] * 4
    code, _, err = cli(train.main, *sweep, "seed=3")
    assert code == 0
    assert [cell["seeds"] for cell in json.loads(Path("runs/sweep.json").read_text())["cells"]] == [[1, 2, 3]] * 4


def test_a_failing_run_does_not_stop_the_others(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    import lra.runs.trainer

    honest = lra.runs.trainer.fit

    def fails_for_two(*arguments, seed: int, **rest):
        if seed == 2:
            raise RuntimeError("the machine is on fire")
        return honest(*arguments, seed=seed, **rest)

    monkeypatch.setattr(lra.runs.trainer, "fit", fails_for_two)
    code, out, err = cli(train.main, "--multirun", *SMOKE, *SHORT, "seed=1,2,3")
    assert code == 1
    assert "failed: RuntimeError: the machine is on fire" in err
    assert "**2 of 3 runs are finished.**" in out
    assert "of 3 seeds, 1 failed" in Path("runs/README.md").read_text()
    assert "2 of 3 runs finished" in err
    written = record.read(SIMPLE / "seed2" / record.NAME)
    assert (written["status"], written["reason"]) == ("failed", "RuntimeError: the machine is on fire")
    assert "fails_for_two" in (SIMPLE / "seed2" / ERRORS).read_text()
    monkeypatch.setattr(lra.runs.trainer, "fit", honest)
    code, out, err = cli(train.main, "--multirun", *SMOKE, *SHORT, "seed=1,2,3")
    assert code == 0
    assert "runs are done" not in out
    assert "(n = 3)" in Path("runs/README.md").read_text()
    assert err.count("nothing to do") == 2
    assert not (SIMPLE / "seed2" / ERRORS).exists()


def test_divergence_is_a_result(cli: Commands) -> None:
    code, out, err = cli(train.main, "--multirun", *SMOKE, "seed=1,2", "train.lr=1e30", "train.eval_every=1")
    assert code == 1
    written = record.read(SIMPLE / "seed1" / record.NAME)
    assert written["status"] == "diverged"
    assert written["test"] == {}
    assert "the loss of step" in written["reason"]
    assert "**0 of 2 runs are finished.**" in out
    assert "of 2 seeds, 2 diverged" in Path("runs/README.md").read_text()
    code, _, err = cli(train.main, *SMOKE, "seed=1", "train.lr=1e30", "train.eval_every=1")
    assert code == 1
    assert "diverged before, nothing to do" in err


def test_a_sweep_checks_every_cell_before_it_starts(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", *SMOKE, "model.heads=2,3")
    assert code == 2
    assert "model.heads=3 does not divide model.qkv_dim=16" in err
    assert not Path("runs").exists()
    code, _, err = cli(train.main, "--multirun", *SMOKE, "seed=1,1")
    assert (code, Path("runs").exists()) == (2, False)
    assert "2 runs of this sweep would share " in err


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


def test_the_attention_chooses_its_variant_unless_told(cli: Commands) -> None:
    def folder(*arguments: str) -> str:
        return json.loads(cli(train.main, *SMOKE, *arguments, "describe=true")[1])["run_folder"]

    assert folder("attention=simple") == "runs/listops/paper/simple/simple/seed1"
    assert folder("attention=softmax") == "runs/listops/paper/softmax/transformer/seed1"
    assert folder("attention=simple", "variant=transformer") == "runs/listops/paper/simple/transformer/seed1"
    assert folder("system=simple_res") == "runs/listops/paper/simple/simple_res/seed1"
    assert folder("system=simple_res", "variant=simple_resl") == "runs/listops/paper/simple/simple_resl/seed1"


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
    written = record.read(Path("runs/listops/lra/simple/simple/seed1") / record.NAME)
    assert written["selection"] == "last"
    code, _, err = cli(train.main, *SMOKE, "train.selection=best_test", "seed=2")
    assert code == 2
    assert "validates on a split of its own; use best_val or last" in err


def test_a_mistake_in_a_process_of_its_own_is_one_line(cli: Commands) -> None:
    command = [sys.executable, "-m", "lra", "train", *SMOKE, "sed=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lra-train: error: sed: unknown key; did you mean 'seed'?\n"


def test_a_sweep_whose_runs_are_all_refused_says_so(cli: Commands) -> None:
    sweep = ("--multirun", *SMOKE, *SHORT, "seed=1,2")
    assert cli(train.main, *sweep)[0] == 0
    code, _, err = cli(train.main, *sweep, "train.steps=5")
    assert code == 2
    assert err.count("train.steps: 3 there, 5 now") == 4  # when it happens, and at the end
    assert "0 of 2 runs finished" in err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("attention=simple,foo", f"attention=foo: no such option; known: {', '.join(options('attention'))}"),
        ("model.dpeth=1,2", "model.dpeth: unknown key; did you mean 'model.depth'?"),
        ("seed=abc,2", "seed=abc: should be a valid integer"),
        ("model.depth=1,two", "model.depth=two: should be a valid integer"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(cli: Commands, argument: str, message: str) -> None:
    code, out, err = cli(train.main, "--multirun", *SMOKE, argument)
    assert (code, out) == (2, "")
    assert err == f"lra-train: error: {message}\n"
    assert not Path("runs").exists()


def test_control_c_pauses_a_sweep(cli: Commands) -> None:
    sweep = ("--multirun", *SMOKE, "seed=1,2", "train.eval_every=1", "train.steps=100000", "max_hours=null")
    child = Child(*sweep, inside=without_figures)
    lines = SIMPLE / "seed1" / METRICS
    deadline = time.monotonic() + 300
    while not (lines.exists() and lines.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.process, signal.SIGINT)
    ended = child.ends()
    assert ended.code == 130
    assert "seed 1: paused (SIGINT)" in ended.err
    assert "Traceback" not in ended.err
    assert record.read(SIMPLE / "seed1" / record.NAME)["status"] == "paused"
