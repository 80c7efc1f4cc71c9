"""The first half minute on an accelerator: one update of a small model with every attention, there and on the CPU.

    python scripts/gpu_smoke.py [--device cuda]

In fp32 and under bf16. The loss, the gradient and the change of the weights are compared with those in float64 on a
CPU, and so are the CPU's own in the same precision, which say how far rounding alone leads. Dropout is on: the CPU
draws the noise of accelerators here.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lra.config import configure
from lra.config.compose import compose, options
from lra.core.console import say
from lra.core.errors import UserError
from lra.data import TaskSpec
from lra.model.architecture import Architecture
from lra.model.model import Model
from lra.ops import dropout
from lra.runs.device import device_of, reproducible

SIZES = ("model.dim=32", "model.qkv_dim=32", "model.heads=2", "model.mlp_dim=131", "model.depth=2", "model.dropout=0.1")
FACTS = TaskSpec(name="contact", version=1, vocab_size=17, max_len=127, classes=5, documents=1)
LENGTHS = (127, 97, 61)  # of the documents
RATE = 1e-3
MARGIN = 4.0  # how many times as far as the CPU an accelerator may be; sums go in another order there
FLOOR = {"fp32": 1e-5, "bf16": 1e-2}  # below this it is rounding, however near the CPU is
PARTS = ("loss", "gradient", "weights")


def built(attention: str, protocol: str) -> Model:
    """A small model, with the same weights every time."""
    cfg = _composed(attention, protocol)
    build = configure.build(cfg["attention"], "attention", [], supplied=1)
    configure.check(Architecture, cfg["model"], "model.")
    torch.manual_seed(1)
    return Model(build, FACTS, Architecture(**cfg["model"]))


@cache
def _composed(attention: str, protocol: str) -> dict[str, Any]:
    cfg = configure.plain(compose("train", "task=text", f"attention={attention}", f"protocol={protocol}", *SIZES))
    if "backend" in cfg["attention"]:  # others' kernels try sizes for minutes; tests/test_backend.py asks of them
        cfg["attention"]["backend"] = "torch"
    return cfg


def updated(model: Model, device: str, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the gradient and the weights after one update, in float64 on the CPU."""
    rng = torch.Generator().manual_seed(2)
    tokens = torch.randint(1, FACTS.vocab_size, (len(LENGTHS), FACTS.max_len), generator=rng)
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = 0
    model = model.to(device).train()
    before = _flat(model)
    model.redraw(3, 0)
    dropout.set_keys(model, seed=3, step=0, rows=range(len(LENGTHS)))
    if device == "cpu":
        _noise_of_accelerators(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
        logits = model(tokens.to(device))
    loss = cross_entropy(logits.double(), torch.arange(len(LENGTHS), device=device))
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    optimizer.step()
    return loss.detach().double().cpu(), gradient.double().cpu(), _flat(model) - before


def _flat(model: Model) -> Tensor:
    return torch.cat([parameter.detach().double().cpu().flatten() for parameter in model.parameters()])


def _noise_of_accelerators(model: Model) -> None:
    for module in model.modules():
        if isinstance(module, dropout.Keyed):
            module.hashed = True


def compared(attention: str, protocol: str, device: str) -> Iterator[tuple[str, list[float], list[float]]]:
    """For each precision the relative errors of the device and of the CPU: loss, gradient, weights."""
    exact = updated(built(attention, protocol).double(), "cpu", "fp64")
    for precision in FLOOR:
        errors = {
            place: [
                ((actual - expected).norm() / expected.norm()).item()
                for actual, expected in zip(updated(built(attention, protocol), place, precision), exact, strict=True)
            ]
            for place in {device, "cpu"}
        }
        yield precision, errors[device], errors["cpu"]


def verdict(errors: list[float], cpu_errors: list[float], precision: str) -> str:
    """The update's sign hangs on rounding where a gradient is almost zero, so that of bf16 is not judged."""
    parts = zip(PARTS, errors, cpu_errors, strict=True)
    far = [
        part
        for part, error, cpu_error in parts
        if not error <= max(MARGIN * cpu_error, FLOOR[precision]) and not (part == "weights" and precision == "bf16")
    ]
    return f"DIFFERS: {', '.join(far)}" if far else "agrees"


def main() -> int:
    """Prints a line for each attention and precision; 1 where one fails or differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("attentions", nargs="*", help="all of them where none is named")
    given = parser.parse_args()
    try:
        device = device_of(given.device)
    except UserError as error:
        parser.error(str(error))
    wrong, started = 0, time.monotonic()
    reproducible()
    for attention in given.attentions or options("attention"):
        try:
            for precision, differences, cpu_errors in compared(attention, "paper", device):
                told = verdict(differences, cpu_errors, precision)
                wrong += told != "agrees"
                errors = ", ".join(
                    f"{part} {difference:.1e}" for part, difference in zip(PARTS, differences, strict=True)
                )
                at_home = "/".join(f"{error:.1e}" for error in cpu_errors)
                say(f"{attention:28} {precision} {told}: {errors} (CPU {at_home})", to_stdout=True)
        except (RuntimeError, UserError) as error:  # one that fails shall not hide the others
            wrong += 1
            say(f"{attention:28} FAILED: {type(error).__name__}: {error}".splitlines()[0], to_stdout=True)
    say(f"{device}: {wrong} differ or fail, {time.monotonic() - started:.0f} s", to_stdout=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
