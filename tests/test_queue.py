"""The queue for an accelerator: its commands mean something, and it answers by itself."""

import json
import shlex
import sys
import tarfile
import time
from pathlib import Path

import gpu_queue
import gpu_smoke
import memory_traffic
import pytest
import torch
from gpu_queue import ANSWERED, FAILED, NEEDS, PAUSED, UNDER_WAY, Item, Run
from support import composed

from lra.core.paths import CHECKOUT

PAGE = CHECKOUT / "results" / "gpu-queue.md"


def item(name: str, *command: str, minutes: float = 1, tiny: tuple[str, ...] | None = (), **more: str) -> Item:
    return Item(name=name, question="?", command=("-m", *command), tiny=tiny, minutes=minutes, **more)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules to ask; {work} is tmp_path / work."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_queue, "PATIENCE", 60.0)
    (tmp_path / "fine.py").write_text(
        "import sys\nopen(sys.argv[1], 'a').write('seen\\n'), print('told', sys.argv[2:])"
    )
    (tmp_path / "broken.py").write_text("print('before'); raise ValueError('how sad')")
    (tmp_path / "endless.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    (tmp_path / "paused.py").write_text("raise SystemExit(75)")
    (tmp_path / "work").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path


def run(folder: Path, seconds: float = 60, dry: bool = True) -> int:
    end = time.monotonic() + gpu_queue.RESERVE + seconds
    return gpu_queue.go_on(Run(work=folder / "work", folder=folder / "out", end=end, dry=dry))


def answers(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "out" / "answers.json").read_text())


