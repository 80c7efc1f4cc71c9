"""Records made to do harm choose neither the code that runs nor the files that are written."""

import json
from pathlib import Path

import pytest
from reports import put
from support import composed

from lra.core.errors import UserError
from lra.init.weights import weights_of_run
from lra.records import record
from lra.records.names import WEIGHTS
from lra.runs.rerun import rerun
from lra.runs.settings import Settings, settings_of

MARK = "zq7x"


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An empty working folder, and the settings of a small run."""
    monkeypatch.chdir(tmp_path)
    return settings_of(composed("experiment=smoke", "attention=simple", "out=again"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config": {"packages": ["os", "posix"]}}, "unexpected key 'packages' in config"),
        ({"config": {"task": None}}, "no value for key 'task' in config"),
        ({"config": {"task": {"_target_": "os.system", "command": f"touch {MARK}"}}}, "not in a trusted package"),
        ({"config": {"train": {"steps": "9"}}}, "train.batch_size: missing"),
        ({"protocol": "../../.."}, "expected a path inside a results folder"),
        ({"settings": {"../../../x": 1}}, "expected a path inside a results folder"),
        ({"seed": "1"}, "seed: Input should be a valid integer"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_hostile_record_is_refused_by_rerun(other: Settings, changes: dict, expected: str) -> None:
    path = put(Path("kept"), 1, 30.0)
    config = other.config_key | changes.get("config", {})
    record.write(path.parent, record.read(path) | changes | {"config": config})
    with pytest.raises((UserError, ValueError), match=expected):
        rerun(path.parent, other)
    assert sorted(entry.name for entry in Path(".").iterdir()) == ["kept"]


def test_weights_that_the_record_does_not_list_are_refused(other: Settings) -> None:
    path = put(Path("kept"), 1, 30.0)
    path.with_name(WEIGHTS).write_bytes(b"x")
    for files in ([], {WEIGHTS: "0" * 64}):
        record.write(path.parent, record.read(path) | {"files": files})
        with pytest.raises(UserError, match="these are not the weights of that run"):
            weights_of_run(path.with_name(WEIGHTS))
