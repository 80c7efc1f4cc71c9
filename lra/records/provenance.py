"""Collect the provenance of a run: code, configuration, data, packages and machine."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lra.core import paths
from lra.core.console import say
from lra.core.files import digest
from lra.core.paths import __version__
from lra.core.streams import NOISE_VERSION

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf")


def now() -> str:
    """Return the current UTC time in ISO 8601 format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(data_digest: str | None, device: str) -> dict[str, Any]:
    """Return the conditions, besides the configuration, that can change bits of a result: data, versions, hardware."""
    import torch

    return {
        "data_sha256": data_digest,
        "lra": __version__,
        "torch": metadata.version("torch"),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "noise": NOISE_VERSION,
    }


def provenance(config: dict, data_digest: str | None, device: str, precision: str, started: str) -> dict[str, Any]:
    """Return the fields of `Provenance`, without `backend` and `products`, for a run from `started` until now."""
    conditions = environment(data_digest, device)
    del conditions["torch"]  # `packages` contains it
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if path.exists() else []
    cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # Processors with the same name may round differently.
    numbers = [cpu.get(key) for key in ("cpu family", "model", "stepping")]
    return {
        **conditions,
        **_commit(),
        "config_sha256": digest(config),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu.get("model name") or platform.processor() or "unknown",
        "cpu_model": "/".join(map(str, numbers)) if any(numbers) else None,
        "precision": precision,
        "started": started,
        "finished": now(),
    }


def _commit() -> dict[str, Any]:
    """Return `commit` and `dirty` of the checkout from which this code runs.

    `dirty` is True if the code or the option files in conf/ have uncommitted changes. For an installed package,
    `commit` is the version.
    """
    if not (paths.CHECKOUT / ".git").exists():
        return {"commit": f"lra {__version__}, installed", "dirty": None}
    try:
        head = _git("rev-parse", "HEAD").strip()
        changes = _git(
            "status", "--porcelain", "--untracked-files=all", "--", "lra", "conf", "hydra_plugins", "pyproject.toml"
        )
    except (OSError, subprocess.CalledProcessError) as error:  # for example because another user owns the checkout
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        say(f"the commit of {paths.CHECKOUT} is not recorded: {reason}")
        return {"commit": None, "dirty": None}
    return {"commit": head, "dirty": bool(changes.strip())}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(paths.CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
