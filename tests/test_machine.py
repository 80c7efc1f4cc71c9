"""What a run takes of the machine."""

import subprocess
import sys

import pytest

from lra.runs import device
from lra.runs.device import KeptMemory

# What is resident, in bytes: after a first part, after one that needed much more, and after the bound has seen that.
PARTS = """
import torch
from lra.runs.device import KeptMemory, keep_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.set_num_threads(1)
keep_memory()
memory = KeptMemory()
memory.between_parts()
first = resident()
blocks = [torch.ones(1 << 18) for _ in range(2 * first >> 20)]
held_by_one = blocks[-1]  # the top of the heap, so that nothing is given back by itself
del blocks
freed = resident()
memory.between_parts()
print(first, freed, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is told what to keep")
def test_memory_that_no_later_part_needs_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PARTS], capture_output=True, text=True, check=True)
    first, freed, bounded = map(int, done.stdout.split())
    assert freed > 2.5 * first
    assert bounded < 1.1 * first


@pytest.mark.parametrize("needs", [(700, 60, 400, 90, 1200), (50, 900), (100, 200, 300, 400, 500, 600)])
def test_memory_that_later_parts_need_again_is_kept(monkeypatch: pytest.MonkeyPatch, needs: tuple[int, ...]) -> None:
    """Parts of many lengths: one that needs little, seen alone, must not have the memory of the others given back."""
    base, held, given_back = 100, 0, 0

    def trim() -> None:
        nonlocal held, given_back
        held, given_back = 0, given_back + 1

    monkeypatch.setattr(device, "resident_pages", lambda: base + held)
    monkeypatch.setattr(device, "trim_memory", trim)
    memory = KeptMemory()
    for part in range(1000):
        held = max(held, needs[part % len(needs)])  # what is free serves the next part
        memory.between_parts()
    assert given_back <= 1000 / device.CALM + 10
