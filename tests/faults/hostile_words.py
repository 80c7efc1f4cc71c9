"""Command lines, options and environments that were made to do harm."""

import os
from pathlib import Path
from random import Random

from faults.harmless import faults_in, outcome, ran, started
from faults.hostile import drawn, results
from faults.hostile_runs import trained
from faults.runs import TINY
from faults.trial import Case, Outcome

from lra.cli import bench, check, new, prepare, train
from lra.cli.report import main as report

DATA = TINY[:7]
OPTIONS = [
    "_target_: os.system\ncommand: touch executed", "!!python/object/apply:os.system ['touch executed']",
    "a: !!python/name:os.system", "hydra: {callbacks: {x: {_target_: os.system}}}", "packages: [os, posix]",
    "a: &a [*a]", "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" + "".join(
        f"{chr(99 + n)}: &{chr(99 + n)} [{','.join([f'*{chr(98 + n)}'] * 9)}]\n" for n in range(9)),
    "[" * 5000, "a: " + "{b: " * 3000, "\t- a", "a: 1\na: 2", "defaults: [mine]",
    "defaults: [{override /task: ../../etc}]",
    "a: ${oc.env:HOME}", "a: ${a}", "a: ${b}\nb: ${a}", "a: ${oc.decode:'1}", "\ufeffa: 1", "a: \x1b[31m", "\udcff",
    "_target_: lra.cli.report.main", "_target_: lra.core.files.os.system\ncommand: touch executed", "--- a\n--- b",
    "null",
    "hydra: {run: {dir: ../precious}}", "hydra: {job: {env_set: {PATH: /x}}}",
    "# @package _global_\nout: ../precious\nseed: 1",
    "_target_: lra.attention.simple.SimpleAttention\n_partial_: true\nx: 1", "_target_: builtins.eval", "a: !!binary x",
]  # fmt: skip
WORDS = [
    "task._target_=os.system", "attention=../../../etc/passwd", "attention='$(touch executed)'",
    "+hydra.run.dir=../precious",
    "hydra.searchpath=[pkg://os]", "hydra/launcher=../x", "seed=9999999999999999999999", "seed=-1", "seed=1e400",
    "seed='1\x1b[31m'",
    "train.lr=nan", "train.lr=${oc.env:HOME}", "train.steps=" + "9" * 5000, "model.dim=0", "model.heads=-3",
    "threads=2000000",
    "\x1b[31m=1", "=", "==", "a" * 10**5, "[" * 3000, "train={a:{b:{c:1}}}", "train=[1]", "packages=[os,posix]",
    "packages=os",
    "init=checkpoint init.folder=/dev/zero", "rerun=/dev/zero", "rerun=../precious", "rerun=''", "logger=../x",
    "fault=x",
    "attention=[simple]", "attention={a:1}", "attention=null", "task=null", "+x=${oc.create:{_target_:os.system}}",
    "~task", "~",
    "data_dir=/dev/null", "cache=/dev/null", "cache=/proc/1/x", "data_dir=../precious/link", "@", "+task@x=listops",
    "--config-path=/",
    "--config-dir=/dev/null", "--config-name=../x", "--experimental-rerun=x.pkl", "--info=x", "--package=../x",
]  # fmt: skip


def options(rng: Random, folder: Path) -> Outcome:
    """A folder of options that somebody gave away: their YAML runs nothing."""
    text = rng.choice(OPTIONS)
    group = rng.choice(("attention", "task", "protocol", "experiment", "variant", ""))
    default = rng.random() < 0.4
    place = folder / ("lra_options" if default else "options") / group / "mine.yaml"
    place.parent.mkdir(parents=True)
    place.write_bytes(text.encode(errors="surrogateescape"))
    words = [f"{group}=mine"] if group else ["attention=simple"]
    words = words if default else ["--config-dir", "options", *words]
    words += ["--config-name", "mine"] * (not group and not default)
    main = rng.choice((train.main, train.main, check.main, prepare.main))
    limits = {check.main: ["growth=[]"], train.main: [*TINY, "out=runs"], prepare.main: DATA}[main]
    ended = ran(main, *words, *(word for word in limits if not word.startswith(f"{group or '-'}=")))
    wrong = ["code was run"] * any(Path(place, "executed").exists() for place in (".", "..", "cache"))
    return outcome(f"{group or 'whole'} options: {text[:60]!r}", ended, *wrong)


