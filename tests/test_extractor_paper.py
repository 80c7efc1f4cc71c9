"""The Extractor paper's tables against operations that are counted one by one, and its cost curves."""

import csv
import io
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support import mixer_of

from lra.errors import UserError
from lra.report import complexity, costs

COUNTED: Counter[str] = Counter()


class Number:
    """A float that counts what is done with it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __add__(self, other: "Number") -> "Number":
        COUNTED["additions"] += 1
        return Number(self.value + other.value)

    def __mul__(self, other: "Number") -> "Number":
        COUNTED["multiplications"] += 1
        return Number(self.value * other.value)

    def __truediv__(self, other: "Number") -> "Number":
        COUNTED["divisions"] += 1
        return Number(self.value / other.value)

    def exp(self) -> "Number":
        COUNTED["exponentiations"] += 1
        return Number(math.exp(self.value))


Vector = list[Number]


def total(values: list) -> Number:
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def add(one: Vector, two: Vector) -> Vector:
    return [a + b for a, b in zip(one, two, strict=True)]


def times(x: Vector, matrix: list[Vector]) -> Vector:
    """x [d] by matrix [d][e]."""
    return [total([a * row[column] for a, row in zip(x, matrix, strict=True)]) for column in range(len(matrix[0]))]


def numbers(x: torch.Tensor) -> list:
    return [numbers(row) for row in x] if x.dim() else Number(x.item())


def attention_token(x: list[Vector], t: int, known: list, weights: dict, heads: int) -> Vector:
    """Eq. 7-14 for the token at length t; keys and values of the earlier ones are in `known`."""
    q, k, v = (times(x[t - 1], weights[name]) for name in ("query", "key", "value"))
    known.append((k, v))
    width, out = len(q) // heads, []
    root = Number(math.sqrt(width))
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        dots = [total([a * b for a, b in zip(q[part], k[part], strict=True)]) / root for k, _ in known]
        powers = [dot.exp() for dot in dots]
        whole = total(powers)
        shares = [power / whole for power in powers]
        rows = [[share * value for value in v[part]] for share, (_, v) in zip(shares, known, strict=True)]
        out += [total([row[column] for row in rows]) for column in range(width)]
    return times(out, weights["out"])


def extractor_token(x: list[Vector], t: int, known: list, weights: dict, heads: int) -> Vector:
    """Eq. 18-20 for the token at length t."""
    extracted = times(x[0], weights["taps"][t - 1])
    for j in range(2, t + 1):
        extracted = add(extracted, times(x[j - 1], weights["taps"][t - j]))
    adjusted = [a * b for a, b in zip(times(x[t - 1], weights["adjust"]), extracted, strict=True)]
    return times(adjusted, weights["out"])


def square(layer: torch.nn.Module) -> list:
    return numbers(layer.weight.detach().T)


def attention_weights(mixer: torch.nn.Module) -> dict:
    return {name: square(getattr(mixer, name)) for name in ("query", "key", "value", "out")}


def extractor_weights(mixer: torch.nn.Module) -> dict:
    """weight[o, i, t] is entry (i, o) of the matrix of lag l - 1 - t."""
    taps = mixer.weight.detach().permute(2, 1, 0).flip(0)
    return {"taps": numbers(taps), "adjust": square(mixer.adjust), "out": square(mixer.out)}


MODELS = {
    "softmax": (attention_token, attention_weights, complexity.attention_training, complexity.attention_step),
    "extractor": (extractor_token, extractor_weights, complexity.extractor_training, complexity.extractor_step),
}
EXTRACTOR = ("attention.lags=5", "attention.rank=null", "attention.groups=1")


@pytest.mark.parametrize(("name", "heads"), [("softmax", 1), ("softmax", 3), ("extractor", 1)])
def test_the_tables_are_what_is_counted(name: str, heads: int) -> None:
    """Number by number, in a computation whose results are those of our own layers."""
    token, weights_of, training, step = MODELS[name]
    options = EXTRACTOR if name == "extractor" else ("attention.scale=head_dim",)
    sizes = {"dim": 6, "qkv_dim": 6, "heads": heads, "max_len": 5, "bias": False, "out_proj": True, "causal": True}
    mixer = mixer_of(name, *options, **sizes)
    weights = weights_of(mixer)
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    rows, known, outputs = numbers(x[0]), [], []
    COUNTED.clear()
    for t in range(1, 6):
        before = Counter(COUNTED)
        outputs.append([number.value for number in token(rows, t, known, weights, heads)])
        formula = step(6, heads, t)
        assert {key: COUNTED[key] - before[key] for key in complexity.OPERATIONS} == formula, t
    formula = training(6, heads, 5)
    assert formula.pop("parameters") == sum(parameter.numel() for parameter in mixer.parameters())
    assert {key: COUNTED[key] for key in complexity.OPERATIONS} == formula
    torch.testing.assert_close(torch.tensor(outputs, dtype=torch.float64), mixer(x)[0])


def test_the_paper_s_sizes() -> None:
    """2,129,920 parameters in an Extractor, 65,536 in self-attention; the closed forms that the paper prints."""
    assert complexity.extractor_training(128, 1, 128)["parameters"] == 2_129_920
    assert complexity.attention_training(128, 8, 128)["parameters"] == 65_536
    for d, length in ((128, 128), (7, 11)):
        found = complexity.extractor_training(d, 1, length)
        assert 2 * found["multiplications"] == length**2 * d**2 + 5 * length * d**2 + 2 * length * d
        assert 2 * found["additions"] == length**2 * d**2 + 5 * length * d**2 - 6 * length * d
    page = subprocess.run([sys.executable, "-m", "lra.report.complexity"], capture_output=True, text=True, check=True)
    assert "| parameters | 65,536 | 65,536 | 2,129,920 |" in page.stdout


def test_quartiles_are_of_whole_windows() -> None:
    values = np.arange(250.0)
    found = costs.quartiles(values)
    assert found.tolist() == [[24.75, 49.5, 74.25], [124.75, 149.5, 174.25]]


def test_cost_curves_of_a_folder(tmp_path: Path) -> None:
    for case, shift in (("one", 0.0), ("two", 5.0)):
        for seed in (1, 2):
            folder = tmp_path / case / f"seed{seed}"
            folder.mkdir(parents=True)
            settings = {"case": case}
            costs.record.write(folder, {"settings": settings, "attention": "a", "variant": "v", "seed": seed})
            np.save(folder / "costs.npy", np.arange(300.0) + shift + seed)
    subprocess.run([sys.executable, "-m", "lra.report.costs", str(tmp_path)], capture_output=True, check=True)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "costs.csv").read_text())))
    assert len(rows) == 2 * 2 * 3
    assert rows[-1] == {
        "model": "case=two", "seed": "2", "batches": "300",
        "first_quartile": "231.75000", "median": "256.50000", "third_quartile": "281.25000",
    }  # fmt: skip
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"no costs.npy below it"):
        costs.read(tmp_path / "one" / "seed1" / "nothing")
