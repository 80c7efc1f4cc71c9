"""Locks: one holder at a time, known by name, and gone with it; file systems that cannot promise that are named."""

import errno
import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.core import locks
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import LOCK

HOLD = """
import sys, time
from pathlib import Path
from lra.core.locks import hold
with hold(Path(sys.argv[1]), 0):
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / LOCK


@pytest.fixture
def other(path: Path):
    """Another process that holds the lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_it_says_who_holds_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.holder(path) is None
    holder = f"{platform.node()}, process {os.getpid()}"
    with locks.hold(path, 0):
        assert locks.holder(path) == holder
        with pytest.raises(locks.Held, match=f"^{holder}$"), locks.hold(path, 0):
            pass
    assert locks.holder(path) is None
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with locks.hold(path, 0):
        assert locks.holder(path) == f"{holder}, SLURM job 17"


@pytest.mark.parametrize("replaced", [False, True])
def test_who_lost_a_lock_writes_nothing_more_beside_it(path: Path, replaced: bool) -> None:
    note = path.with_name("note")
    with locks.hold(path, 0):
        write_atomic(note, b"mine")
        path.unlink()
        if replaced:
            path.touch()
        with pytest.raises(UserError, match=f"{path}: deleted or replaced while it was held"):
            write_atomic(note, b"more")
        write_atomic(path.parent / "elsewhere" / "note", b"its own")
    write_atomic(note, b"not held")
    assert note.read_bytes() == b"not held"


def test_a_lock_that_was_removed_while_somebody_waited_for_it_is_taken_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = locks._taken

    def removed(*arguments: object) -> bool:
        monkeypatch.setattr(locks, "_taken", taken)
        path.unlink()
        return taken(*arguments)

    monkeypatch.setattr(locks, "_taken", removed)
    with locks.hold(path, 0):
        assert locks.holder(path) == f"{platform.node()}, process {os.getpid()}"


def test_a_suspended_process_is_a_holder_and_a_killed_one_is_not(path: Path, other: subprocess.Popen) -> None:
    other.send_signal(signal.SIGSTOP)
    while "T" not in Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]:
        time.sleep(0.01)
    assert locks.holder(path) == f"{platform.node()}, process {other.pid}"
    with pytest.raises(locks.Held), locks.hold(path, 0.2):
        pass
    other.kill()
    other.wait()
    assert locks.holder(path) is None
    with locks.hold(path, 0):
        assert locks.holder(path) == f"{platform.node()}, process {os.getpid()}"


def test_patience_outlasts_who_only_looks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds a shared lock for an instant."""
    path.touch()
    with open(path) as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert locks.holder(path) is None, "those who look do not see each other"
        with pytest.raises(locks.Held), locks.hold(path, 0):
            pass
        monkeypatch.setattr(locks.time, "sleep", lambda seconds: look.close())
        with locks.hold(path, 60):
            assert look.closed


def test_a_child_that_lives_on_does_not_keep_it(path: Path) -> None:
    """A child forked meanwhile, as a logger's, has the descriptor, too."""
    with locks.hold(path, 0):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
    try:
        assert locks.holder(path) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("reason", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    """Never a lock of another kind instead, which outlives its holder."""

    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="has no locks .* choose a folder elsewhere"), locks.hold(path, 0):
        pass
    assert not any(path.parent.glob("*.soft*"))


@pytest.mark.parametrize(
    ("place", "option"),
    [("scratch/runs", "localflock"), ("home/runs", None), ("", None), ("nfs 3/runs", "local_lock=all")],
)
def test_locks_that_other_machines_do_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, option: str | None
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw,relatime 0 0\n"
        f"mgs:/fs {tmp_path}/scratch lustre rw,localflock,lazystatfs 0 0\n"
        f"server:/home {tmp_path}/home nfs4 rw,vers=4.2,local_lock=none,addr=10.0.0.1 0 0\n"
        f"server:/old {tmp_path}/nfs\\0403 nfs rw,vers=3,local_lock=all 0 0\n"
    )
    monkeypatch.setattr(locks, "MOUNTS", mounts)
    assert locks.of_one_host(tmp_path / place) == option