def words(rng: Random, folder: Path) -> Outcome:
    """Arguments, drawn into the command line of each command that Hydra composes."""
    asked = [word for text in rng.sample(WORDS, rng.choice((1, 1, 2))) for word in text.split(" ")]
    main = rng.choice((train.main, train.main, check.main, prepare.main, bench.main))
    before = {train.main: [*TINY, "out=runs", "describe=true"], bench.main: ["what=layer", "out=measured"]}
    before |= {prepare.main: DATA, check.main: ["growth=[]"]}
    ended = ran(main, *before[main], *asked)
    wrong = ["code was run"] * Path("executed").exists()
    return outcome(f"words: {' '.join(asked)[:80]!r}", ended, *wrong)


def new_names(rng: Random, folder: Path) -> Outcome:
    text = rng.choice(
        [
            drawn(rng),
            "../x",
            "/tmp/x",
            "os",
            "lra",
            "torch",
            "class",
            "con",
            "x" * 300,
            "é",
            "x.y",
            "-x",
            "",
            "__init__",
        ]
    )
    ended = ran(new.main, rng.choice(("attention", "task")), text.replace("\0", "").encode(errors="replace").decode())
    return outcome(f"lra-new {text[:60]!r}", ended, *faults_in(folder), at_most=3)


def report_words(rng: Random, folder: Path) -> Outcome:
    """Folders and files that are none, for lra-report."""
    results(folder / "runs")
    names = [
        "",
        ".",
        "..",
        "nowhere",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
        "runs/sweep.json",
        "loop",
        "x" * 5000,
        "\x1b[31m",
    ]
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    place = rng.choice([*names, "pipe", os.fsdecode(b"\xff")])
    asked = rng.choice(
        ("--verify", "--pack", "--unpack", "--once", "--overview", "--fill", "--board", "--submit", "--cards")
    )
    more = rng.choice(
        ([], [], ["--published", "pipe"], ["--published", "/dev/zero"], ["--text", "pipe"], ["--text", "loop"])
    )
    ended = ran(report, place, *(more or [asked]))
    (folder / "pipe").unlink()
    return outcome(f"lra-report {place[:30]!r} {asked} {' '.join(more)}", ended, *faults_in(folder), at_most=30)


def environment(rng: Random, folder: Path) -> Outcome:
    """Variables that are missing, empty, or name what is not there."""
    trained("attention=simple")
    (folder / "file").write_text("")
    kinds: list[dict[str, str | None]] = [
        {"LRA_CACHE": "file"}, {"LRA_CACHE": "file/below"}, {"LRA_CACHE": ""}, {"LRA_DATA": "nowhere"},
        {"LRA_DATA": "file"},
        {"HOME": None}, {"HOME": "nowhere"}, {"TMPDIR": "nowhere"}, {"COLUMNS": "0"}, {"COLUMNS": "-5"},
        {"COLUMNS": "x"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "\x1b[31m"}, {"LC_ALL": "C"}, {"LC_ALL": "C",
        "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"},
        {"LANG": "xx_YY"},
        {"OMP_NUM_THREADS": "x"}, {"OMP_NUM_THREADS": "0"}, {"WORLD_SIZE": "x"}, {"RANK": "5"}, {"LRA_FAULT": "x:y:z"},
        {"HYDRA_FULL_ERROR": "x"}, {"PATH": ""}, {"MPLBACKEND": "nonsense"}, {"MPLCONFIGDIR": "file"},
        {"CUDA_VISIBLE_DEVICES": "x"},
        {"GIT_DIR": "/dev/null"}, {"SLURM_CPUS_PER_TASK": "\x1b"}, {"TZ": "\x1b[31m"}, {"SOURCE_DATE_EPOCH": "x"},
    ]  # fmt: skip
    variables = rng.choice(kinds)
    lines = (
        ["report", "runs"],
        ["train", *TINY, "seed=2", "out=runs"],
        ["prepare", *DATA],
        ["report", "runs", "--once"],
    )
    ended = started(*rng.choice(lines), **variables)
    return outcome(f"environment: {variables}", ended, *faults_in(folder), at_most=2)


INPUTS: dict[str, Case] = {
    "options of somebody else": options,
    "words of a command line": words,
    "names for lra-new": new_names,
    "folders for lra-report": report_words,
    "variables of the environment": environment,
}
