"""The folder of a run, into which something hostile was put: its record, its weights, its checkpoint, its cache."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from faults.harmless import bounded, faults_in, outcome, ran
from faults.hostile import drawn, rewrite
from faults.payloads import Bomb, put_checkpoint, with_header
from faults.runs import TINY, Ended, command
from faults.trial import Case, Outcome, Verdict

from lra.cli import explain, train
from lra.cli.report import main as report
from lra.core.files import digest
from lra.records import record
from lra.records.names import CONFIG, METRICS, RECORD, WEIGHTS

VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, -(10**30), 1e308, -1e-308, 0.5, "", "x", "1", "nan", "\ud800", "\x1b[31m", [],
    {},
    [[]], [None], {"": None}, {"a": {"a": {"a": {}}}}, ["x"] * 1000, {"_target_": "os.system", "command": "id"},
]  # fmt: skip


def junk(rng: Random) -> Any:
    return rng.choice(VALUES)


def spoiled(value: Any, rng: Random) -> str:
    """Put junk into one place of a JSON value, or take the place away; returns which."""
    path: list[str] = []
    while isinstance(value, dict | list) and value:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        path.append(str(key))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            if isinstance(value, dict) and rng.random() < 0.15:
                del value[key]
                return f"{'.'.join(path)} taken away"
            value[key] = junk(rng)
            return f"{'.'.join(path)} = {value[key]!r:.40}"
        value = inner
    return "nothing"


def trained(*options: str, fault: str = "") -> Path:
    """The folder of a small run with its weights, in `runs`."""
    for path, data in _left(options, fault).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    return next(Path("runs").rglob("seed1"))


@cache
def _left(options: tuple[str, ...], fault: str) -> dict[str, bytes]:
    """All files of such a run and of its cache, computed once: most of a case would be waiting for them."""
    ended = command(*TINY, "out=runs", "cache=cache", *options, fault=fault, inside=bounded)
    assert ended.code in (0, 75), ended.err
    return {str(path): path.read_bytes() for path in Path(".").rglob("*") if path.is_file()}


def used(rng: Random, folder: Path) -> tuple[str, Ended]:
    """A command that reads what lies in the folder of a run."""
    place = folder.relative_to(Path.cwd()) if folder.is_absolute() else folder
    name, main, words = rng.choice([
        ("lra-report", report, ["runs"]),
        ("lra-report --verify", report, ["runs", "--verify"]),
        ("lra-report --once", report, ["runs", "--once"]),
        ("lra-report --submit", report, ["runs", "--submit"]),
        ("lra-train", train.main, [*TINY, "out=runs"]),
        ("lra-train retry=all", train.main, [*TINY, "out=runs", "retry=all"]),
        ("lra-train --multirun", train.main, ["--multirun", *TINY, "out=runs"]),
        ("lra-train rerun=", train.main, [f"rerun={place}"]),
        ("lra-train init=", train.main, [*TINY, "seed=2", "out=new", "init=checkpoint", f"init.folder={place}"]),
        ("lra-explain", explain.main, [f"run={place}"]),
    ])  # fmt: skip
    return name, ran(main, *words)


def judged(injected: str, ended: Ended, folder: Path, most: int = 2) -> Outcome:
    return outcome(injected, ended, *faults_in(folder), at_most=most)


def record_of_a_run(rng: Random, folder: Path) -> Outcome:
    """Any field of any type, with a digest that is right."""
    place = trained("attention=simple")
    fields = record.read(place / RECORD) | {"schema": record.SCHEMA}
    where = spoiled(fields, rng)
    fields["provenance"] = fields.get("provenance")
    try:
        sha = digest(fields)
    except ValueError:
        sha = "0" * 64
    (place / RECORD).write_text(json.dumps({"sha256": sha, **fields}))
    name, ended = used(rng, place)
    return judged(f"record: {where}; {name}", ended, folder)


def json_text(rng: Random, folder: Path) -> Outcome:
    """JSON that is none, or that readers understand in two ways, in place of any JSON file of a run."""
    deep = "[" * 10**5
    texts = [
        b'{"schema": 2, "a": NaN}', b'{"schema": 2, "a": -Infinity}', b'{"schema": 2, "a": ' + b"9" * 10**5 + b"}",
        b'{"schema": 2, "a": 1e99999}', b'{"schema": 2, "schema": 3}', deep.encode(), b'{"a":' * 70 + b"1" + b"}" * 70,
        b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"{}\r\n{}", b"", b"\0" * 99, b"\xff\xfe\xfd", b"null", b'"x"', b"[]",
        b"{} trailing", pickle.dumps(Bomb()), b'{"schema": 2, "a": "\\ud800"}', b"x" * 2**20,
    ]  # fmt: skip
    text = rng.choice(texts)
    place = trained("attention=simple")
    name = rng.choice((RECORD, CONFIG, METRICS))
    (place / name).write_bytes(text)
    command_name, ended = used(rng, place)
    return judged(f"{name}: {text[:40]!r}; {command_name}", ended, folder, most=3)


def weights(rng: Random, folder: Path) -> Outcome:
    """Weights with other headers, which the record vouches for or not."""
    place = trained("attention=simple")
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    changed = {**tensor, rng.choice(("dtype", "shape", "data_offsets")): junk(rng)}
    name = drawn(rng).encode(errors="replace").decode()
    content = rng.choice([
        with_header({name: changed}, bytes(8)), pickle.dumps(Bomb()), with_header({}, b""), struct.pack("<Q", 2**63),
        b"",
        with_header({"__metadata__": {"x": name}, "cls": {**tensor, "dtype": "F64"}}, bytes(8)),
        with_header({f"{number}": tensor for number in range(50_000)}, bytes(8)),
    ])  # fmt: skip
    (place / WEIGHTS).write_bytes(content)
    if rng.random() < 0.7:
        rewrite(place / RECORD, files=record.sha256(place, WEIGHTS))
    path = place.relative_to(Path.cwd()) if place.is_absolute() else place
    main, words = rng.choice([
        (explain.main, [f"run={path}"]),
        (train.main, [*TINY, "seed=2", "out=new", "init=checkpoint", f"init.folder={path}"]),
    ])  # fmt: skip
    ended = ran(main, *words)
    return outcome(f"weights: {content[8:60]!r}", ended, *["code was run"] * Path("executed").exists())


def checkpoint_state(rng: Random, folder: Path) -> Outcome:
    """The state in a checkpoint of the run itself, junk in one place, with a digest that is right."""
    place = trained(fault="step:9:term")
    path = max(place.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    state = json.loads(header["__metadata__"]["state"])
    where = spoiled(state, rng)
    header["__metadata__"]["state"] = json.dumps(state)
    put_checkpoint(place, with_header(header, data[8 + size :]))
    ended = ran(train.main, *TINY, "out=runs")
    if ended.code == 0:  # what was spoiled decides nothing, or was refused and an earlier one taken
        return Outcome(f"checkpoint: {where}", f"0, {ended.said:.100}", Verdict.EQUAL)
    return outcome(f"checkpoint: {where}", ended)


def cache_manifest(rng: Random, folder: Path) -> Outcome:
    trained("attention=simple")
    path = next(Path("cache").rglob("manifest.json"))
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    where = spoiled(manifest, rng)
    path.write_text(json.dumps({"sha256": digest(manifest), **manifest}))
    ended = ran(train.main, *TINY, "out=other")
    return outcome(f"manifest: {where}", ended)


def no_file(rng: Random, folder: Path) -> Outcome:
    """A FIFO, a folder or a link in place of any file of a run."""
    place = trained("attention=simple")
    path = rng.choice(sorted(path for path in place.iterdir() if path.is_file()))
    path.unlink()
    kinds: dict[str, Callable[[], object]] = {
        "FIFO": lambda: os.mkfifo(path), "folder": path.mkdir,
        "link": lambda: path.symlink_to("../../../../../../../../precious/deep/thesis.txt"),
        "link to itself": lambda: path.symlink_to(path.name),
    }  # fmt: skip
    kind = rng.choice(sorted(kinds))
    kinds[kind]()
    name, ended = used(rng, place)
    if path.is_fifo() or path.is_symlink():
        path.unlink()
    return judged(f"{path.name} is a {kind}; {name}", ended, folder, most=3)


INPUTS: dict[str, Case] = {
    "any field of a run's record": record_of_a_run,
    "JSON that is none": json_text,
    "weights": weights,
    "state of a checkpoint": checkpoint_state,
    "manifest of a cache": cache_manifest,
    "no file in place of one": no_file,
}
