"""A file that was cut short or in which a bit was flipped is named and refused, or means exactly what it meant."""

import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.runs import TINY, command, observe, without_figures
from support import composed, facts

from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.data import readers, tokenise
from lra.data.cache import prepared as prepared_task
from lra.data.writer import Writer
from lra.records import record
from lra.records.names import CONFIG
from lra.records.run_files import RunFiles
from lra.report.read.records import load, predictions, read_curve
from lra.runs.status import completed_record
from lra.tasks import Place

DAMAGES = 40  # half of them cuts, half of them flipped bits

TEXTS = [f"the {number}th of a few sentences, not one like another" for number in range(30)]


def damaged(data: bytes, number: int) -> bytes:
    """A cut for an even number, a flipped bit for an odd one."""
    rng = random.Random(number)
    place = rng.randrange(len(data))
    if number % 2 == 0:
        return data[:place]
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def silent_loads(path: Path, read: Callable[[], Any]) -> list[int]:
    """The damages to a file after which it reads otherwise than before, and nobody says so with its name."""
    whole, expected = path.read_bytes(), read()
    silent = []
    for number in range(DAMAGES):
        path.write_bytes(damaged(whole, number))
        try:
            if read() != expected:
                silent.append(number)
        except (UserError, ValueError) as error:
            assert path.name in str(error) or path.parent.name in str(error), (number, error)
    path.write_bytes(whole)
    return silent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The results folder of a sweep of one run."""
    folder = tmp_path_factory.mktemp("runs")
    ended = command("--multirun", *TINY, f"out={folder}", f"cache={cache}", "seed=1", inside=without_figures)
    assert ended.code == 0, ended.err
    return folder


def said(values: Any) -> Any:
    """What a configuration says: a key that is null is as one that is missing, whatever its name."""
    if not isinstance(values, dict):
        return values
    return {key: said(value) for key, value in values.items() if value is not None}


def prepared(cache: Path) -> Any:
    """Everything that a task of the cache says."""

    def make(writers: dict[str, Writer], staging: Path) -> dict[str, int]:
        tokenizer = tokenise.train_bpe(TEXTS, 300, staging / tokenise.TOKENIZER)
        for split, writer in writers.items():
            for number, ids in enumerate(tokenise.encode(tokenizer, TEXTS)):
                writer.add(number % 5, ids[: 9 + len(split)])
        return {"sentences": len(TEXTS)}

    place = Place(cache=cache, data_dir=None, workers=1, progress=lambda done, total: None)
    known = facts(vocab_size=300, max_len=17)
    task = prepared_task(place, known, {"task": "stub"}, make, lambda splits: {"majority class": 20.0})
    splits = [
        [part.tokens.tobytes(), part.offsets.tobytes(), part.index.tobytes(), part.labels.tobytes()]
        for part in (task.train, task.val, task.test)
    ]
    tokenizer = tokenise.load(task.folder / tokenise.TOKENIZER)
    return splits, task.digest, task.baselines, task.source, tokenise.encode(tokenizer, TEXTS[:1])[0].tolist()


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "tokenizer.json", *(f"val.{part}.bin" for part in ("tokens", "offsets", "index", "labels"))],
)
def test_a_damaged_cache(record_property, tmp_path: Path, name: str) -> None:
    prepared(tmp_path)
    path = next(tmp_path.rglob(name))
    silent = silent_loads(path, lambda: prepared(tmp_path))
    observe(
        record_property, f"cache damaged: {name}", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}"
    )


def test_a_damaged_record(record_property, run: Path) -> None:
    path = next(run.rglob(record.NAME))
    silent = silent_loads(path, lambda: record.read(path))
    observe(record_property, "record.json damaged", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}")


def test_every_bit_of_a_record_counts(tmp_path: Path) -> None:
    """Also those of the digest, of its name, and of the schema that asks for it."""
    record.write(tmp_path, {"a": 1.5, "b": [True, None, "text"]})
    path = tmp_path / record.NAME
    whole, expected = path.read_bytes(), record.read(path)
    for place in range(8 * len(whole)):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            assert record.read(path) == expected
        except ValueError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("name", [record.METRICS, "predictions.npy"])
def test_what_lies_beside_a_record_is_damaged(record_property, run: Path, name: str) -> None:
    path = next(run.rglob(name))

    def read() -> Any:
        recorded = next(iter(load(RunFiles(run), None)[0].runs.values()))
        return read_curve(RunFiles(run), recorded), predictions(RunFiles(run), recorded, recorded["selection"]).tolist()

    silent = silent_loads(path, read)
    observe(record_property, f"{name} damaged", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}")


def test_a_damaged_declaration(record_property, run: Path) -> None:
    path = run / "sweep.json"
    silent = silent_loads(path, lambda: (len(load(RunFiles(run), None)), json.loads(path.read_text())["cells"]))
    observe(record_property, "sweep.json damaged", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    ended = command("--multirun", *TINY, f"out={run}", "seed=1")
    path.write_bytes(whole)
    assert (ended.code, "sweep.json: " in ended.said) == (2, True)


def test_a_damaged_configuration(record_property, run: Path) -> None:
    """A command goes on with a run only where its configuration still says the same."""
    path = next(run.rglob(CONFIG))
    settings = settings_of(composed(*TINY))
    silent = silent_loads(
        path, lambda: (completed_record(path.parent, settings)["status"], said(json.loads(path.read_text())))
    )
    observe(record_property, "config.json damaged", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}")


def test_damaged_metrics_of_a_paused_run(record_property, tmp_path: Path, cache: Path) -> None:
    options = (*TINY, f"out={tmp_path / 'runs'}", f"cache={cache}")
    assert command(*options, fault="step:16:term").code == 75
    path = next(tmp_path.rglob(record.METRICS))
    whole = path.read_bytes()
    for number in (0, 1, 3):
        path.write_bytes(damaged(whole, number))
        ended = command(*options)
        assert "metrics.jsonl is not what it was when the run was paused" in ended.said
        assert ended.summary == "2, one line"
    path.write_bytes(whole)
    observe(
        record_property, "metrics.jsonl of a paused run damaged", "1 cut, 2 bits", "2, one line; whole: 0",
        f"{ended.summary}; whole: {command(*options).code}",
    )  # fmt: skip


def archive(kind: str) -> bytes:
    rng = random.Random(1)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{kind}") as tar:
        for number in range(4):
            text = rng.randbytes(2000) if number % 2 else b"words, words " * 300
            member = tarfile.TarInfo(f"folder/{number}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return data.getvalue()


LINES = b"".join(b"%d\t%d\n" % (number, number**7) for number in range(500))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("raw.tar.gz", archive("gz")),
        ("raw.tar.xz", archive("xz")),
        ("raw.tar.bz2", archive("bz2")),
        ("raw.tsv.gz", gzip.compress(LINES)),
        ("raw.tsv.xz", lzma.compress(LINES)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_raw_data(record_property, tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)

    def read() -> list:
        if ".tar." in name:
            members = readers.members(path, lambda member: True)
            return [readers.contents(f"{path}: {member}", stream) for member, stream in members]
        return list(readers.lines(path))

    assert len(read()) in (4, 500)
    silent = silent_loads(path, read)
    observe(record_property, f"{name} damaged", "20 cuts, 20 bits", "silent loads: []", f"silent loads: {silent}")


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    for content in (b"", b"{}", json.dumps({"model": {"type": "BPE"}}).encode(), np.zeros(3).tobytes()):
        path = tmp_path / tokenise.TOKENIZER
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer.json: not a tokenizer: .*; delete"):
            tokenise.load(path)