def test_one_that_fails_hides_none_and_comes_last_the_next_time(
    asked: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    items = (
        item("broken", "broken"),
        item("endless", "endless", minutes=0.01),
        item("fine", "fine", "{work}/seen", "{device}", tiny=("small",), shows="seen"),
        item("large", "fine", tiny=None),
        item("paused", "paused"),
    )
    monkeypatch.setattr(gpu_queue, "ITEMS", items)
    assert run(asked) == PAUSED
    by_name = answers(asked)
    assert {name: answer["status"] for name, answer in by_name.items()} == {
        "broken": FAILED, "endless": FAILED, "fine": ANSWERED, "large": NEEDS, "paused": UNDER_WAY,
    }  # fmt: skip
    assert by_name["broken"]["text"].splitlines()[0] == "before"
    assert by_name["broken"]["text"].splitlines()[-1] == "ValueError: how sad"
    told = by_name["endless"]["text"].splitlines()
    assert told[0] == "begun" and told[-1].startswith("stopped after")
    assert "KeyboardInterrupt" in told  # it could tell what it had seen so far
    assert by_name["fine"]["text"] == "seen"
    assert "told ['cpu', 'small']" in (asked / "work" / "fine.log").read_text()
    page = (asked / "out" / "answers.md").read_text()
    assert "how sad" in page
    assert "| fine: ? | answered |" in page
    with tarfile.open(asked / "out" / "receipts.tar.xz") as archive:
        assert {"seen", "fine.log", "broken.log"} <= set(archive.getnames())
    said = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["broken", "endless", "fine", "large", "paused"]
    assert run(asked) == PAUSED
    assert (asked / "work" / "seen").read_text() == "seen\n"
    said = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["large", "paused", "broken", "endless"]


def test_when_the_time_is_over_the_rest_is_left(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was stopped by that is under way, not failed."""
    monkeypatch.setattr(gpu_queue, "ITEMS", (item("endless", "endless"), item("fine", "fine", "{work}/seen")))
    assert run(asked, seconds=1.0) == PAUSED
    assert {name: answer["status"] for name, answer in answers(asked).items()} == {"endless": UNDER_WAY}
    assert "| fine: ? | not reached |" in (asked / "out" / "answers.md").read_text()


@pytest.mark.parametrize(("code", "status"), [(0, ANSWERED), (1, FAILED)])
def test_processes_share_a_sweep(code: int, status: str, asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first finds the runs, and the others find them at work elsewhere: what the first says counts."""
    (asked / "first.py").write_text(
        "import os, sys\ntry: os.mkdir(sys.argv[1])\nexcept OSError: sys.exit(75)\n"
        "print('mine'), sys.exit(int(sys.argv[2]))"
    )
    monkeypatch.setattr(gpu_queue, "ITEMS", (item("shared", "first", "{work}/place", str(code), processes=3),))
    run(asked)
    assert answers(asked)["shared"]["status"] == status
    assert (asked / "work" / "shared.log").read_text() == "mine\n"


def test_what_comes_back_is_small(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = asked / "work"
    monkeypatch.setattr(gpu_queue, "MOST", 1000)
    for name, size in (
        ("a.log", 300),
        ("b.json", 600),
        ("c.log", 500),
        ("w.safetensors", 250),
        ("checkpoint.json", 10),
    ):
        (work / name).write_bytes(b"x" * size)
    (asked / "packed").write_bytes(gpu_queue._packed(work))
    with tarfile.open(asked / "packed") as archive:
        assert archive.getnames() == ["a.log", "c.log"]


@pytest.mark.parametrize("dry", [False, True])
def test_every_command_composes(dry: bool) -> None:
    for entry in gpu_queue.ITEMS:
        words = gpu_queue.words_of(entry, Path("runs/gpu"), 3.0, dry)
        assert words[0] == sys.executable
        assert words[1] == "-m" or (CHECKOUT / words[1]).is_file()
        if words[1:3] == ["-m", "lra"] and not (dry and entry.tiny is None):
            overrides = [word for word in words[4:] if word != "--multirun"]
            cfg = composed(
                *(word.replace(",", "") if "," not in word else _first(word) for word in overrides), config=words[3]
            )
            assert cfg["device"] == ("cpu" if dry else "cuda")


def _first(override: str) -> str:
    return override if "[" in override else override.partition(",")[0]


def test_the_page_has_the_queue() -> None:
    assert "\n".join(gpu_queue.table()) in PAGE.read_text()
    assert len({entry.name for entry in gpu_queue.ITEMS}) == len(gpu_queue.ITEMS)


def test_first_contact_sees_what_differs() -> None:
    assert gpu_smoke.verdict([1e-7, 1e-6, 1e-5], [1e-7, 1e-6, 1e-5], "fp32") == "agrees"
    assert gpu_smoke.verdict([1e-7, 1e-3, 1e-5], [1e-7, 1e-6, 1e-5], "fp32") == "DIFFERS: gradient"
    assert gpu_smoke.verdict([float("nan"), 0, 0], [1e-7, 1e-6, 1e-5], "bf16") == "DIFFERS: loss"
    by_precision = {precision: errors for precision, errors, _ in gpu_smoke.compared("linear", "paper", "cpu")}
    assert all(1e-9 < error < 1e-4 for error in by_precision["fp32"][:2])
    assert all(1e-5 < error < 0.1 for error in by_precision["bf16"][:2])


def test_noise_moves_less_than_two_bytes_a_value() -> None:
    """And all passes of a block move less than a fifth of what the plain operations do."""
    pytest.importorskip("triton", reason="Triton is not installed")
    whole = memory_traffic.sizes_of(
        "task=listops", "system=simple", "model.dim=128", "model.mlp_dim=512", "train.batch_size=4"
    )
    sizes = memory_traffic.Sizes(whole.documents, 61, whole.architecture)
    plain, fused = (memory_traffic.bytes_of(sizes, fuse=fuse, dropout=0.1) for fuse in (False, True))
    assert 0 < fused.words <= 2 * sizes.values(128 + 512)
    assert fused.total < plain.total / 5


def test_a_pass_reads_and_writes_each_value_once() -> None:
    """By hand, for what is as large as the hidden layer, in bf16: 4 bytes forward, 6 backward, and the sums."""
    pytest.importorskip("triton", reason="Triton is not installed")
    x, moved = torch.empty(64, 128, device="meta", dtype=torch.bfloat16), memory_traffic.Moved()
    kernels = memory_traffic.fused.kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "launch", moved.launch)
        kernels.activate(x, None, None, "gelu")
        assert moved.total == 4 * x.numel()
        kernels.activate_backward(x, x, None, None, "gelu")
        assert moved.total == 10 * x.numel()
        *_, moments = kernels.join(x, x, None, None, 1.0, (x[0], x[0], 1e-5), x.dtype)
        assert moved.total == 18 * x.numel() + 2 * x[0].nbytes + moments.nbytes


def test_shell_words_of_the_page_are_those_that_run() -> None:
    lines = [line for line in gpu_queue.table() if "`python " in line]
    assert len(lines) == len(gpu_queue.ITEMS)
    for entry, line in zip(gpu_queue.ITEMS, lines, strict=True):
        assert len(shlex.split(line.split("`")[1])) == len(entry.command) + 1


def test_the_server_for_several_processes_ends_with_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(
        f'#!/bin/bash\necho "$* $([ -n "$1" ] || cat) ${{CUDA_MPS_PIPE_DIRECTORY##*/}}" >>{tmp_path}/told\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu_queue, "MPS", tmp_path / "pipes")
    with pytest.raises(SystemExit), gpu_queue.overlapping():
        assert (tmp_path / "pipes").is_dir()
        sys.exit(PAUSED)
    assert (tmp_path / "told").read_text().split() == ["-d", "pipes", "quit", "pipes"]
    assert not (tmp_path / "pipes").exists()
