"""A results folder of 60 small records, all numbers by rule, and the report that is expected of it.

    python tests/golden/folder.py     # writes tests/golden/expected again; look at the difference before it is kept

Under `paper`: ListOps with a missing and a failed seed, and one that gives a single answer; text with a seed at the
majority class; matching with a diverged seed; books by perplexity; and a run that no sweep declared. Under `strict`:
ListOps, complete, where one system wins.
"""

import sys
from pathlib import Path

import numpy as np

from lra.core.files import digest
from lra.records import record
from lra.report import Report

EXPECTED = Path(__file__).with_name("expected")
SEEDS = (1, 2, 3, 4, 5)
EXAMPLES = 2000
SYSTEMS = {
    "transformer": ("softmax", "transformer"),
    "linear": ("linear", "transformer"),
    "luna": ("luna", "transformer"),
    "simple": ("simple", "simple"),
    "simple_res": ("simple", "simple_res"),
    "simple_resl": ("simple", "simple_resl"),
}
BASELINES = {
    "listops": {"majority class": 18.0, "root operator": 35.45},
    "text": {"majority class": 50.0, "bag of words": 62.5},
    "matching": {"majority class": 50.0},
    "books": {"unigram": 805.44},
    "listops (length 10-50)": {"majority class": 11.95},
}
# Correct test examples of EXAMPLES, by seed; a word is how a run ended.
CORRECT: dict[tuple[str, str, str], tuple[int | str, ...]] = {
    ("listops", "paper", "transformer"): (728, 735, 719, "failed", 741),
    ("listops", "paper", "simple"): (742, 746, 200, 749, 735),
    ("listops", "paper", "simple_res"): (738, 731, 742, 725, "missing"),
    ("listops", "paper", "simple_resl"): (751, 733, 740, 729, 744),
    ("text", "paper", "transformer"): (1279, 1291, 1284, 1275, 1288),
    ("text", "paper", "linear"): (1341, 1350, 1347, 1338, 1352),
    ("text", "paper", "simple"): (1318, 1325, 1000, 1322, 1321),
    ("matching", "paper", "simple"): (1340, 1355, "diverged", 1351, 1346),
    ("matching", "paper", "simple_resl"): (1470, 1466, 1478, 1459, 1473),
    ("listops (length 10-50)", "paper", "simple"): (757,),
    ("listops", "strict", "transformer"): (730, 752, 741, 763, 737),
    ("listops", "strict", "luna"): (764, 789, 775, 800, 770),
}
PERPLEXITY = {"transformer": (31.25, 30.5, 31.0), "simple": (33.75, 34.5)}


MACHINE = {
    "lra": "0.1.0",
    "platform": "Linux x86_64",
    "instructions": "AVX2",
    "started": "2026-01-01T00:00:00+00:00",
    "finished": "2026-01-01T00:01:00+00:00",
}
DIAGNOSED = {"diagnostics": {}, "calibration": [], "calibration_error": 0.0}


def summary(seed: int, **known: object) -> dict:
    """What a record says of the way of a run, besides its results."""
    return {
        "steps": 1000,
        "seconds": {"train": 50.0 + seed, "evaluate": 5.0},
        "tokens_per_second": 1000.0 * seed,
        "tokens": {"real": 90_000, "computed": 100_000},
        "processes": 1,
        "test_in_train": 0.0,
        "resumes": 0,
        "parameters": 1000,
        "trainable_parameters": 1000,
        "full_pattern": False,
        "files": {},
        "peak_memory_bytes": 2**28,
        **known,
    }


def make(root: Path) -> None:
    """Write the records, and the sweep that declares all cells of more than one seed."""
    cells = []
    for (task, protocol, system), counts in CORRECT.items():
        seeds = SEEDS[: len(counts)]
        if len(counts) > 1:
            cells.append(_declared(task, protocol, system, seeds))
        for seed, correct in zip(seeds, counts, strict=True):
            if correct != "missing":
                _accuracy(root, task, protocol, system, seed, correct)
    for system, perplexities in PERPLEXITY.items():
        cells.append(_declared("books", "paper", system, SEEDS[: len(perplexities)]))
        for seed, perplexity in enumerate(perplexities, start=1):
            _perplexity(root, system, seed, perplexity)
    record.declare(root / "sweep.json", cells)


