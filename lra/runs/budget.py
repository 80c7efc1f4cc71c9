"""What runs will cost, said before they start, and refused where it is more than the user allows."""

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra.core.hydra_config import HydraConfig

from lra.config.settings import Settings
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.runs.build import Job, System, check_memory
from lra.runs.status import completed_record

if TYPE_CHECKING:
    from lra.runs.estimate import Cost

LONG = 5e11  # operations of a training that takes a core some of a minute
QUICK = "lra-train experiment=small_listops train.steps=800"
ELSEWHERE = ("submitit_slurm", "ray")  # launchers whose jobs may run on other machines


def check_cost(launcher: str, cells: list[tuple[Settings, System, list[Path]]]) -> None:
    """Say what runs will cost: of each cell, settings, system and the folders of the runs that are to be done. Of runs
    that have begun, what is left counts.

    Raises UserError where those that have not begun would take more than `max_hours` and nothing limits them.
    """
    from lra.runs.estimate import SECONDS, Work, costs, duration

    works = [Work(settings=settings, system=system, folders=folders) for settings, system, folders in cells if folders]
    runs = sum(len(work.folders) for work in works)
    tokens = sum(work.left * work.tokens for work in works)
    said = f"{plural(runs, 'run')}, {tokens:.2g} tokens in training"
    if launcher in ELSEWHERE or not runs:
        say(said)
        return
    each = costs(works, SECONDS)
    if all(cost.seconds is None for cost in each):
        if runs > 1:
            say(f"{said}; how long they take cannot be told, since none of them can be begun")
        return
    seconds = sum(work.left * (cost.seconds or 0) for work, cost in zip(works, each, strict=True))
    new = sum(work.not_begun * (cost.seconds or 0) for work, cost in zip(works, each, strict=True))
    said += f", {duration(seconds)} of this machine{' one after another' * (runs > 1)}{_basis(each, SECONDS)}"
    settings = works[0].settings
    if settings.sweep_minutes is None and settings.max_hours is not None and new / 3600 > settings.max_hours:
        raise UserError(
            f"{said}; more than max_hours={settings.max_hours:g}: if that is meant, say max_hours=null, or do it in "
            "parts with sweep_minutes=..."
        )
    say(said)


def _basis(costs: "list[Cost]", seconds: float) -> str:
    """What an estimate rests on, where not everything could be measured within `seconds`."""
    reckoned = [cost.speed for cost in costs if cost.speed is not None]
    if not reckoned:
        return ""
    basis = "the speed of those measured" if len(reckoned) < len(costs) else "an assumed speed"
    return (
        f" ({len(reckoned)} of {len(costs)} cells could not be measured in {seconds} s: reckoned from their FLOPs "
        f"at {basis}, {reckoned[0]:.1e} a second)"
    )


def check_cost_of_one(job: Job) -> None:
    """Apply `check_cost` to a single run, unless it takes seconds and is not worth measuring."""
    from lra.runs.estimate import Work
    from lra.training import distributed

    settings, system = job.settings, job.system
    check_memory(system)
    if (
        distributed.started_with() > 1
        or system.recipe.minutes is not None
        or completed_record(job.folder, settings) is not None
    ):
        return
    work = Work(settings=settings, system=system, folders=[job.folder])
    if 6 * system.parameters * work.tokens * work.left > LONG:
        check_cost(HydraConfig.get().runtime.choices["hydra/launcher"], [(settings, system, [job.folder])])


def ask_for_a_choice(job: Job) -> NoReturn:
    """Say what a command without any choice would train, and what its training would cost here; raises UserError."""
    from lra.runs.describe import describe
    from lra.runs.estimate import ASSUMED_SPEED, duration
    from lra.runs.step_timing import SECONDS, step_cost

    system, steps = job.system, job.system.recipe.steps
    say(f"nothing is chosen, so this would be {job.title}, at the paper's full size: {steps:,} steps")
    cost = step_cost(job.settings, system, SECONDS)
    seconds = describe(system)["flops_per_step"] / ASSUMED_SPEED if cost is None else cost.seconds
    basis = "by its FLOPs, at an assumed speed" if cost is None else f"{seconds:.2g} s a step, measured now"
    lines = {
        "lra-train task=listops": f"that: {duration(steps * seconds)} here, evaluations aside ({basis})",
        QUICK: "a small run: twenty seconds",
        "lra": "what there is",
    }
    for line, does in lines.items():
        say(f"  {line:{len(QUICK)}}  {does}")
    raise UserError("choose a task, an attention or an experiment")
