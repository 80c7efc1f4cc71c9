"""Does a record say of its training what the evaluations in metrics.jsonl do?"""

import math
from collections.abc import Iterator

from lra.records.course import GOALS, Goal, better
from lra.records.names import METRICS
from lra.report.read.records import Record
from lra.report.read.schema import Evaluation


def contradictions(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """What in a record is not as the evaluations of its training say, those that have an accuracy."""
    lines = [line for line in lines if line.val_accuracy is not None]
    if not lines:
        if run["status"] == "finished":
            yield f"{METRICS} has no evaluation"
        return
    yield from _of_validation(run, lines)
    yield from _of_steps(run, lines)
    yield from _of_goal(run, lines)
    yield from _of_sums(run, lines)


def _of_validation(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    measured = {line.step: (line.val_accuracy, line.val_loss) for line in lines}
    for name, entry in run.get("validation", {}).items():
        stated = entry["accuracy"], entry["loss"]
        if measured.get(entry["step"]) != stated:
            there = measured.get(entry["step"], "nothing")
            yield f"validation.{name} is {stated} at step {entry['step']}, {METRICS} has {there}"


def _of_steps(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """Which evaluation is the best and which the last, and the weights of which were tested."""
    best = None
    for line in lines:
        now = line.val_accuracy, line.val_loss
        if best is None or better(now, (best.val_accuracy, best.val_loss), run["metric"]):
            best = line
    for part in ("validation", "test"):
        for name, entry in run.get(part, {}).items():
            which, step = ("last", lines[-1].step) if name == "last" else ("best", best.step)
            if entry["step"] != step:
                yield f"{part}.{name} is of step {entry['step']}, but the {which} evaluation of {METRICS} is of {step}"
    if run["status"] == "finished" and run.get("steps") != lines[-1].step:
        yield f"steps is {run.get('steps')}, but the last evaluation of {METRICS} is of {lines[-1].step}"


def _of_goal(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """Whether the training ended because its task was solved, and when it first reached what."""
    goal, tokens, seconds, solved = Goal(run["config"].get("train", {}).get("goal")), 0, 0.0, None
    for line in lines:
        tokens, seconds = tokens + line.tokens, seconds + line.seconds
        if goal.solved_by(line.step, line.val_accuracy, tokens, seconds) and solved is None:
            solved = line.step
    ended, last = run.get("ended"), lines[-1].step
    if ended is not None and solved != (last if ended == "solved" else None):
        rule = f"train.goal={goal.percent} in {GOALS} evaluations running"
        where = "nowhere" if solved is None else f"at step {solved}"
        yield f"ended is {ended!r}, but {METRICS}, which ends at step {last}, has {rule} {where}"
    stated = run.get("reached", goal.reached)
    for percent in sorted({*stated, *goal.reached}):
        said, found = stated.get(percent), goal.reached.get(percent)
        if said is None or found is None or not all(math.isclose(said[name], found[name]) for name in found):
            yield f"reached.{percent} is {said or 'not there'}, {METRICS} has {found or 'nothing'}"


def _of_sums(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """Tokens and seconds, of the lines that have them."""
    tokens, seconds = run.get("tokens") or {}, run.get("seconds", {})
    stated = {
        "tokens": ("tokens.computed", tokens.get("computed")),
        "tokens_real": ("tokens.real", tokens.get("real")),
        "train_seconds": ("seconds.train", seconds.get("train")),
        "seconds": ("seconds.train + seconds.evaluate", seconds.get("train", 0.0) + seconds.get("evaluate", 0.0)),
    }
    for name, (key, said) in stated.items():
        if said is not None and all(name in line.model_fields_set for line in lines):
            found = math.fsum(getattr(line, name) for line in lines)
            if not math.isclose(said, found):
                yield f"{key} is {said}, but {name} of all lines of {METRICS} is {found:.15g}"
