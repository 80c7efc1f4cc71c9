"""What of the machine a run takes: device, threads, memory; and what it needed."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import torch

from lra.core import locks
from lra.core.errors import UserError
from lra.data import default_workers
from lra.training import distributed

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of mallopt(3)
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
GROWTH, WIDER, CALM = 1.5, 1.25, 50  # of a process between parts: its least bound, a step of the bound, parts


def device_of(name: str) -> str:
    """cpu or cuda, for auto, cpu or cuda."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device=cuda: no CUDA device is available; use device=auto or device=cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def reproducible() -> None:
    """Let PyTorch only use what gives the same numbers every time. It need not fill memory before: that shows who reads
    what was never written, and takes 1 % of a training step on a CPU."""
    os.environ.setdefault(CUBLAS, ":4096:8")  # without it, older PyTorch refuses products on CUDA
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextmanager
def restore_torch_state() -> Iterator[None]:
    """Set PyTorch's threads and determinism, and the variable that goes with it, which a run sets for the whole
    process, back to what they were."""
    variable = os.environ.get(CUBLAS)
    numbers, threads = torch.utils.deterministic, torch.get_num_threads()
    level, filled = torch.get_deterministic_debug_mode(), numbers.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(level)
        numbers.fill_uninitialized_memory = filled
        if variable is None:
            os.environ.pop(CUBLAS, None)


def keep_memory() -> None:
    """Let glibc keep what tensors free. By default it gives blocks above 32 MiB back to the system and has them
    cleared anew for every operation, which takes a tenth to a third of a training step on a CPU."""
    _tell_malloc({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1})


def release_memory() -> None:
    """Let glibc give every block above 128 KiB back to the system: the opposite of `keep_memory`."""
    _tell_malloc({M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 2**17})


def _tell_malloc(values: dict[int, int]) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in values.items():
            libc.mallopt(parameter, value)


def trim_memory() -> None:
    """Give all that is free back to the system."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


class KeptMemory:
    """Bounds what `keep_memory` holds. Where sizes change from part to part, free blocks are cut into pieces that fit
    no later part, and memory grows: to six times the need in an evaluation of texts sorted by length.

    To clear memory anew takes as long as a part does. So the bound is wider after each time that memory was given back,
    and falls again while it need not be: in the long run that happens once in `CALM` parts at most.
    """

    def __init__(self) -> None:
        self._needed: int | None = None  # resident after the first part since memory was given back
        self._bound = GROWTH  # times that
        self._calm = 0  # parts since then, or since the bound fell

    def between_parts(self) -> None:
        """Give all that is free back to the system where this process has grown beyond its bound."""
        pages = resident_pages()
        self._calm += 1
        if self._needed is None:
            self._needed = pages
        elif pages > self._bound * self._needed:
            trim_memory()
            self._needed, self._calm = None, 0
            self._bound *= WIDER
        elif self._calm == CALM:
            self._calm, self._bound = 0, max(GROWTH, self._bound / WIDER)


def resident_pages() -> int:
    """Pages of this process in memory; 0 where it is not Linux."""
    try:
        return int(os.pread(_statm(os.getpid()), 128, 0).split()[1])
    except OSError:
        return 0


@cache
def _statm(process: int) -> int:
    """A descriptor that stays open, since opening the file takes ten times as long as reading it."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY)


@contextmanager
def assign_gpu(device: str, number: int) -> Iterator[None]:
    """Let the `number`-th job take a GPU where there are several; ranks of one job take the GPU of their number."""
    gpus = torch.cuda.device_count() if device == "cuda" and distributed.started_with() == 1 else 1
    with ExitStack() as stack:
        if gpus > 1:
            torch.cuda.set_device(_take_gpu(stack, number, gpus))
        yield


def _take_gpu(stack: ExitStack, number: int, gpus: int) -> int:
    """The first GPU from the `number`-th on that no other job of this user here has taken; the `number`-th where all
    are taken."""
    for gpu in ((number + further) % gpus for further in range(gpus)):
        name = f"lra-gpu-{os.getuid()}-{torch.cuda.get_device_properties(gpu).uuid}.lock"
        with suppress(locks.Held):
            stack.enter_context(locks.hold(Path(gettempdir()) / name, patience=0))
            return gpu
    return number % gpus


def threads_at_hand() -> int:
    """The cores that this process may use: what its launcher granted, shared among the ranks here."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        granted = os.environ.get(name)
        if not granted:
            continue
        first = granted.partition(",")[0].strip()  # OpenMP takes a list, one number for each level of nesting
        if not first.isdecimal() or int(first) < 1:
            raise UserError(f"{name}={granted}: expected a number of threads; set it anew, or say threads=...")
        return int(first)
    return max(1, default_workers() // distributed.local()[1])


class PeakMemory:
    """Peak memory in bytes since construction: of the device, or resident memory of this process on Linux."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            self._resettable = _reset_resident_peak()

    def read(self) -> int | None:
        if self.device == "cuda":
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
