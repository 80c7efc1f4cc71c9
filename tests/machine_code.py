"""Kernels compiled for accelerators that need not be there."""

import re
import subprocess
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ARCHES = (80, 90, 100)  # A100, H100, B200
DEFAULT = {(90, "bf16"), (90, "fp64")}  # a kernel takes seconds, so the others are slow tests

over_targets = pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        pytest.param(*target, marks=[] if target in DEFAULT else [pytest.mark.slow])
        for target in product(ARCHES, ("bf16", "fp32", "fp64"))
    ],
)


def compiled(
    kernel: Callable,
    types: dict[str, str],
    constants: dict[str, object],
    arch: int,
    *,
    aligned: Sequence[str] = (),
    **options: object,
) -> Any:
    """What Triton makes of a kernel. `aligned`: the arguments that are multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget

    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    hints = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = triton.compiler.ASTSource(kernel, signature, constants, hints)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def stack_of(made: Any) -> int:
    """Bytes of memory that a thread takes where registers do not suffice, by the cuobjdump that comes with Triton."""
    import triton

    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(made.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", said))
