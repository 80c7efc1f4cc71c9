"""Small results folders: records, metrics and predictions that belong together."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.files import digest, write_json
from lra.records import record
from lra.records.names import METRICS, PREDICTIONS, RECORD, SWEEP
from lra.records.record import RunRecord

EXAMPLES = 2000
MAJORITY, ROOT = 17.05, 36.2


def put(root: Path, seed: int, accuracy: float | None, **changes: Any) -> Path:
    """Write a run of ListOps in its place and return its record; accuracy None makes it a failed run."""
    finished = accuracy is not None
    settings = ",".join(f"{key}={value}" for key, value in changes.get("settings", {}).items())
    names = [
        changes.get(key, known)
        for key, known in (("protocol", "paper"), ("attention", "simple"), ("variant", "simple"))
    ]
    folder = root / Path("listops", *names, settings, f"seed{seed}")
    config = {"model": {"depth": 6}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}}
    config = {**config, **changes.pop("config", {}), "seed": seed}
    run = {
        "task": "listops",
        "task_version": 1,
        "attention": "simple",
        "variant": "simple",
        "protocol": "paper",
        "settings": {},
        "seed": seed,
        "selection": "best_val",
        "metric": "accuracy",
        **(results(folder, accuracy) if finished else {"status": "failed", "reason": "fire"}),
        "config": config,
        "provenance": {
            "lra": "0.1.0",
            "commit": "abc",
            "dirty": False,
            "config_sha256": digest(config),
            "data_sha256": "d1",
            "packages": {"torch": "2.13.0"},
            "python": "3.11",
            "platform": "Linux x86_64",
            "cpu": "one",
            "instructions": "AVX512",
            "threads": 2,
            "device": "cpu",
            "precision": "fp32",
            "noise": 2,
            "started": "2026-01-01T00:00:00+00:00",
            "finished": "2026-01-01T00:01:00+00:00",
        },
    } | changes
    if run["metric"] == "perplexity" and finished:
        for result in run["test"].values():
            result |= {"perplexity": accuracy, "accuracy": 10.0, "correct": 200}
        del run["files"][PREDICTIONS]
        (folder / PREDICTIONS).unlink()
    record.write(folder, RunRecord.model_validate(run).values())
    return folder / RECORD


def results(folder: Path, accuracy: float) -> dict[str, Any]:
    """Write what a finished run leaves beside its record, and return the results of the record."""
    folder.mkdir(parents=True, exist_ok=True)
    correct = round(accuracy * EXAMPLES / 100)
    entry = {"accuracy": 100 * correct / EXAMPLES, "correct": correct, "examples": EXAMPLES, "loss": 1.5, "step": 50}
    last = {**entry, "accuracy": 1.0, "correct": 20, "step": 100}
    lines = [
        {"step": result["step"], "val_accuracy": result["accuracy"], "val_loss": 1.5, "seconds": 33.0, "tokens": 600}
        for result in (entry, last)
    ]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = np.arange(EXAMPLES) % 10
    np.save(
        folder / PREDICTIONS, np.stack([np.where(np.arange(EXAMPLES) < correct, labels, 10), labels]).astype(np.uint8)
    )
    return {
        "status": "finished",
        "steps": 100,
        "test": {"last": last, "best_val": entry},
        "validation": {"best": entry, "last": last},
        "baselines": {"majority class": MAJORITY, "root operator": ROOT},
        "seconds": {"train": 60.0, "evaluate": 6.0},
        "tokens": {"computed": 1200, "real": 1000},
        "tokens_per_second": 20.0,
        "parameters": 123,
        "diagnostics": {"depth": {str(depth): {"examples": 1000, "correct": correct // 2} for depth in (1, 2)}},
        "files": record.sha256(folder, METRICS, PREDICTIONS),
    }


def race(root: Path, seed: int, steps: int, *, solved: bool, **changes: Any) -> Path:
    """Write a run of a task with a goal of 90 %, which it reaches or not."""
    accuracy = 95.0 if solved else 70.0
    path = put(root, seed, accuracy, config={"train": {"goal": 90, "steps": 500, "eval_every": 50}}, **changes)
    values = record.read(path)
    values["validation"]["last"] |= {"accuracy": accuracy, "correct": round(accuracy * EXAMPLES / 100)}
    values |= {"steps": steps, "ended": "solved" if solved else "steps"}
    record.write(path.parent, values)
    return path


def change(path: Path, **parts: Any) -> None:
    """Merge nested dictionaries into a record and sign it again."""

    def merged(old: Any, new: Any) -> Any:
        if not isinstance(new, dict) or not isinstance(old, dict):
            return new
        return {**old, **{name: merged(old.get(name), part) for name, part in new.items()}}

    record.write(path.parent, merged(record.read(path), parts))


def declare(root: Path, *cells: dict[str, Any]) -> None:
    base = {"task": "listops", "task_name": "listops", "protocol": "paper", "selection": "best_val", "settings": {}}
    entries = [{**base, **cell, "folder": f"listops/paper/{cell['attention']}/{cell['variant']}"} for cell in cells]
    write_json(root / SWEEP, {"cells": entries})


def softmax(**changes: Any) -> dict[str, Any]:
    """The Transformer, as changes of `put`."""
    return {"attention": "softmax", "variant": "transformer", **changes}
