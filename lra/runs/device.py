"""Choose the device and number of threads of a run, and configure and measure its memory."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import torch

from lra.core.errors import UserError
from lra.datasets.task import default_workers
from lra.training import distributed

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameter numbers of mallopt(3), from malloc.h


def device_of(name: str) -> str:
    """Return `cpu` or `cuda`; `auto` means CUDA if there is a GPU. Raises UserError for `cuda` without a GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device=cuda: no CUDA device is available; use device=auto or device=cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def reproducible() -> None:
    """Use deterministic algorithms only; do not fill uninitialised memory, which would take 1 % of a step on a CPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # older PyTorch needs it for products on CUDA
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def keep_memory() -> None:
    """Let glibc reuse freed blocks above 32 MiB, and limit the caches of matrix products.

    Call this function before the first product.

    By default glibc unmaps large blocks, and the system clears new ones for every operation, which takes a tenth to a
    third of a training step on a CPU.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    # By default oneDNN, and PyTorch's cache above it, store half a megabyte for each of the last 1,024 shapes of a
    # product. Micro-batches of real text rarely have equal shapes, and the stored blocks fragment the memory between
    # large tensors: a text run at the published width used 2.7 GB after 24 steps and 7 GB within an hour. With 64
    # shapes the run uses 1.3 GB from step 10 to 36, and 3.3 GB in evaluations of 32 reviews at once. Each cache reads
    # its variable at the first product.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def assign_gpu(device: str, number: int) -> None:
    """Use GPU `number % count` for job `number` of a sweep. Under torchrun, `joined` chooses the GPU by LOCAL_RANK."""
    if device == "cuda" and distributed.started_with() == 1:
        torch.cuda.set_device(number % torch.cuda.device_count())


def threads_at_hand() -> int:
    """Return the number of threads for this process: its launcher's limit, or the machine's cores per rank."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        granted = os.environ.get(name, "").partition(",")[0]  # OMP_NUM_THREADS may list a number per nesting level
        if granted.isdecimal():
            return max(1, int(granted))
    return max(1, default_workers() // distributed.count_here())


class PeakMemory:
    """Meter of the peak memory since construction: GPU memory, or on Linux the resident memory of this process."""

    def __init__(self, device: str) -> None:
        self._cuda, self._reset = device == "cuda", False
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        with suppress(OSError):  # if the file is missing (not Linux) or read-only, `read` returns None
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM, the peak
            self._reset = True

    def read(self) -> int | None:
        """Return the peak in bytes, or None if the system does not report it."""
        if self._cuda:
            return torch.cuda.max_memory_allocated()
        if not self._reset:
            return None
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024  # VmHWM is in kB
