"""What there is to do in a run's folder, given its settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra.config.settings import Settings
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import explained, read_json
from lra.records import checkpoint, record
from lra.records.names import CONFIG, WEIGHTS
from lra.records.outcome import recorded, state
from lra.records.record import RunRecord

INEXACT = ("precision", "train.micro_batch", "train.eval_batch")  # may change on the way with resume=inexact
LEFT_ALONE = {  # by `retry`: runs with which the same command does nothing any more
    "none": ("finished", "diverged", "failed"),
    "failed": ("finished", "diverged"),
    "all": ("finished",),
}


def completed_record(folder: Path, settings: Settings) -> RunRecord | None:
    """The record of this very run where it is complete; None where there is work to do.

    Raises UserError, with the difference, where the folder holds a run of another configuration.
    """
    record_there = recorded(folder)
    for earlier in (_configuration(folder), record_there and record_there.config):
        changes = [] if earlier is None else identity_differences(earlier, settings)
        if changes:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changes)}); "
                "choose another out=..., or delete that folder"
            )
    return record_there if record_there and record_there.status in LEFT_ALONE[settings.retry] else None


def identity_differences(identity: Mapping[str, Any], settings: Settings) -> list[str]:
    """What tells the run of this identity from that of the settings, but for what `resume=inexact` lets change."""
    now = json.loads(json.dumps(settings.identity))
    may_change = INEXACT if settings.resume == "inexact" else ()
    return [
        f"{key}: {there} there, {here} now"
        for key, there, here in record.differences(identity, now)
        if key not in may_change
    ]


def _configuration(folder: Path) -> Any:
    """The identity in `config.json`; None where there is none."""
    try:
        return read_json(folder / CONFIG)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explained(error, folder / CONFIG, None) from error
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: damaged: {error}; delete {folder} to train again") from None


def resume_step(folder: Path) -> int:
    """The step from which a run goes on; 0 where it begins. Raises UserError where its files are damaged."""
    earlier = recorded(folder)
    return 0 if earlier is not None and earlier.status == "diverged" else checkpoint.newest(folder)


def skip_completed(title: str, folder: Path, earlier: RunRecord, settings: Settings) -> str:
    """Leave a run alone that is complete, without a checkpoint where it is finished; returns its status. Says so, also
    what is asked of it and will not be done any more. Raises UserError where the checkpoint cannot be removed."""
    status = earlier.status
    if status == "finished":
        checkpoint.remove(folder)
    now = json.loads(json.dumps(settings.identity))
    hint = {"diverged": "; retry=all begins it anew", "failed": "; retry=failed tries again"}
    stays = [f"{key} stays {there}" for key, there, _ in record.differences(earlier.config, now)]
    if status == "finished" and settings.checkpoint["keep"] and WEIGHTS not in earlier.files:
        stays.append(f"its weights were not kept; delete {folder} to train it again")
    said = "; ".join([f"{folder}{hint.get(status, '')}", *stays])
    say(f"{title}: {status} before, nothing to do ({said})")
    return status


def outcome(folder: Path, settings: Settings) -> tuple[str, str]:
    """The `state` of the run with these settings."""
    try:
        completed_record(folder, settings)
        return state(folder)
    except UserError as error:
        return "refused", str(error)
