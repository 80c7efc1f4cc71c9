"""What other stopping rules would have made of kept runs.

Which solved ones they would have ended before, and how many steps they would have saved: for whoever chooses
`train.patience`, `train.progress` and `train.steps` of a preset.

    python -m lra.tools.stopping results/hour --patience 8 10 15 --progress 0.05 0.1 0.2

Each rule is applied to the evaluations that the runs have kept, by the code that ends a training. What a run would have
done in a cooldown that it did not have is not known: one that the rule ends counts as unsolved. A run that a rule would
have trained beyond its kept end is counted apart.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra.config import configure
from lra.core.errors import CONFIG_ERROR, UserError, printable
from lra.records import course
from lra.records.names import RECORD
from lra.records.run_files import RunFiles
from lra.report.read.records import read_record
from lra.tools.rerun import KeptRun
from lra.training.recipe import Recipe

RULE = ("patience", "progress", "steps")
NO_NUMBER: dict[str, Any] = {"minutes": None, "processes": 1}  # the keys of a recipe that records leave out
LATER: dict[str, Any] = dict.fromkeys(("patience", "progress", "goal", "cooldown"))  # that older ones do not have


@dataclass(frozen=True)
class ReplayableRun:
    """A finished run whose training may end before its steps, with its evaluations."""

    recipe: Recipe
    solved: bool
    steps: int
    evaluations: list[dict[str, Any]]

    def ended(self, **rule: Any) -> tuple[str, int]:
        """How it ends by another rule: solved, no progress, steps, or, where its kept end comes first, beyond; and
        after how many steps. Raises UserError where it is no rule."""
        configure.check(Recipe, vars(self.recipe) | rule, "train.")
        evaluations = ((line["step"], (line["val_accuracy"], line["val_loss"])) for line in self.evaluations)
        end = course.replayed(course.StoppingRule.of(vars(self.recipe) | rule), evaluations, "accuracy")
        if end is None:
            return "beyond", self.steps
        return ("solved" if self.solved and end.step == self.steps else end.why), end.step


def kept_runs(files: RunFiles) -> Iterator[ReplayableRun]:
    """The runs of a results folder. Raises UserError where a run has settings or measurements that this version cannot
    read."""
    for path in files.find(RECORD):
        run = read_record(files, path)
        if run["status"] != "finished" or "ended" not in run:
            continue
        try:
            recipe = Recipe(**{**LATER, **run["config"]["train"], **NO_NUMBER})
        except TypeError as error:
            raise UserError(f"{files.shown(path)}: its settings are not those of this version: {error}") from None
        lines = KeptRun(files, Path(path).parent.as_posix()).evaluations
        evaluations = [line for line in lines if line.get("phase") != "pretrain"]
        yield ReplayableRun(recipe, course.solved(run), run["steps"], evaluations)


def table(runs: list[ReplayableRun], rules: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each rule. Solved runs that are lost are of those solved by their own rule."""
    kept_steps, kept_solved = sum(run.steps for run in runs), sum(run.solved for run in runs)
    yield f"{len(runs)} runs, {kept_solved} solved, {kept_steps:,} steps"
    heads = (*RULE, "solved", "lost", "no progress", "out of steps", "beyond", "steps kept")
    yield "  ".join(heads)
    for rule in rules:
        ends = [run.ended(**{key: value for key, value in rule.items() if value is not None}) for run in runs]
        counts = Counter(end for end, _ in ends)
        lost = sum(run.solved and end in ("no progress", "steps") for run, (end, _) in zip(runs, ends, strict=True))
        share = f"{sum(steps for _, steps in ends) / kept_steps:.0%}"
        asked = ("own" if rule[key] is None else f"{rule[key]:g}" for key in RULE)
        counted = (counts["solved"], lost, counts["no progress"], counts["steps"], counts["beyond"])
        cells = (*asked, *map(str, counted), share)
        yield "  ".join(cell.rjust(len(head)) for head, cell in zip(heads, cells, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.tools.stopping", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="of runs with train.goal or train.patience")
    for key, kind in (("patience", int), ("progress", float), ("steps", int)):
        help = f"values of train.{key}; by default each run's own"
        parser.add_argument(f"--{key}", type=kind, nargs="+", default=[None], metavar="N", help=help)
    asked = vars(parser.parse_args())
    try:
        runs = list(kept_runs(RunFiles(asked["folder"])))
        if not runs:
            raise UserError(f"{asked['folder']}: no finished run below it has train.goal or train.patience")
        rules = [dict(zip(RULE, values, strict=True)) for values in itertools.product(*(asked[key] for key in RULE))]
        print("\n".join(table(runs, rules)))
    except (UserError, ValueError) as error:
        print(f"lra.tools.stopping: error: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR) from None


if __name__ == "__main__":
    main()
