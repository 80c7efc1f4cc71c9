"""Does a record say of its training what the evaluations in metrics.jsonl do?"""

import math
from collections import Counter
from collections.abc import Iterator

from lra.records.course import Goal, StoppingRule, better, replayed
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
    yield from _of_end(run, lines)
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
    """When the training first reached what."""
    goal, tokens, seconds = Goal(run["config"].get("train", {}).get("goal")), 0, 0.0
    for line in lines:
        tokens, seconds = tokens + line.tokens, seconds + line.seconds
        goal.update(line.step, line.val_accuracy, tokens, seconds)
    stated = run.get("reached", goal.reached)
    for percent in sorted({*stated, *goal.reached}):
        said, replayed_goal = stated.get(percent), goal.reached.get(percent)
        if (
            said is None
            or replayed_goal is None
            or not all(math.isclose(said[name], replayed_goal[name]) for name in replayed_goal)
        ):
            yield f"reached.{percent} is {said or 'not there'}, {METRICS} has {replayed_goal or 'nothing'}"


def _of_end(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """Whether a training that is finished ended when and why its settings say, and was evaluated as often."""
    train = run["config"].get("train", {})
    if run["status"] != "finished" or not {"steps", "eval_every", "warmup"} <= train.keys():
        return
    rule, last = StoppingRule.of(train), lines[-1].step
    end = replayed(rule, ((line.step, (line.val_accuracy, line.val_loss)) for line in lines), run["metric"])
    if end is None or end.step != last:
        there = f"at step {end.step}, {end.why}" if end else f"after step {last}"
        yield f"by its settings the training ends {there}, but {METRICS} ends at step {last}"
    elif run.get("ended") != (end.why if rule.open else None):
        yield f"ended is {run.get('ended')!r}, but by its settings and {METRICS} it is {end.why!r}"
    if rule.goal is not None and "reached" not in run:
        yield f"train.goal is {rule.goal:g}, but reached is not there"
    evaluated, wanted = (
        Counter(line.step for line in lines),
        Counter([*range(rule.eval_every, last, rule.eval_every), last]),
    )
    if evaluated != wanted:
        step = min((evaluated - wanted) + (wanted - evaluated))
        yield f"train.eval_every is {rule.eval_every}, but {METRICS} has {evaluated[step]} evaluations at step {step}"


def _of_sums(run: Record, lines: list[Evaluation]) -> Iterator[str]:
    """Tokens and seconds, of the lines that have them."""
    tokens, seconds = run.get("tokens") or {}, run.get("seconds") or {}
    both = seconds["train"] + seconds["evaluate"] if {"train", "evaluate"} <= seconds.keys() else None
    stated = {
        "tokens": ("tokens.computed", tokens.get("computed")),
        "tokens_real": ("tokens.real", tokens.get("real")),
        "train_seconds": ("seconds.train", seconds.get("train")),
        "seconds": ("seconds.train + seconds.evaluate", both),
    }
    for name, (key, said) in stated.items():
        if said is not None and all(name in line.model_fields_set for line in lines):
            total = math.fsum(getattr(line, name) for line in lines)
            if not math.isclose(said, total):
                yield f"{key} is {said}, but {name} of all lines of {METRICS} is {total:.15g}"
