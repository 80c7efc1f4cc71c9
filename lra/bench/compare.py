"""Measure time and peak memory of steps side by side in one process, and write a page and a figure of the results."""

import io
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch.profiler import profile, record_function
from torch.utils.benchmark import Timer

from lra.bench.settings import BenchSettings
from lra.bench.subjects import Subject, layer_step, model_step, subjects_of
from lra.core.console import say
from lra.core.files import write_atomic, write_json
from lra.ops import products
from lra.records import provenance
from lra.runs.describe import counter
from lra.runs.device import device_of, keep_memory, reproducible

NAME, PAGE, FIGURE = "bench.json", "README.md", "lengths.svg"
TITLES = {"step": "A training step", "layer": "Layers, forward and backward", "model": "Training steps of models"}
FOLDERS = ("out", "cache", "data_dir", "workers")  # keys that do not change measurements
Record = dict[str, Any]
ALLOCATION, MEASURED = "[memory]", "measured step"  # names of events in a profile


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Return the measurements of all subjects, with PyTorch set up as in a training run."""
    started = provenance.now()
    device = device_of(settings.device)
    compared = subjects_of(settings)
    torch.set_num_threads(settings.threads)
    reproducible()
    keep_memory()  # before the first product, as in a run
    library = products.choose(settings.products) if device == "cpu" else "mkl"
    with products.using(library):
        results = list(compare(settings, compared, device))
    measured: dict[str, Any] = {"results": results}
    if settings.what == "step" and device == "cpu":
        tokens = settings.train.micro_batch * results[0]["length"]
        sizes = (tokens, settings.model.dim, settings.model.mlp_dim)
        measured["products"] = product_rates(*sizes, settings.rounds)
    config = {key: value for key, value in asdict(settings).items() if key not in FOLDERS}
    where = provenance.provenance(config, None, device, settings.precision, started)
    if device == "cpu":
        where["products"] = library
    return {"config": config, **measured, "provenance": where}


def compare(settings: BenchSettings, subjects: list[Subject], device: str) -> Iterator[Record]:
    """Yield the measurements of each subject at each length; `ratio` has the times relative to the first subject."""
    for length in [None] if settings.what == "step" else settings.lengths:  # for what=step, the task sets the length
        say(f"{', '.join(subject.title for subject in subjects)}{f', length {length}' if length else ''}")
        make = layer_step if settings.what == "layer" else model_step
        made = [make(subject, length, device) for subject in subjects]  # type: ignore[arg-type]
        memory: dict[int, int] = {}  # peak in bytes by number of the step; steps that ran out of memory are left out
        for number, step in enumerate(made):  # before the times, because this also warms the steps up
            with suppress(torch.OutOfMemoryError):
                memory[number] = peak_memory(step.run, device)
        seconds = seconds_in_turns({number: made[number].run for number in memory}, settings.rounds)
        for number, (subject, step) in enumerate(zip(subjects, made, strict=True)):
            yield {
                "subject": subject.title,
                "length": step.length,
                "tokens": step.tokens,
                "flops": flops(step.run) if number in memory else None,
                "parameters": sum(parameter.numel() for parameter in step.module.parameters()),
                "seconds": seconds.get(number),
                "ratio": [own / first for own, first in zip(seconds[number], seconds[0], strict=True)]
                if {0, number} <= {*seconds}
                else None,
                "peak_bytes": memory.get(number),
            }


def flops(step: Callable[[], object]) -> int:
    """Return the number of FLOPs of a step, counted in matrix products, convolutions and Fourier transforms."""
    with counter() as counted:
        step()
    return counted.get_total_flops()


def product_rates(tokens: int, width: int, hidden: int, rounds: int) -> Record:
    """Measure the speed of matrix products on a CPU: those of a linear layer of these sizes and of its two gradients.

    Returns:
        sizes: tokens, width, hidden.
        gflops: medians over rounds, in 1e9 operations per second, by library and type: "fp32 mkl", "bf16" and, if
            oneDNN computes in fp32 on this CPU, "fp32 onednn".
    """
    x, weight, grad = torch.randn(tokens, width), torch.randn(hidden, width), torch.randn(tokens, hidden)

    def timed(library: products.Library, dtype: torch.dtype) -> Callable[[], None]:
        a, w, g = x.to(dtype), weight.to(dtype), grad.to(dtype)

        def step() -> None:
            with products.using(library), products.of_micro_batch(products.WORTH, 1):
                a @ w.T, g.T @ a, g @ w

        return step

    steps = {"fp32 mkl": timed("mkl", torch.float32), "bf16": timed("mkl", torch.bfloat16)}
    if not products.lacks():
        steps["fp32 onednn"] = timed("onednn", torch.float32)
    seconds = seconds_in_turns(steps, rounds)
    operations = 3 * 2 * tokens * width * hidden  # 3 products; a multiplication and an addition per term
    rates = {name: operations / median(values) / 1e9 for name, values in seconds.items()}
    return {"sizes": [tokens, width, hidden], "gflops": rates}


def seconds_in_turns(steps: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, list[float]]:
    """Return the seconds of wall time of every step by name, one value per round.

    Each round times every step once. Before each timed call a step runs twice to warm up. On a GPU the time includes
    the work that the step has queued.
    """
    threads = torch.get_num_threads()
    timers = {name: Timer("step()", globals={"step": step}, num_threads=threads) for name, step in steps.items()}
    seconds: dict[Hashable, list[float]] = {name: [] for name in timers}
    for number in range(rounds):
        # Alternate the order, because a machine that slows down during a round slows the last steps of the round.
        for name in list(timers) if number % 2 == 0 else reversed(list(timers)):
            seconds[name].append(timers[name].timeit(1).median)
    return seconds


def peak_memory(step: Callable[[], object], device: str) -> int:
    """Return the peak memory of tensors during a step in bytes, without those that live between steps."""
    step()  # memory that the first call allocates for good is not part of a step
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(profile_memory=True) as profiler:
        step()  # frees the tensors of the first step, whose sizes the profile does not know
        with record_function(MEASURED):
            step()
    total = before = peak = 0
    # A CPU has no counter of allocated bytes: sum the profile's allocations (positive) and frees (negative).
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == MEASURED:
            before = peak = total
        elif event.name() == ALLOCATION:
            total += event.nbytes()
            peak = max(peak, total)
    return peak - before


def write(folder: Path, record: Record) -> Path:
    """Write the record, its page and, if lengths are compared, a figure; return the path of the page."""
    write_json(folder / NAME, record)
    if record["what"] != "step" and len(record["config"]["lengths"]) > 1:
        write_atomic(folder / FIGURE, figure(record["results"]))
    write_atomic(folder / PAGE, "".join(f"{line}\n" for line in page(record)).encode())
    return folder / PAGE


def page(record: Record) -> Iterator[str]:
    """Yield the lines of README.md, the page with the measurements of a record."""
    config, where = record["config"], record["provenance"]
    batch = config["train"]["batch_size"] if record["what"] == "step" else config["batch"]
    yield f"# {TITLES[record['what']]}: {record['task']}, protocol {record['protocol']}\n"
    yield f"`{record['command']}`\n"
    yield f"Batch {batch}, {config['precision']}, dropout {config['model']['dropout']}. Ratios: median [min, max] of"
    yield f"{config['rounds']} rounds; memory is the peak of tensors beyond weights and optimiser state.\n"
    yield "| subject | length | time ratio | ms | tokens/s | GFLOP/s | peak MB | parameters |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for result in record["results"]:
        cells = ["out of memory", "", "", "", ""]
        if result["seconds"] is not None:
            seconds, ratio = median(result["seconds"]), result["ratio"]
            cells = [
                # no ratio if the first subject, to which it relates, has run out of memory
                "" if ratio is None else f"{median(ratio):.2f} [{min(ratio):.2f}, {max(ratio):.2f}]",
                f"{1e3 * seconds:.4g}",
                f"{result['tokens'] / seconds:,.0f}",
                f"{result['flops'] / seconds / 1e9:,.0f}",
                f"{result['peak_bytes'] / 1e6:,.1f}",
            ]
        cells = [f"`{result['subject']}`", f"{result['length']:,}", *cells, f"{result['parameters']:,}"]
        yield f"| {' | '.join(cells)} |"
    if record["what"] != "step" and len(config["lengths"]) > 1:
        yield f"\n![Time and memory by length]({FIGURE})"
    if plain := record.get("products"):
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in plain["gflops"].items())
        sizes = " x ".join(f"{size:,}" for size in plain["sizes"])
        yield f"\nA linear layer of {sizes} with its gradients, in the same run: {rates} GFLOP/s."
    machine = (
        f"{where['cpu']} (family/model/stepping {where['cpu_model']})" if where["device"] == "cpu" else where["device"]
    )
    dirty = " with uncommitted changes" if where["dirty"] else ""
    yield f"\n{machine}, threads: {where['threads']}, torch {where['packages']['torch']},"
    yield f"commit {where['commit']}{dirty}, {where['started'][:10]}. Raw: [{NAME}]({NAME})."


def figure(results: list[Record]) -> bytes:
    """Return an SVG figure with the time (seconds) and the peak memory (MB) of each subject by length."""
    drawing = Figure(figsize=(7, 3), layout="constrained")
    panels = drawing.subplots(1, 2)
    for title in dict.fromkeys(result["subject"] for result in results):
        rows = [row for row in results if row["subject"] == title and row["seconds"] is not None]
        lengths = [row["length"] for row in rows]
        panels[0].plot(lengths, [median(row["seconds"]) for row in rows], marker="o", label=title)
        panels[1].plot(lengths, [row["peak_bytes"] / 1e6 for row in rows], marker="o")
    lengths = sorted({result["length"] for result in results})
    for panel, name in zip(panels, ("seconds", "peak MB"), strict=True):
        panel.set(xscale="log", yscale="log", xlabel="length", ylabel=name)
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=7)
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lra"}):  # so that equal results give equal bytes
        drawing.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()
