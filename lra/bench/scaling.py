"""How time and memory grow with the length: curves, the laws that are fitted to them, and a figure."""

from collections.abc import Iterator
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from lra.bench.measure import MEASURED, Result
from lra.report.figures import COLOURS, MARKERS, styled, svg

MB = 1e6
CURVES = {  # what is drawn against the length, and fitted
    "time (s)": lambda result: median(result["seconds"]),
    "peak of tensors (MB)": lambda result: result["allocated_bytes"] / MB,
    "saved (MB)": lambda result: result["saved_bytes"] and result["saved_bytes"] / MB,
}
DRAWN = ("time (s)", "peak of tensors (MB)")


def exponent(lengths: list[int], values: list[float]) -> float | None:
    """The slope of the straight line through the logarithms; None below two points."""
    if len(lengths) < 2:
        return None
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def exponents_of_rounds(results: list[Result]) -> list[float]:
    """In time, of one subject whose lengths took turns; none below two lengths."""
    done = [result for result in results if result["status"] == MEASURED]
    lengths = [result["length"] for result in done]
    if len(lengths) < 2:
        return []
    return [exponent(lengths, list(taken)) for taken in zip(*(result["seconds"] for result in done), strict=True)]


def line(lengths: list[int], values: list[float]) -> tuple[float, float, float] | None:
    """a and b of the line a + b L with the least squares of relative errors, and the largest of these errors; None
    below three points."""
    if len(lengths) < 3:
        return None
    rows = np.stack([np.ones(len(lengths)), np.asarray(lengths, dtype=float)], axis=1) / np.asarray(values)[:, None]
    fit = np.linalg.lstsq(rows, np.ones(len(lengths)), rcond=None)[0]
    return float(fit[0]), float(fit[1]), float(np.abs(rows @ fit - 1).max())


def figure(results: list[Result]) -> dict[str, bytes]:
    """Time and the peak of tensors against the length, as SVG and PNG."""
    with styled():
        subjects = list(groups(results, "subject"))
        drawing = Figure(figsize=(6.9, 3 + 0.14 * len(subjects)), layout="constrained")
        for panel, name in zip(drawing.subplots(1, len(DRAWN)), DRAWN, strict=True):
            for place, (subject, of_subject) in enumerate(subjects):
                lengths, values = curve(of_subject, name)
                label = f"{subject} ({number(exponent(lengths, values))})"
                colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
                panel.plot(lengths, values, label=label, color=colour, marker=marker)
            drawn = any(len(line.get_xdata()) for line in panel.lines)  # all may have run out of memory
            panel.set(xscale="log", yscale="log" if drawn else "linear", xlabel="length", ylabel=name)
            ticks = sorted({result["length"] for result in results})
            panel.set_xticks(ticks, labels=[f"{tick}" for tick in ticks])
            panel.set_xticks([], minor=True)
            panel.legend(
                title="subject (exponent)", fontsize=6, title_fontsize=6, loc="upper left", bbox_to_anchor=(0, -0.15)
            )
        return {"svg": svg(drawing).encode()}


def curve(results: list[Result], name: str) -> tuple[list[int], list[float]]:
    points = [(result["length"], CURVES[name](result)) for result in results if result["status"] == MEASURED]
    return [length for length, value in points if value], [value for _, value in points if value]


def groups(results: list[Result], key: str) -> Iterator[tuple[str, list[Result]]]:
    """The results by the values of one key, in their order."""
    for value in dict.fromkeys(result[key] for result in results):
        yield value, [result for result in results if result[key] == value]


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
