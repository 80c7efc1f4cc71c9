"""TensorBoard shows what `metrics.jsonl` holds, also after a run was stopped; read back from its event files."""

from pathlib import Path
from time import sleep, time

import numpy as np
import pytest
from logged import FOLDER, a_run, events, expected, metrics, perform, scalars, stopped
from support import composed
from tensorboard.plugins.hparams import plugin_data_pb2

from lra.config.settings import settings_of
from lra.records import record
from lra.runs.loggers import Loggers, loggers_of

pytestmark = pytest.mark.usefixtures("logging")


def test_tensorboard_shows_the_metrics_and_the_test(tmp_path: Path) -> None:
    assert perform("logger=tensorboard") == "finished"
    accumulator = events(FOLDER)
    assert scalars(accumulator) == expected(metrics())
    chosen = record.read(FOLDER / record.NAME)["test"]["best_val"]
    for name in ("accuracy", "loss"):
        assert scalars(accumulator, [f"test/{name}"])[f"test/{name}"] == [
            (chosen["step"], float(np.float32(chosen[name])))
        ]
    assert [path for path in FOLDER.iterdir() if path.is_dir()] == []


def test_tensorboard_shows_every_block_and_groups_all() -> None:
    assert perform("logger=tensorboard", "model.depth=2", "probe=3") == "finished"
    accumulator, lines = events(FOLDER), metrics()
    for name in ("residual_norm", "gradient_norm"):
        for block in (1, 2):
            points = [(event.step, event.value) for event in accumulator.Scalars(f"blocks/{name}/{block}")]
            assert points == [(line["step"], float(np.float32(line[name][block - 1]))) for line in lines]
    groups = {"train", "val", "test", "speed", "blocks"}
    assert {name.partition("/")[0] for name in accumulator.Tags()["scalars"]} == groups


def test_tensorboard_has_every_setting_as_a_hyperparameter() -> None:
    assert perform("logger=tensorboard") == "finished"
    content = events(FOLDER).PluginTagToContent("hparams")
    read = plugin_data_pb2.HParamsPluginData.FromString
    start = read(content["_hparams_/session_start_info"]).session_start_info.hparams
    assert start["train.steps"].number_value == 18
    assert start["seed"].number_value == 1
    assert start["model.out_proj"].bool_value is False
    assert start["train.betas"].string_value == "[0.9, 0.999]"
    assert read(content["_hparams_/session_end_info"]).session_end_info.status == 1


def stopped_in_an_earlier_second(fault: str) -> None:
    """Event files are read in the order of their names, which begin with the second in which they were made."""
    stopped(fault, "logger=tensorboard")
    sleep(1 - time() % 1)


@pytest.mark.parametrize("fault", ["step:3:kill", "step:14:kill", "checkpoint listed:2:kill", "step:9:term"])
def test_tensorboard_is_the_metrics_after_any_number_of_stops(fault: str) -> None:
    for stop in (fault, "step:3:kill"):
        stopped_in_an_earlier_second(stop)
    assert perform("logger=tensorboard") == "finished"
    lines = metrics()
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 18]
    assert scalars(events(FOLDER)) == expected(lines)


def test_a_server_that_looks_on_sees_the_steps_once() -> None:
    """It has read steps after the checkpoint, which are then written again in another file."""
    stopped_in_an_earlier_second("step:17:kill")
    server = events(FOLDER)
    assert [event.step for event in server.Scalars("val/loss")] == [4, 8, 12, 16]
    assert perform("logger=tensorboard") == "finished"
    assert scalars(server.Reload()) == expected(metrics())


def test_numbers_that_json_has_not_are_left_out(tmp_path: Path) -> None:
    loggers = loggers_of(settings_of(composed("logger=tensorboard")))
    with Loggers(loggers, a_run(tmp_path)) as both:
        both.start(b'{"step": 1, "val_loss": null, "train_loss": 2.5}\n')
        both.log({"step": 2, "val_loss": float("inf"), "train_loss": 1.5})
        both.log({"step": 3, "val_loss": 0.5, "train_loss": float("nan")})
    assert scalars(events(tmp_path), ["train/loss", "val/loss"]) == {
        "train/loss": [(1, 2.5), (2, 1.5)],
        "val/loss": [(3, 0.5)],
    }
