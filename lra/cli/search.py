"""Hyper-parameter search by other sweepers, as `hydra/sweeper=optuna`: its objective, and the best settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from lra.cli.command import FAILED
from lra.config.cell import SWEEPER
from lra.core.console import say
from lra.core.errors import UserError
from lra.data import TaskBuilder
from lra.records.names import RECORD
from lra.records.record import RunRecord
from lra.records.runs import Run, read_runs

if TYPE_CHECKING:  # takes half a second to import
    import pandas as pd

SYSTEM = ["task", "attention", "variant"]


def is_search(hydra_cfg: DictConfig) -> bool:
    """True if a sweeper other than ours starts the runs."""
    return hydra_cfg.runtime.choices.get("hydra/sweeper") != SWEEPER


def check(builder: TaskBuilder) -> None:
    """Raise UserError if the task validates on its test split: a search would select on it."""
    if getattr(builder, "validates_on_test", False):
        raise UserError(
            f"{builder.facts.name} validates on its test split, which a search must not use; "
            "set task.validation=holdout"
        )


def objective(record: RunRecord) -> float:
    """Return the best validation accuracy of a finished run in percent; of a language model the negative perplexity."""
    best = record.validation["best"]
    if record.metric == "accuracy":
        return best.accuracy
    return -best.perplexity if best.perplexity is not None else float("-inf")


def ranked(runs: list[Run]) -> "pd.DataFrame":
    """Return a row for each setting of each system, the best first, with mean and number of its finished seeds."""
    import pandas as pd

    rows = []
    for run in runs:
        task = Path(run.name).parts[0].partition("-")[0]  # the option, without the name of the user's data
        system = dict(zip(SYSTEM, (task, run.record.attention, run.record.variant), strict=True))
        rows.append({**system, **run.record.settings, "validation": objective(run.record)})
    frame = pd.DataFrame(rows)
    searched = [key for key in frame.columns.drop([*SYSTEM, "validation"]) if frame[key].nunique(dropna=False) > 1]
    means = frame.groupby([*SYSTEM, *searched], dropna=False).validation.agg(mean="mean", n="count").reset_index()
    return means.sort_values([*SYSTEM, "mean"], ascending=[True] * len(SYSTEM) + [False], ignore_index=True)


def option_lines(best: "pd.DataFrame") -> list[str]:
    """Return the best settings as lines of an option file: of the first variant, if an attention has several."""
    lines = []
    for key in best.columns.drop([*SYSTEM, "mean", "n"]):
        tasks = [
            f"{task}:${{by_attention:{{{', '.join(f'{row.attention}:{row[key]}' for _, row in rows.iterrows())}}}}}"
            for task, rows in best.drop_duplicates(["task", "attention"]).astype(object).groupby("task")
        ]
        lines.append(f"{key}: ${{by_task:{{{', '.join(tasks)}}}}}")
    return lines


def conclude(out: Path) -> None:
    """Print the best settings of each system, and YAML lines for an option file.

    Raises:
        UserError: no run is finished.
        SystemExit: with exit code 1, after printing, if some runs failed.
    """
    runs = read_runs(out) if any(out.rglob(RECORD)) else []
    finished = [run for run in runs if run.record.status == "finished"]
    if not finished:
        raise UserError(f"{out}: no run of this search is finished")
    say(f"best by validation in {out}:", to_stdout=True)
    best = ranked(finished).groupby(SYSTEM).head(1)
    say(best.to_string(index=False, float_format="{:g}".format), to_stdout=True)
    for line in option_lines(best):
        say(line, to_stdout=True)
    if failed := [run.name for run in runs if run.record.status == "failed"]:
        say(f"{len(failed)} runs failed: {', '.join(failed)}")
        raise SystemExit(FAILED)