def _declared(task: str, protocol: str, system: str, seeds: tuple[int, ...]) -> dict:
    attention, variant = SYSTEMS[system]
    return {
        "task": task,
        "protocol": protocol,
        "attention": attention,
        "variant": variant,
        "settings": {},
        "task_name": task,
        "selection": "best_val",
        "folder": _place(task, protocol, system).as_posix(),
        "seeds": list(seeds),
    }


def _place(task: str, protocol: str, system: str) -> Path:
    return Path(task.split(" (")[0] + "_short" * ("(" in task), protocol, *SYSTEMS[system])


def _accuracy(root: Path, task: str, protocol: str, system: str, seed: int, correct: int | str) -> None:
    folder = root / _place(task, protocol, system) / f"seed{seed}"
    if isinstance(correct, str):
        _write(folder, task, protocol, system, seed, {"status": correct, "reason": "the loss of step 7 is nan"})
        return
    classes = 10 if task.startswith("listops") else 2
    best, last = _entry(correct, step=900), _entry(correct - 10, step=1000)
    test = {"last": last, "best_val": best} | ({"best_test": best} if task == "text" else {})
    results = {"status": "finished", "test": test, "validation": {"best": best, "last": last}}
    _write(folder, task, protocol, system, seed, results)
    if task == "text":
        return
    labels = np.arange(EXAMPLES) % classes
    right = (np.arange(EXAMPLES) * 37 + 11 * seed + 401 * list(SYSTEMS).index(system)) % EXAMPLES < correct
    predicted = np.where(right, labels, (labels + 1) % classes)
    if correct == EXAMPLES // classes:
        predicted = np.zeros_like(labels)
    np.save(folder / "predictions.npy", np.stack([predicted, labels]).astype(np.uint8))


def _perplexity(root: Path, system: str, seed: int, perplexity: float) -> None:
    entry = _entry(500, step=1000) | {"perplexity": perplexity}
    results = {"test": {"last": entry, "best_val": entry}, "validation": {"best": entry, "last": entry}}
    folder = root / _place("books", "paper", system) / f"seed{seed}"
    _write(folder, "books", "paper", system, seed, results | {"status": "finished", "metric": "perplexity"})


def _entry(correct: int, step: int) -> dict:
    return {"accuracy": 100 * correct / EXAMPLES, "correct": correct, "examples": EXAMPLES, "loss": 1.5, "step": step}


def _write(folder: Path, task: str, protocol: str, system: str, seed: int, results: dict) -> None:
    attention, variant = SYSTEMS[system]
    if results["status"] != "failed":
        results = {"baselines": BASELINES[task], "test": {}, "validation": {}, **summary(seed), **results}
    if results["status"] == "finished" and task != "books":  # a language model has no classes
        results = {**DIAGNOSED, **results}
    config = {"protocol": {"softmax_scale": protocol}, "model": {"depth": 6}, "seed": seed, "variant": variant}
    started = {
        "task": task,
        "task_version": 1,
        "attention": attention,
        "variant": variant,
        "protocol": protocol,
        "settings": {},
        "seed": seed,
        "selection": "best_val",
        "metric": "accuracy",
        "config": config,
        "provenance": {
            "commit": "0" * 40,
            "dirty": False,
            "config_sha256": digest(config),
            "data_sha256": digest([task, protocol]),
            "packages": {"torch": "2.13.0"},
            "python": "3.11.7",
            "device": "cpu",
            "cpu": "a processor",
            "cpu_model": "1/2/3",
            "threads": 2,
            "precision": "fp32",
            **MACHINE,
        },
    }
    record.write(folder, started | results)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "golden"
        make(made)
        for name, text in Report(made).files(figures={}).items():
            (EXPECTED / name).write_text(text)
            print(EXPECTED / name, file=sys.stderr)
