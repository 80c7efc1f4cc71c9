"""Check each mechanism of Table 1 on an accelerator: its numbers under bf16 against the CPU's, and equal bits twice.

The output and the gradient of a layer are compared with those in float64 on the CPU. So are the CPU's own under bf16,
whose error is that of rounding alone. Softmax attention is checked packed, too, which there is FlashAttention. For
`bash scripts/lease.sh check`; without an accelerator the CPU is both.
"""

import copy
import os
import time
from functools import cache

import numpy as np
import torch
import yaml
from torch import Tensor, nn

import lra
from lra.core.paths import table1_file
from lra.ops.dropout import set_keys
from lra.ops.packing import Packed

MARGIN, FLOOR = 4.0, 1e-2  # times the CPU's error, for sums in another order; below the floor it is rounding
SHAPE = 3, 131, 32  # documents, positions, width
LENGTHS = 131, 1, 57  # of documents of a packed batch


@cache
def built(name: str, dropout: float) -> nn.Module:
    """A layer, with the same weights every time."""
    torch.manual_seed(1)
    return lra.attention(name, width=SHAPE[2], heads=2, max_len=SHAPE[1], dropout=dropout).train()


def mixed_packed(layer: nn.Module, x: Tensor) -> Tensor:
    """Outputs of packed documents at real positions, the first of which is computed alone and added, too."""
    packed = Packed.of(np.array(LENGTHS), SHAPE[1], x.device)
    set_keys(layer, seed=1, step=0, rows=range(len(x)))
    all_positions, first = (layer.mixer.mix(packed.unpad(x), None, reads, packed) for reads in (None, 1))
    y = packed.pad(all_positions) * packed.mask.unsqueeze(-1)
    return torch.cat([y[:, :1] + first, y[:, 1:]], dim=1)


def step(name: str, device: str, precision: torch.dtype, dropout: float, packed: bool) -> list[Tensor]:
    """The output and the gradient of one forward and backward pass, in float64 on the CPU."""
    layer = copy.deepcopy(built(name, dropout))
    torch.manual_seed(2)
    x, weights = torch.randn(2, *SHAPE)
    exact = torch.float64 if precision == torch.float64 else torch.float32
    layer, x, weights = layer.to(device, exact), x.to(device, exact).requires_grad_(), weights.to(device, exact)
    with torch.autocast(device, torch.bfloat16, enabled=precision == torch.bfloat16):
        y = mixed_packed(layer, x) if packed else layer(x)
    (y * weights).sum().backward()
    gradients = [parameter.grad.flatten() for parameter in layer.parameters() if parameter.grad is not None]
    return [value.detach().double().cpu() for value in (y, torch.cat([x.grad.flatten(), *gradients]))]


def error(values: list[Tensor], exact: list[Tensor]) -> float:
    """The larger relative error of output and gradient."""
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(values, exact, strict=True))


def main() -> int:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    device, begun, wrong = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic(), 0
    systems = yaml.safe_load(table1_file().read_text())["systems"]
    names = dict.fromkeys(row["attention"] for row in systems if "attention" in row)
    for name, packed in [*((name, False) for name in names), ("softmax", True)]:
        exact = step(name, "cpu", torch.float64, 0.0, packed)
        there, here = (error(step(name, place, torch.bfloat16, 0.0, packed), exact) for place in (device, "cpu"))
        first, second = (step(name, device, torch.bfloat16, 0.1, packed) for _ in range(2))
        faults = [] if there <= max(MARGIN * here, FLOOR) else ["other numbers than the CPU"]
        faults += [] if all(map(torch.equal, first, second)) else ["other bits the second time"]
        wrong += bool(faults)
        verdict = ", ".join(faults) or "agrees"
        seconds = time.monotonic() - begun
        label = f"{name}, packed" if packed else name
        print(f"{seconds:3.0f} s {label:16} error {there:.1e}, CPU {here:.1e}: {verdict}", flush=True)
    print(f"{device}: {wrong} mechanisms differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
