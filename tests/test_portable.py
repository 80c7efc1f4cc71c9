"""Without Linux-only features: runs do without them, other commands report it in one line."""

import ctypes
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import Commands

from lra.cli import report, train
from lra.core.signals import ASKING

LINUX_ONLY = ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "copy_file_range", "pipe2")


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, no affinity, and a C library without the calls of glibc and of Linux."""

    def without_proc(function: Callable) -> Callable:
        def call(path: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return function(path, *rest, **options)

        return call

    for module, name in ((os, "open"), (os, "stat"), (io, "open")):
        monkeypatch.setattr(module, name, without_proc(getattr(module, name)))
    for name in LINUX_ONLY:
        monkeypatch.delattr(os, name, raising=False)
    library = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *rest: library(name, *rest) if name else SimpleNamespace())


@pytest.mark.usefixtures("mac")
def test_a_run_and_its_report_without_what_linux_has(cli: Commands) -> None:
    assert not Path("/proc/self/status").exists()
    words = ("experiment=smoke", "train.steps=3", "train.warmup=1", "train.eval_every=3", "out=trained")
    code, _, err = cli(train.main, *words)
    assert code == 0, err
    [record] = [json.loads(path.read_text()) for path in Path("trained").rglob("record.json")]
    assert (record["status"], record["peak_memory_bytes"]) == ("finished", None)
    code, _, err = cli(report.main, "trained")
    assert code == 0, err


def test_windows_is_one_line_of_every_command() -> None:
    """In a process of its own, because there are modules and signals that Windows lacks."""
    lacking = [f"del signal.{number.name}" for number in ASKING if number not in (signal.SIGTERM, signal.SIGINT)]
    code = "; ".join(["import signal, sys", *lacking, "sys.modules['fcntl'] = sys.modules['resource'] = None"])
    code += "; sys.platform = 'win32'; sys.argv[1:] = ['train', '--help']; from lra.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "lra-train: error: lra runs on Linux and macOS; on Windows it runs in WSL\n"
