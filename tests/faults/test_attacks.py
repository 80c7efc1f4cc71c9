"""Files that were made to do harm are refused by name, and run nothing."""

import ast
import json
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from faults.payloads import MARK, Bomb, put_checkpoint, with_header
from faults.runs import TINY, command, observe, without_figures
from safetensors.torch import load_file, save
from support import Commands, composed

from lra.cli.report import main as report
from lra.config.settings import settings_of
from lra.core import locks
from lra.core.errors import UserError
from lra.core.files import digest
from lra.core.paths import PACKAGE
from lra.data import cache
from lra.records import checkpoint, record
from lra.records.names import CONFIG, ERRORS
from lra.records.run_files import RunFiles
from lra.report.read.records import load, predictions
from lra.runs import execute as lra_run
from lra.runs.status import completed_record

CANARY = "canary-7f3a9c"


def refused(record_property: Callable, attack: str, file: str, act: Callable, expected: str) -> None:
    """`act` raises with the file's name; nothing was run and nothing written outside."""
    before = {path.name for path in Path("..").iterdir()}
    with pytest.raises((UserError, ValueError), match=expected) as caught:
        act()
    assert file in str(caught.value)
    assert not Path(MARK).exists()
    seen = "refused, named" if {path.name for path in Path("..").iterdir()} == before else "something was written"
    observe(record_property, attack, file, "refused, named", seen)


# ---------------------------------------------------------------- archives


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    entry.size = 4 if kind == tarfile.REGTYPE else 0
    return entry


# ---------------------------------------------------------------- records and declarations


@pytest.mark.parametrize("content", [pickle.dumps(Bomb()), b"[" * 100_000, b'{"schema": 2, "a": ' + b"9" * 9999 + b"}"])
def test_records(record_property, cli: Commands, content: bytes) -> None:
    Path(record.NAME).write_bytes(content)
    what = {128: "pickle", 91: "deep nesting", 123: "endless number"}[content[0]]
    refused(
        record_property, f"record: {what}", record.NAME, lambda: record.read(Path(record.NAME)), "not a readable record"
    )


def test_targets_in_results_are_words(record_property, cli: Commands) -> None:
    """A record and a configuration that name code to run: nothing instantiates them."""
    assert command("--multirun", *TINY, "out=runs", inside=without_figures).code == 0
    folder = next(Path("runs").rglob("seed1"))
    code = {"_target_": "os.system", "command": f"touch {MARK}"}
    content = record.read(folder / record.NAME)
    config = {**content["config"], "task": code, "attention": code}
    content["config"], content["provenance"]["config_sha256"] = config, digest(config)
    record.write(folder, content)
    shown = command("runs", main=report, inside=without_figures)
    ended = command(*TINY, "out=runs")
    (folder / "config.json").write_text(json.dumps(config))
    other = command(*TINY, "out=runs")
    assert "another configuration" in other.said
    seen = [shown.code, ended.code, other.code, Path(MARK).exists()]
    observe(record_property, "_target_ in a record, in config.json", "os.system", [0, 2, 2, False], seen)


@pytest.mark.parametrize(
    "target", ["os.system", "lra.records.record.os.system", "lra.records.provenance.subprocess.run", "builtins.eval"]
)
def test_targets_on_the_command_line(record_property, cli: Commands, target: str) -> None:
    """Also those that are reached through what a module of ours imports."""
    ended = command(*TINY, f"task._target_={target}", f"+task.command=touch {MARK}")
    assert f"task._target_={target}: " in ended.said
    assert "trusted" in ended.said
    observe(record_property, f"_target_={target}", "command line", [2, False], [ended.code, Path(MARK).exists()])


def test_predictions_with_objects(record_property, cli: Commands) -> None:
    assert command(*TINY, "out=runs").code == 0
    folder = next(Path("runs").rglob("seed1"))
    path = folder / "predictions.npy"
    np.save(path, np.array([[Bomb()]], dtype=object), allow_pickle=True)
    content = record.read(folder / record.NAME)
    content.get("files", {}).pop(path.name, None)
    record.write(folder, content)
    run = next(iter(load(RunFiles(Path("runs")), None)[0].runs.values()))
    act = lambda: predictions(RunFiles(Path("runs")), run, run["selection"])  # noqa: E731
    refused(record_property, "predictions with objects", "predictions.npy", act, "not a readable array")


# ---------------------------------------------------------------- caches


@pytest.mark.parametrize(
    ("attack", "change"),
    [
        ("objects", {"dtype": "O"}),
        ("no known type", {"dtype": "weird"}),
        ("size below zero", {"size": -1}),
        ("immense size", {"size": 2**60}),
    ],
)
def test_caches(record_property, cli: Commands, attack: str, change: dict) -> None:
    """With a digest that is right: whoever makes such a file can make that, too."""
    assert command(*TINY, "out=runs", "cache=own").code == 0
    path = next(Path("own").rglob(cache.MANIFEST))
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["arrays"]["train.tokens"] |= change
    path.write_text(json.dumps({"sha256": digest(manifest), **manifest}))
    ended = command(*TINY, "out=other", "cache=own")
    assert str(path.parent) in ended.said
    observe(record_property, f"cache: {attack}", "manifest.json", "2, one line", ended.summary)


