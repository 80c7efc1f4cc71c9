"""Small results folders, and the reports of them."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
from golden.folder import DIAGNOSED, MACHINE, summary

from lra.core.files import digest, write_json
from lra.records import record
from lra.records.names import CONFIG, COSTS, DETAILS, METRICS, PREDICTIONS, SAMPLE, SWEEP
from lra.report import Report


def put(root: Path, seed: int, accuracy: float | None, **changes: object) -> Path:
    """A small record in its place; accuracy None makes it a failed run."""
    finished = accuracy is not None
    correct = round(20 * accuracy) if finished else 0
    entry = {"accuracy": accuracy, "correct": correct, "examples": 2000, "loss": 0.0, "perplexity": 1.0, "step": 50}
    last = {**entry, "accuracy": 1.0, "correct": 20, "step": 100}
    results = {
        "status": "finished",
        "test": {"last": last, "best_val": entry},
        "validation": {"best": entry, "last": {**entry, "step": 100}},
        "baselines": {"majority class": 17.05, "root operator": 36.2},
        **DIAGNOSED,
        **summary(seed, steps=100, seconds={"train": 60.0, "evaluate": 6.0}, tokens_per_second=1000.0),
    }
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
        **(results if finished else {"status": "failed", "reason": "fire"}),
        "config": {"model": {"depth": 6}, "train": {"lr": 0.005}, "protocol": {"scale": "length"}, "seed": seed},
        "provenance": {
            "commit": "abc",
            "dirty": False,
            "data_sha256": "d1",
            "packages": {"torch": "2.13.0"},
            "python": "3.11",
            "device": "cpu",
            "cpu": "one",
            "cpu_model": "25/17/1",
            "threads": 2,
            "precision": "fp32",
            **MACHINE,
        },
    } | changes
    run["provenance"] = {**run["provenance"], "config_sha256": digest(run["config"])}
    settings = ",".join(f"{key}={value}" for key, value in run["settings"].items())
    folder = root / "listops" / run["protocol"] / run["attention"] / run["variant"] / settings / f"seed{seed}"
    record.write(folder, run)
    return folder / record.NAME


def complete(root: Path) -> None:
    """Give every run below `root` the files that a run leaves, as its record says, and list them there."""
    for path in sorted(root.rglob(record.NAME)):
        run = record.read(path)
        write_json(path.with_name(CONFIG), run["config"])
        if run["status"] == "finished":
            record.write(path.parent, run | {"files": _left(path.parent, run)})


def _left(folder: Path, run: dict) -> dict[str, str]:
    for entry in (*run["test"].values(), *run["validation"].values()):
        entry["loss"] = math.log(entry["perplexity"]) if "perplexity" in entry else entry["loss"]
    lines = {entry["step"]: entry for entry in run["validation"].values()}
    with open(folder / METRICS, "w") as file:
        for place, (step, entry) in enumerate(sorted(lines.items()), start=1):
            line = {"step": step, "val_accuracy": entry["accuracy"], "val_loss": entry["loss"]}
            file.write(json.dumps(line | _share(run, place, len(lines))) + "\n")
    if run["metric"] == "perplexity":
        np.save(folder / COSTS, np.arange(50.0))
        (folder / SAMPLE).write_text("Once\n")
    elif not (folder / PREDICTIONS).exists():
        entry = run["test"][run["selection"]]
        wrong = np.arange(entry["examples"]) >= entry["correct"]
        np.save(folder / PREDICTIONS, np.stack([wrong, np.zeros_like(wrong)]).astype(np.uint8))
    return record.sha256(folder, METRICS, PREDICTIONS, COSTS, SAMPLE)


def _share(run: dict, place: int, lines: int) -> dict[str, float]:
    """Of the tokens and seconds of a run, those of one of the lines; the last has what does not divide."""
    tokens = {name: whole // lines + (whole % lines if place == lines else 0) for name, whole in run["tokens"].items()}
    train, evaluate = (run["seconds"][part] / lines for part in ("train", "evaluate"))
    return {
        "seconds": train + evaluate,
        "train_seconds": train,
        "tokens": tokens["computed"],
        "tokens_real": tokens["real"],
    }


def change(path: Path, **parts: dict) -> None:
    """Merge nested dictionaries into a record."""

    def merged(old: dict, new: dict) -> dict:
        changed = {
            name: merged(old.get(name, {}), part) if isinstance(part, dict) else part for name, part in new.items()
        }
        return {**old, **changed}

    record.write(path.parent, merged(record.read(path), parts))


def declare(root: Path, *cells: dict) -> None:
    base = {"task_name": "listops", "protocol": "paper", "selection": "best_val", "settings": {}}
    entries = [{**base, **cell, "folder": f"listops/paper/{cell['attention']}/{cell['variant']}"} for cell in cells]
    record.declare(root / SWEEP, entries)


def files_of(folder: Path, *arguments: object) -> dict[str, str]:
    """The text files of a report, without its figures."""
    return Report(folder, *arguments).files(figures={})


def page_of(folder: Path, *arguments: object) -> str:
    """All tables."""
    return files_of(folder, *arguments)[DETAILS]


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
