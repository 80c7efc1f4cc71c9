"""What a benchmark leaves: `bench.json` with every raw measurement, and, made of it alone, a page and figures."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lra.bench.measure import MEASURED, Result, spread
from lra.bench.scaling import CURVES, MB, curve, exponent, exponents_of_rounds, figure, groups, line, number
from lra.core.console import plural
from lra.core.files import write_atomic, write_json

NAME, PAGE = "bench.json", "README.md"
SCHEMA = 2
GOAL = 2  # milliseconds of a step that this machine may take besides the model

TURNS = "Each subject has a process of its own, and they take turns; ratios are medians [least, most] of the rounds."
TURNS_OF_LENGTHS = (
    "Each length has a process of its own, and they take turns of as many tokens; ratios are medians [least, most] of "
    "the rounds."
)

Record = dict[str, Any]


def write(folder: Path, record: Record) -> Path:
    """Write the record, its figures and its page; returns the path of the page."""
    write_json(folder / NAME, record)
    if record["what"] in LENGTHS:
        for direction, results in groups(record["results"], "direction"):
            for suffix, data in figure(results).items():
                write_atomic(folder / f"{direction}.{suffix}", data)
    write_atomic(folder / PAGE, "\n".join(page(record)).encode())
    return folder / PAGE


def page(record: Record) -> Iterator[str]:
    """The lines of the page."""
    config = record["config"]
    batch = f", batch {config['batch']}" if record["what"] in LENGTHS else ""
    precision = f", {config['precision']}" if config["precision"] != "fp32" else ""
    title, section = PAGES[record["what"]]
    yield f"# {title}: {record['task']}, protocol {record['protocol']}{batch}{precision}\n"
    yield f"By `{record['command']}`.\n"
    yield from section(record)
    yield f"{measured(record['provenance'])} Raw: [{NAME}]({NAME}).\n"


def measured(where: dict[str, Any]) -> str:
    """On what, with what and when something was measured, in three lines."""
    machine = where["cpu"] if where["device"] == "cpu" else where["device"]
    several = where["device"] == "cpu" and where["threads"] > 1
    return (
        f"{'Seconds are those of a processor, of all threads together. ' * several}"
        f"Measured on {machine} ({where['instructions']}), threads: {where['threads']}, {where['precision']},\n"
        f"torch {where['packages']['torch']}, commit {where['commit']}\n"
        f"({'with uncommitted changes, ' * bool(where['dirty'])}{where['started'][:10]})."
    )


def _layers(record: Record) -> Iterator[str]:
    model, batch = record["config"]["model"], record["config"]["batch"]
    heads = plural(model["heads"], "head")
    yield f"One layer of width {model['dim']} with {heads}, dropout {model['dropout']}, batch {batch}."
    if any(subject.startswith("stepwise:") for subject in record["config"]["subjects"]):
        yield "`stepwise:` is the same layer with its recurrence position by position."
    directions = {"train": "Forward and backward", "forward": FORWARD}
    yield from _lengths(record, directions, "weights, input and their gradients")


def _models(record: Record) -> Iterator[str]:
    model, batch, cut = record["config"]["model"], record["config"]["batch"], record["config"]["train"]["micro_batch"]
    parts = f" in micro-batches of {cut}" if cut < batch else ""
    yield f"Whole models of {model['depth']} blocks of width {model['dim']} with {plural(model['heads'], 'head')} and"
    yield f"{model['mlp_dim']} hidden units, dropout {model['dropout']}, batch {batch}{parts}."
    yield "A training step is a forward and a backward pass and an update on random tokens; that of `textbook:` is the"
    yield "straightforward one."
    yield from _lengths(record, {"train": "Training step", "forward": FORWARD}, "weights, gradients and optimiser")


def _lengths(record: Record, directions: dict[str, str], held: str) -> Iterator[str]:
    first, alone = record["results"][0], len(record["config"]["subjects"]) == 1
    beside = f"L = {first['length']}" if alone else f"`{first['subject']}`"
    yield TURNS_OF_LENGTHS if alone else TURNS
    yield "Exponents are slopes of a straight line through the logarithms.\n"
    for direction, results in groups(record["results"], "direction"):
        lengths = sorted({result["length"] for result in results})
        rows = list(groups(results, "subject"))
        yield f"## {directions[direction]}\n"
        yield f"![Time and memory against length]({direction}.svg)\n"
        for title, cell in (
            (f"Time beside {beside}", lambda result: _spread(result["ratio"])),
            ("Milliseconds (microseconds for a token)", _milliseconds),
            ("Tokens in a second", lambda result: f"{_tokens(result) / median(result['seconds']):,.0f}"),
            (f"Peak of allocated tensors beyond {held}, MB", lambda result: _megabytes(result["allocated_bytes"])),
            ("Saved for the backward pass, MB", lambda result: _megabytes(result["saved_bytes"])),
            ("Counted operations, GFLOP", lambda result: f"{result['flops'] / 1e9:.4g}"),
            ("Share of the matrix product's speed", lambda result: _percent(result["share"])),
        ):
            if "Saved" in title and not any(result.get("saved_bytes") for result in results):
                continue
            yield f"### {title}\n"
            yield from _table(["subject", *(f"L = {length}" for length in lengths)], _cells(rows, lengths, cell))
        yield "### Exponents and parameters\n"
        yield "First over all lengths, then over the last two.\n"
        kinds = [name for name in CURVES if any(curve(of_subject, name)[1] for _, of_subject in rows)]
        titles = [kind.partition(" (")[0] for kind in kinds]
        header = ["subject", *titles, *(f"{title}, last two" for title in titles), "parameters", "version"]
        yield from _table(header, _exponents(rows, kinds))
        rounds = exponents_of_rounds(results) if alone else []
        if rounds:
            yield f"In time, median [least, most] of those of the rounds: {_spread(spread(rounds), '.3f')}.\n"
        yield "### A fixed part and a part for each position\n"
        yield "The line a + b L with the least relative squares (a position has all examples of the batch), and how far"
        yield "the farthest length is from it: what is linear with a fixed part has an exponent below 1 and lies on its"
        yield "line.\n"
        header = ["subject", "time, ms", "µs each", "farthest", "peak of tensors, MB", "kB each", "farthest"]
        yield from _table(header, _lines(rows))


def _steps(record: Record) -> Iterator[str]:
    base, ours = record["results"]
    model, train = record["config"]["model"], record["config"]["train"]
    yield f"A training step of {record['attention']}, variant {record['variant']}, on {train['batch_size']} examples of"
    yield f"{record['data']} in micro-batches of {train['micro_batch']}, dropout {model['dropout']}. `lra` is ours;"
    yield f"`straightforward` has the same weights and reads the same examples. {TURNS}\n"
    columns = ("time beside the first", "seconds", "real tokens in a second", "GFLOP", "share of the matrix product")
    columns += ("peak of tensors, MB", "tokens computed / real")
    yield from _table(["step", *columns], [_step(result) for result in (base, ours)])
    for result in (base, ours):
        if result["status"] != MEASURED:
            yield f"`{result['subject']}`: {result['status']}: {result['reason']}\n"
            return
    time, floor = ours["ratio"][0], ours["flops"] / base["flops"]
    if record["what"] == "epoch":
        time = sum(ours["seconds"]) / sum(base["seconds"])
        hours = [fmean(step["seconds"]) * step["examples"] / train["batch_size"] / 3600 for step in (ours, base)]
        yield f"Over {len(ours['seconds'])} consecutive batches, the first that seed {record['config']['seed']} sees,"
        yield f"the ratio of the sums is {time:.3f}; an epoch of {ours['examples']} examples would take"
        yield f"{hours[0]:.2f} hours beside {hours[1]:.2f}.\n"
    yield f"**Time {time:.3f}, floor {floor:.3f}.** The floor is the ratio of the counted operations: what the time"
    yield f"would be if both ran at the same speed. The time is {time / floor:.2f} times the floor.\n"


def _profiles(record: Record) -> Iterator[str]:
    base, ours = (result["kinds"] for result in record["results"])
    whole, ours_whole = sum(base.values()), sum(ours.values())
    yield "Shares of one step by kind of operation. The last column is in straightforward steps: it adds up to the"
    yield "ratio of the two.\n"
    rows = []
    for kind in dict.fromkeys([*ours, *base]):
        seconds, others = ours.get(kind, 0.0), base.get(kind, 0.0)
        shares = (f"{100 * others / whole:.1f} %", f"{100 * seconds / ours_whole:.1f} %", f"{seconds / whole:.3f}")
        rows.append([kind, *shares])
    rows.append(["all", "100 %", "100 %", f"{ours_whole / whole:.3f}"])
    yield from _table(["kind", "straightforward", "lra", "lra, in straightforward steps"], rows)


def _errors(record: Record) -> Iterator[str]:
    yield "Relative errors (Frobenius norms; medians over draws) against the textbook form in float64, of the same"
    yield "weights and inputs, which fp32 holds exactly; no dropout.\n"
    keys = ("length", "inputs", "precision")
    rows: dict[tuple, list[str]] = {}
    for result in record["results"]:
        row = rows.setdefault(tuple(result[key] for key in keys), [])
        row += [f"{median(values):.2e}" for values in result["errors"].values()]
    forms = list(dict.fromkeys(result["form"] for result in record["results"]))
    header = [*keys, *(f"{form}: {part}" for form in forms for part in record["results"][0]["errors"])]
    yield from _table(header, [[*map(str, key), *cells] for key, cells in rows.items()])


def _host(record: Record) -> Iterator[str]:
    train = record["config"]["train"]
    yield f"What a training step of {record['attention']}, variant {record['variant']}, costs this machine besides the"
    yield f"device's work: the loop of a run on {train['batch_size']} examples of {record['data']} in micro-batches of"
    yield f"{train['micro_batch']}. A model of the same operations, but of next to no width, stands for one on a device"
    yield "that takes no time, so what a driver does to start a kernel is not in it. Milliseconds, medians [least,"
    yield "most] of the rounds: of a processor, and, where others use the machine, too, that went by.\n"
    groups_of = {
        "ahead": ("all that is read ahead, in a thread of its own", ["ahead"]),
        "loop": ("**all but the model's operations**", ["ahead", "loop"]),
        "model": ("the model's operations, asked for", ["model"]),
    }
    rows = []
    for group, (title, summed) in groups_of.items():
        rows += [_host_row(result["part"], [result]) for result in record["results"] if result["group"] == group]
        rows.append(_host_row(title, [result for result in record["results"] if result["group"] in summed]))
    yield from _table(["part", "processor, a step", "went by, a step", "once", "every"], rows)
    cost = median(_sums([result for result in record["results"] if result["group"] != "model"], "cpu"))
    yield f"**{cost:.2f} ms of a processor besides the model; the goal is {GOAL} ms.** A checkpoint stops training"
    yield "while it is written; its share is that of a step of this loop, the fastest that this machine can ask for.\n"


def _host_row(title: str, results: list[Result]) -> list[str]:
    cells = [title, *(_spread(spread(_sums(results, kind)), ".3f") for kind in ("cpu", "wall"))]
    every = results[0]["every"] if len(results) == 1 else None
    once = "" if every is None else " / ".join(f"{1e3 * median(results[0][kind]):.1f}" for kind in ("cpu", "wall"))
    return [*cells, once, every or ""]


def _sums(results: list[Result], kind: str) -> list[float]:
    """Milliseconds a step that these parts take together, in each round."""
    rounds = zip(*(result[kind] for result in results), strict=True)
    often = [result["in_a_step"] for result in results]
    return [1e3 * sum(seconds * times for seconds, times in zip(values, often, strict=True)) for values in rounds]


PAGES = {  # by what is measured, the title and what stands below it
    "layer": ("Layers", _layers),
    "model": ("Models", _models),
    "step": ("A training step", _steps),
    "epoch": ("An epoch", _steps),
    "profile": ("Where a training step's time goes", _profiles),
    "accuracy": ("Rounding errors of SimpleAttention", _errors),
    "host": ("What a training step costs besides the device's work", _host),
}
LENGTHS = ("layer", "model")  # which have figures
FORWARD = "Forward, without gradients"


def _exponents(rows: list[tuple[str, list[Result]]], kinds: list[str]) -> Iterator[list[str]]:
    for subject, results in rows:
        curves = [curve(results, name) for name in kinds]
        slopes = [number(exponent(lengths[start:], values[start:])) for start in (0, -2) for lengths, values in curves]
        first_measured = next((result for result in results if result["status"] == MEASURED), {})
        facts = [f"{first_measured['parameters']:,}", first_measured.get("version", "")] if first_measured else ["", ""]
        yield [f"`{subject}`", *slopes, *facts]


def _lines(rows: list[tuple[str, list[Result]]]) -> Iterator[list[str]]:
    for subject, results in rows:
        cells = [f"`{subject}`"]
        for name, fixed, each in (("time (s)", 1e3, 1e6), ("peak of tensors (MB)", 1, 1e3)):
            fit = line(*curve(results, name))
            cells += [f"{fit[0] * fixed:.3g}", f"{fit[1] * each:.3g}", f"{fit[2]:.0%}"] if fit else ["", "", ""]
        yield cells


def _cells(
    rows: list[tuple[str, list[Result]]], lengths: list[int], cell: Callable[[Result], str]
) -> Iterator[list[str]]:
    for subject, results in rows:
        by_length = {
            result["length"]: cell(result) if result["status"] == MEASURED else result["status"] for result in results
        }
        yield [f"`{subject}`", *(by_length[length] for length in lengths)]


def _step(result: Result) -> list[str]:
    if result["status"] != MEASURED:
        return [f"`{result['subject']}`", result["status"], *[""] * 6]
    tokens, seconds = result["tokens"], median(result["seconds"])
    return [
        f"`{result['subject']}`",
        _spread(result["ratio"]),
        f"{seconds:.3f}",
        f"{tokens['real'] / result['batches'] / seconds:,.0f}",
        f"{result['flops'] / 1e9:.4g}",
        _percent(result["share"]),
        _megabytes(result["allocated_bytes"]),
        f"{tokens['computed'] / tokens['real']:.3f}",
    ]


def _milliseconds(result: Result) -> str:
    seconds = median(result["seconds"])
    return f"{1e3 * seconds:.4g} ({1e6 * seconds / _tokens(result):.3g})"


def _tokens(result: Result) -> int:
    return result["tokens"]["computed"] if "tokens" in result else result["batch"] * result["length"]


def _spread(values: Iterable[float] | None, form: str = ".3g") -> str:
    """`MEDIAN [LEAST, MOST]`."""
    return "" if values is None else "{} [{}, {}]".format(*(format(value, form) for value in values))


def _percent(values: list[float]) -> str:
    return "{:.0f} % [{:.0f}, {:.0f}]".format(*(100 * value for value in values))


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / MB:.4g}"


def _table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|---|{'---:|' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
