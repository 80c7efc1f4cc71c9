"""What an accelerator shall answer, the most valuable first, and the answers.

    python scripts/gpu_queue.py run MINUTES FOLDER [--dry-run]   go on with what is unanswered; for scripts/gpu.sh
    python scripts/gpu_queue.py page results/gpu-queue.md        write the table of that page again

Each item is one command with a limit of its own. One that fails is told with its last lines, and the next begins. After
each, FOLDER has answers.json, answers.md and receipts.tar.xz: what was answered, to be read, and small files of the
runs. A dry run takes a CPU and tiny sizes, and names what needs an accelerator.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.paths import CHECKOUT
from lra.core.signals import PAUSED

ANSWERED, FAILED, UNDER_WAY, NEEDS = "answered", "failed", "under way", "needs an accelerator"
MOST = 15 * 2**20  # bytes of a file that comes back
MPS = CHECKOUT / "runs" / "mps"  # of NVIDIA's server, which lets kernels of several processes overlap
MPS_FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
SHOWN = 40  # lines of an answer
RESERVE, PATIENCE = 20.0, 15.0  # seconds to write the answers, and for a command to save what it has
MODEL = ("model.dim=16", "model.heads=2", "model.depth=2", "model.mlp_dim=32")
TINY_BENCH = (*MODEL, "train.batch_size=2", "train.micro_batch=1", "rounds=1", "precision=fp32")
TINY_TRAIN = (
    "experiment=smoke",
    "precision=fp32",
    "train.steps=2",
    "train.warmup=1",
    "train.eval_every=2",
    "train.micro_batch=3",
    "seed=1",
)
LRA = ("-m", "lra")
GPU_TEST = ("-m", "gpu", "-v", "--tb=short", "-W", "default")
GPU_TESTS = ("accelerator", "noise_kernel", "fused", "attention", "dropout", "fit", "bench")
BATCH = ("train.batch_size=32", "train.micro_batch=32")
STEP = ("system=simple", "device={device}", "precision=bf16", *BATCH, "memory_limit=null")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question. `command`: what follows `python`, where {device}, {work} and {minutes} are filled in; `tiny`: what
    is added in a dry run, None where that needs an accelerator; `minutes`: its limit; `shows`: files below {work} that
    are its answer, else the last lines of what it prints; `processes`: how many of the command share one sweep and the
    accelerator, which narrow models leave idle most of the time."""

    name: str
    question: str
    command: tuple[str, ...]
    tiny: tuple[str, ...] | None
    minutes: float
    shows: str | None = None
    processes: int = 1


def _bench(what: str, task: str, minutes: float, question: str) -> Item:
    name = f"{what}_{task}"
    words = (*LRA, "bench", *STEP, f"task={task}", "out={work}/" + name, f"what={what}")
    return Item(
        name=name, question=question, command=words, tiny=TINY_BENCH, minutes=minutes, shows=f"{name}/README.md"
    )


def _train(name: str, minutes: float, question: str, *words: str) -> Item:
    cut = ("train.micro_batch=32", "train.eval_batch=128")
    shared = ("device={device}", "precision=bf16", *cut, "max_hours=null", "out={work}/" + name)
    command = (*LRA, "train", "--multirun", *words, *shared, "sweep_minutes={minutes}")
    return Item(name=name, question=question, command=command, tiny=TINY_TRAIN, minutes=minutes)