# ---------------------------------------------------------------- checkpoints


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
STATE = {"__metadata__": {"state": "{}"}}


@pytest.mark.parametrize(
    ("attack", "data"),
    [
        ("pickle", pickle.dumps(Bomb())),
        ("header of 2^63 bytes", struct.pack("<Q", 2**63) + b"{}"),
        ("header larger than the file", struct.pack("<Q", 10_000) + b"{}"),
        ("overlapping tensors", with_header({**STATE, "a": TENSOR, "b": TENSOR}, bytes(8))),
        ("tensor beyond the end", with_header({**STATE, "a": {**TENSOR, "data_offsets": [0, 800]}}, bytes(8))),
        ("immense shape", with_header({**STATE, "a": {**TENSOR, "shape": [2**62, 2**62]}}, bytes(8))),
        ("hole between tensors", with_header({**STATE, "a": {**TENSOR, "data_offsets": [8, 16]}}, bytes(16))),
        ("header without state", with_header({"a": TENSOR}, bytes(8))),
        ("deep nesting", with_header({"__metadata__": {"state": "[" * 100_000}})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_checkpoints(record_property, cli: Commands, capfd: pytest.CaptureFixture, attack: str, data: bytes) -> None:
    """With a digest that is right."""
    put_checkpoint(Path("."), data)
    refused(
        record_property,
        f"checkpoint: {attack}",
        "checkpoint.json",
        lambda: checkpoint.read(Path(".")),
        "no checkpoint is whole",
    )
    assert "checkpoint-5.safetensors: damaged: " in capfd.readouterr().err


@pytest.mark.parametrize("entry", [{"file": "checkpoint-5.safetensors", "step": 5}, {"file": "/etc/passwd", "step": 5}])
def test_checkpoint_lists(cli: Commands, entry: dict) -> None:
    Path(checkpoint.INDEX).write_text(json.dumps({"schema": checkpoint.SCHEMA, "generations": [entry]}))
    Path("checkpoint-5.safetensors").write_bytes(b"data")
    with pytest.raises(UserError, match="checkpoint.json"):
        checkpoint.read(Path("."))


def other_shape(tensors: dict) -> dict:
    """An optimiser's state of another shape, which `load_state_dict` would take."""
    name = next(name for name in tensors if name.endswith("/exp_avg") and tensors[name].dim() == 2)
    return {**tensors, name: torch.zeros(3, 2)}


def other_names(tensors: dict) -> dict:
    return {name.replace("model/", "model/x"): value for name, value in tensors.items()}


@pytest.mark.parametrize("change", [other_shape, other_names, lambda tensors: {}], ids=["shape", "names", "nothing"])
def test_checkpoints_of_other_models(record_property, cli: Commands, change: Callable) -> None:
    assert command(*TINY, "out=runs", fault="step:9:term").code == 75
    folder = next(Path("runs").rglob("seed1"))
    path = max(folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
    state = json.dumps(checkpoint.read(folder).state)
    put_checkpoint(folder, save(change(load_file(path)), metadata={"state": state}))
    ended = command(*TINY, "out=runs")
    assert f"{folder}: its checkpoint is not of this run: " in ended.said
    observe(record_property, "checkpoint of another model", "made by hand", "2, one line", ended.summary)


def paused(*options: str, out: str) -> Path:
    """The folder of a run that was paused after step 5."""
    assert command(*TINY, *options, f"out={out}", fault="step:5:term").code == 75
    return next(Path(out).rglob("checkpoint.json")).parent


def test_checkpoints_of_other_runs(record_property, cli: Commands) -> None:
    """Of the same shapes: they are refused by what tells the runs apart, with a configuration beside them or none."""
    system = ("attention=softmax", "variant=simple")
    folder, codes = paused(*system, out="runs"), []
    others = {
        "seed=2": "seed: 2 there, 1 now",
        "train.lr=0.011": "train.lr: 0.011 there, ",
        "attention=linear": "attention._target_: lra.attention.linear.",
    }
    for number, (other, difference) in enumerate(others.items()):
        foreign = paused(*system, other, out=f"other{number}")
        for path in [*folder.glob("checkpoint*"), folder / record.METRICS]:
            path.unlink()
        for path in [*foreign.glob("checkpoint*"), foreign / record.METRICS]:
            shutil.copy(path, folder / path.name)
        if number % 2:
            for name in (CONFIG, record.NAME):
                (folder / name).unlink(missing_ok=True)
        ended = command(*TINY, *system, "out=runs")
        assert f"{folder}: its checkpoint is of another run (" in ended.said
        assert difference in ended.said
        codes.append(ended.code)
    observe(record_property, "checkpoint of another run", ", ".join(others), [2, 2, 2], codes)


def test_a_record_of_another_run(record_property, cli: Commands) -> None:
    """Put beside a configuration that is right, or beside none, it does not make the run a finished one."""
    settings = settings_of(composed(*TINY))
    record.write(Path("."), {"status": "finished", "config": {**settings.identity, "seed": 2}})
    Path(CONFIG).write_text(json.dumps(settings.identity))
    act = lambda: completed_record(Path("."), settings)  # noqa: E731
    refused(record_property, "record of another seed", ".", act, r"seed: 2 there, 1 now")
    Path(CONFIG).unlink()
    refused(record_property, "record of another seed, no config.json", ".", act, r"seed: 2 there, 1 now")


def test_checkpoints_without_the_identity_of_a_run(record_property, cli: Commands) -> None:
    """Those of earlier versions: it is said what they are and what to do."""
    Path(checkpoint.INDEX).write_text('{"schema": 2, "generations": []}')
    act = lambda: checkpoint.read(Path("."))  # noqa: E731
    refused(record_property, "checkpoint of an earlier format", checkpoint.INDEX, act, "schema 2, expected 3")


def list_of_one(folder: Path) -> None:
    put_checkpoint(folder, b"data")
    (folder / "checkpoint-5.safetensors").unlink()


def hold_lock() -> None:
    with locks.hold(Path(".run.lock"), 0):
        pass


READERS: dict[str, Callable[[], object]] = {
    "checkpoint-5.safetensors": lambda: checkpoint.read(Path(".")),
    checkpoint.INDEX: lambda: checkpoint.read(Path(".")),
    CONFIG: lambda: completed_record(Path("."), settings_of(composed(*TINY))),
    record.METRICS: lambda: record.Metrics(Path("."), None).__exit__(),
    ".run.lock": hold_lock,
}
KINDS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "FIFO": os.mkfifo,
    "symbolic link": lambda path: path.symlink_to("precious"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_in_place_of_one(
    record_property, cli: Commands, capfd: pytest.CaptureFixture, name: str, kind: str
) -> None:
    """In the folder of a run: nothing waits for a FIFO, and what a link leads to is neither read nor written."""
    Path("precious").write_text("years of work")
    list_of_one(Path("."))
    Path(name).unlink(missing_ok=True)
    KINDS[kind](Path(name))
    with pytest.raises(UserError) as error:
        READERS[name]()
    said = f"{error.value}{capfd.readouterr().err}"
    seen = f"{f'expected a regular file, found a {kind}' in said}, {Path('precious').read_text()}"
    assert name in said
    observe(record_property, f"{name} is a {kind}", "made by hand", "True, years of work", seen)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": 3, "generations": ' + "[" * 700 + "]" * 700 + "}"])
def test_deep_checkpoint_lists(cli: Commands, text: str) -> None:
    Path(checkpoint.INDEX).write_text(text)
    with pytest.raises(UserError, match=r"checkpoint.json: damaged: nested deeper than 64 levels; delete it"):
        checkpoint.read(Path("."))


# ---------------------------------------------------------------- the code, and what it writes


def test_no_code_comes_from_files() -> None:
    """No pickle, no loader that runs code, no evaluation of text."""
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    calls = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system"}
    files = list(PACKAGE.rglob("*.py"))
    assert PACKAGE / "records" / "record.py" in files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not modules & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in modules, path
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in calls, f"{path}:{node.lineno}"
                words = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert words.get("allow_pickle", "False") == "False", f"{path}:{node.lineno}"
                assert words.get("shell", "False") == "False", f"{path}:{node.lineno}"


def test_no_secret_is_written(record_property, cli: Commands) -> None:
    """By runs that finish, fail and diverge, by their sweep, and by their report."""
    names = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")

    def secretly() -> None:
        without_figures()
        os.environ.update(dict.fromkeys(names, CANARY))

    def burning() -> None:
        secretly()
        train_and_test = lra_run.train_and_test

        def fails_for_two(settings, *arguments):
            if settings.seed == 2:
                raise RuntimeError("fire")
            return train_and_test(settings, *arguments)

        lra_run.train_and_test = fails_for_two

    ended = [
        command("--multirun", *TINY, "out=runs", "cache=own", "seed=1,2", inside=burning),
        command("runs", main=report, inside=secretly),
    ]
    assert [process.code for process in ended] == [1, 0]
    assert list(Path("runs").rglob(ERRORS))
    files = [path for path in Path(".").rglob("*") if path.is_file()]
    leaks = [str(path) for path in files if CANARY.encode() in path.read_bytes()]
    assert len(files) > 20
    assert CANARY not in "".join(process.out + process.err for process in ended)
    observe(record_property, "keys in the environment", ", ".join(names), "in no file: []", f"in no file: {leaks}")
