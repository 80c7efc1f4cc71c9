"""What runs leave beside their records, for records that tests made: curves, diagnostics, calibration; by rule."""

import json
import math
from pathlib import Path

import numpy as np

from lra.records import record
from lra.report.read.records import PROBES

EVERY, EVALUATIONS, BLOCKS = 10, 100, 3


def furnish(root: Path) -> None:
    """Give every finished run below `root` what a run has at its end."""
    for path in sorted(root.rglob(record.NAME)):
        run = record.read(path)
        if run["status"] == "finished":
            curve(path.parent, run["seed"])
            if run["metric"] == "perplexity":
                language_model(path.parent, run["seed"])
            record.write(path.parent, run | results(run["seed"]))


def language_model(folder: Path, seed: int) -> None:
    """The cost of every batch, and a text."""
    np.save(folder / "costs.npy", batch_costs(seed))
    (folder / "sample.txt").write_text(f"Once upon a time <b>{seed}</b> | cats\n\n sat.\n")


def batch_costs(seed: int) -> np.ndarray:
    return 5 + seed + np.cos(np.arange(350))


def curve(folder: Path, seed: int, evaluations: int = EVALUATIONS) -> None:
    """`metrics.jsonl` of so many evaluations, one every EVERY steps and two seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / record.METRICS, "w") as file:
        for number in range(1, evaluations + 1):
            file.write(json.dumps(evaluation(seed, number)) + "\n")


def evaluation(seed: int, number: int) -> dict:
    loss = 1 + math.exp(-number / 20) + seed / 100
    return {
        "step": EVERY * number,
        "epoch": number / 50,
        "lr": 0.001,
        "train_loss": loss - 0.1,
        "val_loss": loss,
        "val_accuracy": 40 - 30 * math.exp(-number / 20) + seed,
        "seconds": 2.0,
        "tokens": 1000,
        "tokens_real": 900,
        **{name: [probed(place, block, number, seed) for block in range(BLOCKS)] for place, name in enumerate(PROBES)},
    }


def probed(place: int, block: int, number: int, seed: int) -> float | None:
    """The last probe has nothing to say about the first block."""
    return None if (place, block) == (len(PROBES) - 1, 0) else (place + 1) * (block + 1) / (number + seed)


def results(seed: int) -> dict:
    return {
        "parameters": 80_000,
        "tokens": {"real": 900_000, "computed": 1_000_000},
        "peak_memory_bytes": 2**28,
        "resumes": 0,
        "diagnostics": {
            "root operator": {
                "MIN": {"examples": 500, "correct": 200 + seed, "baseline": 150},
                "MAX": {"examples": 1500, "correct": 600, "baseline": 550},
            },
            "length": {"500-999": {"examples": 1200, "correct": 500}, "1000-1999": {"examples": 800, "correct": 240}},
        },
        "calibration": [
            {"confidence": 0.15, "accuracy": 10.0 + seed, "examples": 1000},
            {"confidence": 0.2, "accuracy": 30.0, "examples": 500},
            {"confidence": 0.95, "accuracy": 80.0, "examples": 500},
        ],
    }