SEEDS = "seed=1,2,3,4,5"
SIDE_BY_SIDE = 24  # on 16 cores, under NVIDIA's MPS
WIDTHS = ("model.dim=64", "model.heads=1", "model.depth=2", "model.mlp_dim=128")
FORMS = 'subjects=[simple,"simple attention.form=textbook",linear,softmax,conv]'
NARROW = "system=transformer,simple_res,performer,linformer"
SIDES = ",".join(
    f'"{name} attention.backend={backend}"'
    for name in ("gla", "gated_deltanet", "rwkv7", "mamba2", "retention")
    for backend in ("torch", "fla")
)
IMAGE = "system=transformer,linear,performer,simple,other/s4d,other/conv"
ITEMS = (
    Item(
        name="contact",
        question="one update with every attention in fp32 and under bf16: the numbers of the CPU?",
        command=("scripts/gpu_smoke.py", "--device", "{device}"),
        tiny=("simple", "softmax", "performer", "reformer"),
        minutes=3,
    ),
    Item(
        name="gpu_tests",
        question="the suite's checks for accelerators: no step waits, the bits of the noise kernel, the fused passes",
        command=("-m", "pytest", *GPU_TEST, "-k", "not by_kernels", *(f"tests/test_{name}.py" for name in GPU_TESTS)),
        tiny=None,
        minutes=4,
    ),
    _bench("step", "listops", 1.5, "a step of ListOps Simple: steps per second, share of the bf16 peak, memory"),
    _bench("step", "text", 1.5, "the same of text"),
    _bench("step", "matching", 1.5, "the same of matching"),
    _bench("profile", "listops", 1.5, "where the time of a ListOps step goes; what share is noise"),
    _bench("profile", "text", 1.5, "where that of a text step goes"),
    _bench("profile", "matching", 1.5, "where that of a matching step goes"),
    Item(
        name="passes",
        question="the fused passes: bytes a step, counted; times beside the plain operations', and a copy's bandwidth",
        command=("scripts/memory_traffic.py", "--device", "{device}"),
        tiny=("listops",),
        minutes=1.5,
    ),
    Item(
        name="table1_narrow",
        question="Table 1 at its own length, narrow: its other systems",
        command=(*LRA, "train", "--multirun", "experiment=table1_narrow", NARROW, "device={device}", "max_hours=null")
        + ("train.micro_batch=8", "train.eval_batch=128", "out={work}/table1_narrow", "sweep_minutes={minutes}"),
        tiny=TINY_TRAIN,
        minutes=60,
        processes=SIDE_BY_SIDE,
    ),
    Item(
        name="narrow_forms",
        question="such runs wait for the host: is the form of Simple that needs fewer operations faster?",
        command=(*LRA, "bench", "what=model", FORMS, "lengths=[1024,4096]", "batch=8", "rounds=5", *WIDTHS)
        + ("device={device}", "precision=fp32", "memory_limit=null", "out={work}/narrow_forms"),
        tiny=("lengths=[61]", "batch=2", "rounds=1"),
        minutes=3,
        shows="narrow_forms/README.md",
    ),
    _train("table1_listops", 60, "ListOps Simple, seeds 1 to 5", "task=listops", "system=simple", SEEDS),
    _train("strict_text", 60, "text Simple, strict", "task=text", "protocol=strict", "system=simple", SEEDS),
    _train("strict_acl", 60, "acl_matching Simple", "task=acl_matching", "protocol=strict", "system=simple", SEEDS),
    _train("table1_text", 60, "text, the Simple rows", "task=text", "system=simple,simple_res,simple_resl", SEEDS),
    _train("lra_image", 60, "Image at the published sizes", "experiment=lra", "task=image", IMAGE, "seed=1,2,3"),
    Item(
        name="step_compiled",
        question="a step of text with torch.compile: what it fuses of what lies between the products",
        command=(*LRA, "bench", *STEP, "task=text", "out={work}/step_compiled", "train.compile=true"),
        tiny=None,
        minutes=5,
        shows="step_compiled/README.md",
    ),
    Item(
        name="accuracy",
        question="SimpleAttention's Gram form under bf16: does it round 0.7 to 1.0 times as much as the textbook's?",
        command=(*LRA, "bench", "what=accuracy", "device={device}", "out={work}/accuracy"),
        tiny=(*MODEL, "lengths=[61]", "rounds=1"),
        minutes=3,
        shows="accuracy/README.md",
    ),
    Item(
        name="kernels",
        question="attention.backend=fla: the numbers and gradients of our chunks?",
        command=("-m", "pytest", *GPU_TEST, "-k", "kernels", "tests/test_backend.py", "tests/test_accelerator.py"),
        tiny=None,
        minutes=8,
    ),
    Item(
        name="layers_fla",
        question="a layer with attention.backend=torch beside one with fla (whose operations the counter does not see)",
        command=(*LRA, "bench", "what=layer", f"subjects=[{SIDES}]", "lengths=[1024,4096]", "batch=8", "rounds=5")
        + ("device={device}", "precision=bf16", "memory_limit=null", "out={work}/layers_fla"),
        tiny=None,
        minutes=10,
        shows="layers_fla/README.md",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call: where it works, until when, and on what."""

    work: Path
    folder: Path
    end: float
    dry: bool

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic() - RESERVE


def go_on(run: Run) -> int:
    """Answer what is unanswered until the time is over, and last what failed in an earlier call; returns the exit code:
    0, or 75 where something is left."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored, as behind `&`, it would be ignored by commands too
    answers = _kept(run)
    statuses = {item.name: answers.get(item.name, {}).get("status") for item in ITEMS}
    for item in sorted(ITEMS, key=lambda item: statuses[item.name] == FAILED):
        if statuses[item.name] == ANSWERED:
            continue
        if run.dry and item.tiny is None:
            answers[item.name] = {"status": NEEDS, "seconds": 0, "text": ""}
        elif run.left > 0:
            answers[item.name] = _ask(item, run)
        else:
            continue
        say(f"{item.name}: {answers[item.name]['status']}, {answers[item.name]['seconds']} s")
        _write(run, answers)
    _write(run, answers)
    open_ones = [item.name for item in ITEMS if answers.get(item.name, {}).get("status") in (None, UNDER_WAY)]
    return PAUSED if open_ones else 0


def _kept(run: Run) -> dict[str, dict]:
    """The answers of earlier calls: here, or brought along in `carry`."""
    for path in (run.work / "answers.json", *([] if run.dry else [CHECKOUT / "carry" / "answers.json"])):
        if path.exists():
            return json.loads(path.read_text())
    return {}


def words_of(item: Item, work: Path, minutes: float, dry: bool) -> list[str]:
    """The command of an item."""
    words = [*item.command, *(item.tiny or () if dry else ())]
    filled = {"device": "cpu" if dry else "cuda", "work": str(work), "minutes": f"{minutes:.2f}"}
    return [sys.executable, *(word.format(**filled) for word in words)]


def _ask(item: Item, run: Run) -> dict:
    minutes = 3 * item.minutes if run.dry else item.minutes  # a CPU may be shared
    seconds, log = min(60 * minutes, run.left), run.work / f"{item.name}.log"
    words = words_of(item, run.work, max(seconds - 2 * PATIENCE, 1) / 60, run.dry)
    begun = time.monotonic()
    with log.open("w") as file:
        start = partial(subprocess.Popen, cwd=CHECKOUT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        shared = {MPS_FOLDERS[0]: str(MPS)} if item.processes > 1 and MPS.exists() else {}
        number = min(item.processes, 2) if run.dry else item.processes
        children = [start(words, env=os.environ | shared) for _ in range(number)]
        try:
            code = _waited(children, begun + seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _stop([child for child in children if child.poll() is None])
    status = {0: ANSWERED, PAUSED: UNDER_WAY}.get(code, FAILED)
    shown = run.work / item.shows if item.shows and code == 0 else log
    lines = shown.read_text(errors="replace").splitlines() if shown.exists() else []
    if code is None:
        status = FAILED if seconds >= 60 * minutes else UNDER_WAY
        lines.append(f"stopped after {seconds:.0f} s")
    text = "\n".join(lines if shown != log else lines[-SHOWN:])
    return {
        "status": status,
        "seconds": round(time.monotonic() - begun),
        "text": text,
        "command": shlex.join(words[1:]),
    }


@contextmanager
def overlapping() -> Iterator[None]:
    """While NVIDIA's server runs, where there is one."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    MPS.mkdir(parents=True, exist_ok=True)
    tell = partial(subprocess.run, env=os.environ | dict.fromkeys(MPS_FOLDERS, str(MPS)), check=False)
    tell([control, "-d"])
    try:
        yield
    finally:
        tell([control], input=b"quit\n")
        shutil.rmtree(MPS, ignore_errors=True)


def _waited(children: list[subprocess.Popen], end: float) -> int:
    """The exit code of processes that share a sweep: 0 where one saw it finished, else that of one that failed, else
    75."""
    codes = [child.wait(max(end - time.monotonic(), 0)) for child in children]
    return min(codes, key=lambda code: (code != 0, code == PAUSED))


def _stop(children: list[subprocess.Popen]) -> None:
    """Let commands save and tell what they have (pytest tells its failures when it is interrupted), then end them with
    all that they started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        until = time.monotonic() + PATIENCE
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(until - time.monotonic(), 0))


def _write(run: Run, answers: dict[str, dict]) -> None:
    content = json.dumps(answers, indent=1).encode()
    for path in (run.work / "answers.json", run.folder / "answers.json"):
        write_atomic(path, content)
    write_atomic(run.folder / "answers.md", "\n".join(_told(answers)).encode())
    write_atomic(run.folder / "receipts.tar.xz", _packed(run.work))


def _told(answers: dict[str, dict]) -> Iterator[str]:
    yield "# Answers\n"
    yield "| item | status | s |\n|---|---|---:|"
    for item in ITEMS:
        answer = answers.get(item.name, {"status": "not reached", "seconds": ""})
        yield f"| {item.name}: {item.question} | {answer['status']} | {answer['seconds']} |"
    for item in ITEMS:
        answer = answers.get(item.name, {})
        if answer.get("text"):
            text = answer["text"]
            yield f"\n## {item.name}: {answer['status']}\n\n`{answer['command']}`\n"
            yield text.replace("\n# ", "\n### ") if item.shows and answer["status"] == ANSWERED else f"```\n{text}\n```"
    yield ""


def _packed(work: Path) -> bytes:
    """The small files below `work`: records, pages and logs, no checkpoints; those that fit, the smallest first."""
    files = [
        path
        for path in work.rglob("*")
        if path.is_file() and not path.name.startswith((".", "checkpoint")) and path.suffix != ".safetensors"
    ]
    buffer, total = BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=1) as archive:
        for path in sorted(files, key=lambda path: path.stat().st_size):
            total += path.stat().st_size
            if total < MOST:
                archive.add(path, path.relative_to(work).as_posix())
    return buffer.getvalue()


def table() -> Iterator[str]:
    """The queue as a table."""
    yield "| # | item | question | limit, min | command |"
    yield "|---:|---|---|---:|---|"
    for number, item in enumerate(ITEMS, 1):
        filled = {"device": "cuda", "work": "runs/gpu", "minutes": "MINUTES"}
        command = shlex.join(word.format(**filled) for word in item.command)
        yield f"| {number} | {item.name} | {item.question} | {item.minutes:g} | `python {command}` |"


def page(path: Path) -> None:
    """Write the table between the two lines of the page that say so."""
    before, begin, rest = path.read_text().partition("<!-- queue -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not begin or not end:
        raise UserError(f"{path}: expected a line <!-- queue --> and a line <!-- end -->")
    write_atomic(path, f"{before}{begin}{chr(10).join(table())}\n{end}{after}".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    of_run = parts.add_parser("run")
    of_run.add_argument("minutes", type=float)
    of_run.add_argument("folder", type=Path)
    of_run.add_argument("--dry-run", action="store_true")
    parts.add_parser("page").add_argument("path", type=Path)
    given = parser.parse_args()
    if given.part == "page":
        page(given.path)
        return 0
    work = (CHECKOUT / "runs" / ("gpu-dry" if given.dry_run else "gpu")).resolve()
    for folder in (work, given.folder):
        folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(PAUSED))  # and the command that is at work is stopped, too
    run = Run(work=work, folder=given.folder, end=time.monotonic() + 60 * given.minutes, dry=given.dry_run)
    with overlapping():
        return go_on(run)


if __name__ == "__main__":
    raise SystemExit(main())
