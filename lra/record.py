"""The record of a run: every number with what made it. Written whole or not at all."""

import hashlib
import json
import math
import os
import platform
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lra import __version__, paths
from lra.errors import UserError
from lra.files import digest, explained, open_to_write, read_json, read_regular, write_json

CONTENTS_BYTES = 2**32  # the most that is read of a file beside a record
SCHEMA = 2  # of records and declarations
NAME = "record.json"
METRICS = "metrics.jsonl"
CONFIG, ERRORS, LOCK = "config.json", "error.log", ".run.lock"  # a run's identity; why it failed; who is at work on it
STATUSES = ("finished", "diverged", "failed", "paused")
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf")


def read(path: Path) -> dict[str, Any]:
    """The record in a file, without the SHA-256 it was written with. Raises ValueError with the file's name where it
    is none, or is not what was written."""
    try:
        record = read_json(path)
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}")
        if record.pop("sha256", None) != digest(record):
            raise ValueError("its content is not what its SHA-256 says")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable record: {error}") from None
    return record


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write `record.json`, with a SHA-256 of the rest; non-finite numbers become null, since JSON has none."""
    whole = _finite({**record, "schema": SCHEMA})
    write_json(folder / NAME, {"sha256": digest(whole), **whole})


def sha256(folder: Path, *names: str) -> dict[str, str]:
    """The SHA-256 of those of the files that a folder has, by name."""
    found = {}
    for name in names:
        if (folder / name).is_file():
            with open(folder / name, "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def contents(path: Path, record: dict[str, Any]) -> bytes:
    """A file that a run left beside its record. Raises ValueError, or OSError, where it is not what the record says."""
    data = read_regular(path, CONTENTS_BYTES)
    expected = record.get("files", {}).get(path.name)
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise ValueError(f"{path}: its SHA-256 is not that of its record")
    return data


def declared(path: Path) -> list[dict[str, Any]]:
    """The cells that a `sweep.json` declares. Raises ValueError with its name where it is not what was written."""
    try:
        found = read_json(path)
        if found["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}")
        if found.get("sha256") != digest(found["cells"]):
            raise ValueError("its content is not what its SHA-256 says")
        return found["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not what a sweep declares: {type(error).__name__}: {error}") from None


def declare(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write a `sweep.json`, with the SHA-256 of its cells."""
    write_json(path, {"schema": SCHEMA, "sha256": digest(cells), "cells": cells})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def differences(one: Any, other: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted key, value, other value) wherever two nested dictionaries differ; a key that is missing is None."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        parts = ((one.get(name), other.get(name), f"{key}.{name}" if key else name) for name in names)
        return [found for part in parts for found in differences(*part)]
    return [] if one == other else [(key, one, other)]


class Metrics:
    """`metrics.jsonl`: one line per evaluation, flushed as it comes. `earlier`: what `write` returned before the
    checkpoint that a run goes on from; the lines after it are written again."""

    def __init__(self, folder: Path, earlier: dict[str, Any] | None) -> None:
        self._path = folder / METRICS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(open_to_write(self._path, os.O_RDWR | os.O_APPEND), "a+b")
            self._file.seek(0)
            kept = self._file.read(earlier["bytes"]) if earlier else b""
            self._sha = hashlib.sha256(kept)
            if earlier and self._sha.hexdigest() != earlier["sha256"]:
                raise UserError(
                    f"{self._path} is not what it was when the run was paused; delete the folder to train anew"
                )
            self._file.truncate(len(kept))
        except ValueError as error:
            raise UserError(f"{self._path}: {error}; delete it") from None
        except OSError as error:
            raise explained(error, self._path, 0) from error

    def write(self, **line: Any) -> dict[str, Any]:
        """Add a line; returns the size and the SHA-256 of the file."""
        data = (json.dumps(_finite(line)) + "\n").encode()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise explained(error, self._path, len(data)) from error
        self._sha.update(data)
        return {"bytes": self._file.tell(), "sha256": self._sha.hexdigest()}

    def read(self) -> bytes:
        """What stands in the file."""
        return self._path.read_bytes()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a line that could not be written, which has been said
            self._file.close()


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(data_digest: str, device: str) -> dict[str, Any]:
    """What the bits of a result depend on besides the configuration."""
    import torch

    return {
        "data_sha256": data_digest,
        "lra": __version__,
        "torch": metadata.version("torch"),
        "threads": torch.get_num_threads(),
        "device": _device(device),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _device(name: str) -> str:
    import torch

    return torch.cuda.get_device_name() if name == "cuda" else name


def provenance(config: dict, data_digest: str | None, device: str, precision: str, started: str) -> dict[str, Any]:
    """Where a number comes from: code, configuration, data, packages and machine."""
    import torch

    return {
        "lra": __version__,
        **_commit(),
        "config_sha256": digest(config),
        "data_sha256": data_digest,
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": _device(device),
        "precision": precision,
        "started": started,
        "finished": now(),
    }


def _commit() -> dict[str, Any]:
    """Commit of the checkout that this code runs from, and whether tracked code differs from it; the version, where it
    runs from no checkout."""
    if not (paths.CHECKOUT / ".git").exists():
        return {"commit": f"lra {__version__}, installed", "dirty": None}
    try:
        head = _git("rev-parse", "HEAD").strip()
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", "lra", "conf", "pyproject.toml")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": head, "dirty": bool(changes.strip())}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(paths.CHECKOUT), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # not elsewhere
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


class PeakMemory:
    """Peak memory in bytes since construction: of the device, or resident memory of this process on Linux."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
        else:
            self._resettable = _reset_resident_peak()

    def read(self) -> int | None:
        if self.device == "cuda":
            import torch

            return torch.cuda.max_memory_allocated()
        if not self._resettable:
            return None
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return os.path.exists("/proc/self/status")


class Stopwatch:
    """Seconds since construction, from the monotonic clock."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def read(self) -> float:
        return time.monotonic() - self._start
