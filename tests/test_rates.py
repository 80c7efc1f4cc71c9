"""The rates that a preset takes from a sweep over them."""

import sys
from pathlib import Path

import pytest
from reports import put

from lra.tools import rates


def run(
    root: Path, seed: int, rate: float, accuracy: float | None, loss: float = 1.0, attention: str = "simple"
) -> None:
    found = {"accuracy": accuracy, "correct": 0, "examples": 2000, "loss": loss, "perplexity": 1.0, "step": 50}
    put(
        root / f"{rate}",
        seed,
        None if accuracy is None else 1.0,  # of the test, which does not choose
        attention=attention,
        validation={"best": found, "last": {**found, "accuracy": 99.0}},
        config={"train": {"lr": rate}},
    )


def test_the_best_validation_accuracy_then_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Of two seeds the mean: 0.003 is best of one seed, 0.01 of both; of softmax the rates tie."""
    for seed, rate, accuracy in ((1, 0.003, 50), (2, 0.003, 30), (1, 0.01, 45), (2, 0.01, 45), (1, 0.1, None)):
        run(tmp_path, seed, rate, accuracy)
    run(tmp_path, 1, 0.001, 40.0, loss=0.7, attention="softmax")
    run(tmp_path, 1, 0.002, 40.0, loss=0.5, attention="softmax")
    monkeypatch.setattr(sys, "argv", ["rates", str(tmp_path)])
    rates.main()
    assert capsys.readouterr().out.splitlines() == [
        "listops simple train.lr=0.1: failed",
        "by_task:",
        "  listops:",
        "    by_attention:",
        "      softmax: {train: {lr: 0.002}}  # 0.001: 40.00, 0.002: 40.00",
        "      simple: {train: {lr: 0.01}}  # 0.003: 40.00 (30.00 to 50.00), 0.01: 45.00 (45.00 to 45.00)",
    ]


def test_a_folder_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["rates", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        rates.main()
    assert (stop.value.code, "no records below it" in capsys.readouterr().err) == (2, True)
