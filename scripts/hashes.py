"""Print a hash of the weights, evaluations and results of some 30 tiny trainings: `hashes.py [WORD ...] > before.txt`.

A change of structure must leave every line as it is: run this before and after, and compare. Temporary: delete it
when the restructuring since the tag `before-one-loop` is complete. Times, paths, versions and digests of code are left
out. Real text trains if LRA_DATA is set. Words choose the trainings whose names contain one of them.
"""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch  # noqa: F401  # so that children have it

from lra.cli import train
from lra.records.names import COSTS, METRICS, PREDICTIONS, RECORD, SAMPLE, WEIGHTS
from lra.runs import describe  # noqa: F401

SMOKE = ("size=smoke", "out=runs", "cache=cache", "workers=1", "max_hours=null", "train.steps=10", "train.eval_every=4")
STEPWISE = "sweep_minutes=0.0001"  # pauses after each step
RESULTS = ("status", "reason", "steps", "ended", "reached", "validation", "test", "baselines", "diagnostics", "tokens")
RESULTS += ("parameters", "trainable_parameters", "full_pattern", "processes", "test_in_train", "init", "pretrain")
ASIDE = ("seconds", "train_seconds", "sha256", "digest", "folder", "path")
DROPOUT, MASKED = "model.dropout=0.3", "protocol=strict"
PATIENT = ("train.lr=1e-30", "train.patience=1", "train.eval_every=3", "train.schedule=constant")
PRETRAIN = ("pretrain=masked", "pretrain.train.steps=6", "pretrain.train.warmup=3", "pretrain.train.eval_every=3")
TRAININGS: dict[str, tuple[str, ...]] = {
    "listops paper simple": (),
    "listops lra softmax": ("protocol=lra", "attention=softmax"),
    "listops strict softmax, dropout": (MASKED, "attention=softmax", DROPOUT, "train.clip_norm=1"),
    "listops s4 s4d, norm over the batch": ("protocol=s4", "attention=s4d", "model.norm_over=batch"),
    "mqar linear": ("task=mqar", "attention=linear"),
    "selective_copy gated_deltanet": ("task=selective_copy", "attention=gated_deltanet"),
    "compress mamba2": ("task=compress", "attention=mamba2"),
    "memorise hyena": ("task=memorise", "attention=hyena"),
    "fuzzy_recall based": ("task=fuzzy_recall", "attention=based"),
    "noisy_recall rwkv7": ("task=noisy_recall", "attention=rwkv7"),
    "word_problem gla, probe": ("task=word_problem", "attention=gla", "probe=2"),
    "parity mlstm": ("task=parity", "attention=mlstm"),
    "pathfinder nystromformer": ("task=pathfinder", "attention=nystromformer", DROPOUT),
    "performer in bf16, redrawn": ("attention=performer", "attention.redraw_every=3", "precision=bf16", DROPOUT),
    "reformer, last weights": ("attention=reformer", "attention.chunk=5", "attention.redraw_every=3", MASKED),
    "sinkhorn, noise": ("attention=sinkhorn", "attention.block=7", "train.selection=last"),
    "frozen, decay by layer": ("attention=softmax", "train.freeze=[qkv,embedding]", "train.layer_decay=0.8"),
    "diverged": ("train.lr=1e30", "train.warmup=1", "train.schedule=constant", MASKED),
    "no progress, cooldown": (*PATIENT, "train.cooldown=2", "train.goal=100"),
    "solved": ("train.goal=0.001",),
    "resumed, stepwise": (MASKED, "attention=performer", DROPOUT, STEPWISE),
    "resumed, stepwise, no progress": (*PATIENT, "train.cooldown=2", "train.progress=0.9", STEPWISE),
    "pretraining": PRETRAIN,
    "pretraining, stepwise": (*PRETRAIN, "pretrain.seed=3", DROPOUT, STEPWISE),
    "transfer": ("init=checkpoint", "init.folder=runs", "init.take=[embedding,qkv]"),
    "two ranks": (DROPOUT, "attention=performer"),
    "two ranks, stepwise": (MASKED, DROPOUT, "train.steps=3", STEPWISE),
    "sweep": ("--multirun", "system=simple,linear", "seed=1,2"),
}
REAL = {
    "text paper simple_resl": ("task=text", "system=simple_resl"),
    "text strict transformer, stepwise": ("task=text", "system=transformer", MASKED, "train.steps=4", STEPWISE),
    "books": ("task=books", "attention=extractor"),
}


def command(words: tuple[str, ...], ranks: int = 1) -> int:
    """Run lra-train in a child of this process, or in ranks of torchrun; return its exit code."""
    if ranks > 1:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run([*launcher, "-m", "lra", "train", *words], check=False, **silent).returncode
    child = os.fork()
    if child == 0:
        code = 99
        try:
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            sys.argv = ["lra-train", *words]
            train.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def without(value: object) -> object:
    """Return a JSON value without the keys of ASIDE."""
    if isinstance(value, dict):
        return {key: without(part) for key, part in value.items() if key not in ASIDE}
    return [without(part) for part in value] if isinstance(value, list) else value


def hashed(folder: Path) -> str:
    """Hash the runs below a folder."""
    total = sha256()
    for path in sorted(folder.rglob(RECORD)):
        record = json.loads(path.read_bytes())
        total.update(json.dumps(without({key: record.get(key) for key in RESULTS}), sort_keys=True).encode())
        for line in (path.parent / METRICS).read_bytes().splitlines():
            total.update(json.dumps(without(json.loads(line)), sort_keys=True).encode())
        for name in (COSTS, PREDICTIONS, SAMPLE, WEIGHTS):
            file = path.parent / name
            total.update(file.read_bytes() if file.exists() else b"none")
    return total.hexdigest()[:16]


def trained(name: str, words: tuple[str, ...]) -> str:
    """Train to the end in the working folder, and again by rerun=; return the line to print."""
    ranks, starts, code = 2 if name.startswith("two") else 1, 0, 75
    if "init=checkpoint" in words:
        command((*SMOKE, "seed=7"))
        next(Path("runs").rglob("seed7")).rename("source")
        words = tuple(word.replace("folder=runs", "folder=source") for word in words)
        words += ("out=target",)
    while code in (75, 1 if ranks > 1 else 75) and starts < 40:
        starts += 1
        code = command((*SMOKE, *words), ranks)
    line = f"{hashed(Path('target' if 'out=target' in words else 'runs'))} exit {code} starts {starts}"
    if name in ("listops strict softmax, dropout", "pretraining"):
        record = next(Path("runs").rglob(RECORD)).parent
        line += f" rerun {command((f'rerun={record}', 'cache=cache', 'workers=1'))} {hashed(Path('reruns'))}"
    return f"{name}: {line}"


def main() -> None:
    """Train all, each in a folder of its own with a shared cache."""
    trainings = TRAININGS | (REAL if os.environ.get("LRA_DATA") else {})
    with TemporaryDirectory() as cache:
        for name, words in trainings.items():
            if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
                continue
            with TemporaryDirectory() as folder:
                os.chdir(folder)
                Path("cache").symlink_to(cache)
                print(trained(name, words), flush=True)
                os.chdir("/")


if __name__ == "__main__":
    main()
