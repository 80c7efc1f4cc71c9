"""Records that tests make have the keys of those that runs leave, no more and no fewer."""

from pathlib import Path

import pytest
from golden import folder as golden
from reports import put
from support import Commands

import lra.runs.trainer
from lra.cli import train
from lra.records import record


def keys(path: Path) -> dict[str, set[str]]:
    content = record.read(path)
    return {"record": {*content}, "provenance": {*content["provenance"]}}


def burn(*_: object, **__: object) -> None:
    raise RuntimeError("fire")


@pytest.mark.parametrize("status", ["finished", "failed", "diverged"])
def test_records_of_fixtures_have_the_keys_of_records(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str
) -> None:
    if status == "failed":
        monkeypatch.setattr(lra.runs.trainer, "fit", burn)
    rate = ["train.lr=1e30", "train.eval_every=1"] if status == "diverged" else []
    cli(train.main, "experiment=smoke", "out=runs", "train.steps=10", *rate)
    [real] = Path("runs").rglob(record.NAME)
    assert record.read(real)["status"] == status
    if status != "diverged":
        assert keys(put(tmp_path / "made", 1, 37.0 if status == "finished" else None)) == keys(real)
    golden.make(tmp_path / "golden")
    records = {path: record.read(path) for path in (tmp_path / "golden").rglob(record.NAME)}
    others = [path for path, run in records.items() if run["status"] == status]
    assert others
    for path in others:
        expected = keys(real)
        if records[path]["metric"] == "perplexity":
            expected["record"] -= {*golden.DIAGNOSED}
        assert keys(path) == expected, path
