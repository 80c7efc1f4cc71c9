"""The state of a run's folder, given the settings of the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra.config import configure
from lra.config.settings import Settings
from lra.core.console import Preparation, say
from lra.core.errors import UserError
from lra.core.files import explained, read_json
from lra.data import Place, TaskBuilder
from lra.records import checkpoint, record
from lra.records.names import CONFIG
from lra.records.record import RunRecord
from lra.records.runs import recorded, state

INEXACT = ("precision", "train.micro_batch", "train.eval_batch")  # may change with resume=inexact
LEFT_ALONE = {  # by `retry`: the statuses of runs that the same command leaves alone
    "none": ("finished", "diverged", "failed"),
    "failed": ("finished", "diverged"),
    "all": ("finished",),
}


def completed_record(folder: Path, settings: Settings) -> RunRecord | None:
    """Return the record of a run that is complete, None if there is work to do.

    Raises UserError, with the difference, if the folder holds a run of another configuration.
    """
    run = recorded(folder)
    for earlier in (_configuration(folder), run and run.config):
        changes = [] if earlier is None else identity_differences(earlier, settings)
        if run is not None and run.status == "finished" and not changes:
            changes = _data_differences(run, settings)
        if changes:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changes)}); "
                "choose another out=..., or delete that folder"
            )
    return run if run is not None and run.status in LEFT_ALONE[settings.retry] else None


def identity_differences(identity: Mapping[str, Any], settings: Settings) -> list[str]:
    """List the differences of an identity and of settings, except those that `resume=inexact` allows."""
    may_change = INEXACT if settings.resume == "inexact" else ()
    return [
        f"the code in {key.removeprefix('code.')} has changed"
        if key.startswith("code.")
        else f"{key}: {there} there, {here} now"
        for key, there, here in _changes(identity, settings)
        if key not in may_change
    ]


def _changes(identity: Mapping[str, Any], settings: Settings) -> list[tuple[str, Any, Any]]:
    """Compare an identity with settings; paths of data are left out, since their content is compared."""
    now = json.loads(json.dumps(settings.identity))
    return record.differences(*({"code": {}, **record.without_paths(config)} for config in (identity, now)))


def _data_differences(run: RunRecord, settings: Settings) -> list[str]:
    """Compare the data of a finished run with those of settings, if they are the user's own."""
    if "code" not in settings.identity and record.without_paths(settings.identity)["task"] == settings.task:
        return []
    builder = configure.build(settings.task, "task", settings.packages, kind=TaskBuilder)()
    with Preparation(builder.facts.name) as progress:
        now = builder.build(Place.of(settings, progress)).digest
    return [] if now == run.provenance.data_sha256 else [f"the data of {run.task} have changed"]


def _configuration(folder: Path) -> Any:
    """The identity in `config.json`, None if there is none."""
    try:
        return read_json(folder / CONFIG)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explained(error, folder / CONFIG, None) from error
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: damaged: {error}; delete {folder} to train again") from None


def skip_completed(title: str, folder: Path, earlier: RunRecord, settings: Settings) -> str:
    """Print that a complete run is left alone, and which settings do not apply to it; returns its status.

    Removes the checkpoint of a finished run. Raises UserError if it cannot be removed.
    """
    status = earlier.status
    if status == "finished":
        checkpoint.remove(folder)
    hint = {"diverged": "; retry=all begins it anew", "failed": "; retry=failed tries again"}
    stays = [f"{key} stays {there}" for key, there, _ in _changes(earlier.config, settings)]
    said = "; ".join([f"{folder}{hint.get(status, '')}", *stays])
    say(f"{title}: {status} before, nothing to do ({said})")
    return status


def outcome(folder: Path, settings: Settings) -> tuple[str, str]:
    """Return the status of the run with these settings, and its reason or place, as `lra.records.runs.state`."""
    try:
        completed_record(folder, settings)
        return state(folder)
    except UserError as error:
        return "refused", str(error)
