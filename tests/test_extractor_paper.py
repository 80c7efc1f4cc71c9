"""Tables 3 and 4 of the Extractor paper (Chen 2023) against counted operations.

d is the width, n the number of heads, l the length of a training sequence, t the length when one more token is
predicted. Only tokens up to one's own are counted, as in the paper.
"""

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support import mixer_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

Counts = dict[str, int]


def attention_training(d: int, n: int, l: int) -> Counts:  # noqa: E741
    """Table 3, left, for one sequence."""
    return {
        "multiplications": l * l * d + 4 * l * d * d + l * d,
        "additions": l * l * d + 4 * l * d * d - 4 * l * d - l * n,
        "divisions": n * l * l + n * l,
        "exponentiations": n * l * (l + 1) // 2,
        "parameters": 4 * d * d,
    }


def extractor_training(d: int, n: int, l: int) -> Counts:  # noqa: E741
    """Table 3, right, for one sequence: with the adjustment and the linear map."""
    return {
        "multiplications": l * (l + 1) // 2 * d * d + 2 * l * d * d + l * d,
        "additions": l * (l + 1) // 2 * d * d + 2 * l * d * d - 3 * l * d,
        "divisions": 0,
        "exponentiations": 0,
        "parameters": l * d * d + 2 * d * d,
    }


def attention_step(d: int, n: int, t: int) -> Counts:
    """Table 4, left: the token at length t, keys and values of the earlier ones being known."""
    return {
        "multiplications": 2 * t * d + 4 * d * d,
        "additions": 2 * t * d + 4 * d * d - 5 * d - n,
        "divisions": 2 * t * n,
        "exponentiations": t * n,
    }


def extractor_step(d: int, n: int, t: int) -> Counts:
    """Table 4, right."""
    return {
        "multiplications": t * d * d + 2 * d * d + d,
        "additions": t * d * d + 2 * d * d - 3 * d,
        "divisions": 0,
        "exponentiations": 0,
    }


OPERATIONS = ("multiplications", "additions", "divisions", "exponentiations")
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


def add(first: Vector, second: Vector) -> Vector:
    return [a + b for a, b in zip(first, second, strict=True)]


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
    "softmax": (attention_token, attention_weights, attention_training, attention_step),
    "extractor": (extractor_token, extractor_weights, extractor_training, extractor_step),
}
EXTRACTOR = ("attention.lags=5", "attention.rank=null", "attention.groups=1")


@pytest.mark.parametrize(("name", "heads"), [("softmax", 1), ("softmax", 3), ("extractor", 1)])
def test_the_tables_are_what_is_counted(name: str, heads: int) -> None:
    """Number by number, in a computation whose results are those of our own layers."""
    token, weights_of, training, step = MODELS[name]
    options = EXTRACTOR if name == "extractor" else ("attention.scale=head_dim",)
    sizes = {
        "dim": 6,
        "qkv_dim": 6,
        "heads": heads,
        "max_positions": 5,
        "bias": False,
        "out_proj": True,
        "causal": True,
    }
    mixer = mixer_of(name, *options, **sizes)
    weights = weights_of(mixer)
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    rows, known, outputs = numbers(x[0]), [], []
    COUNTED.clear()
    for t in range(1, 6):
        before = Counter(COUNTED)
        outputs.append([number.value for number in token(rows, t, known, weights, heads)])
        formula = step(6, heads, t)
        assert {key: COUNTED[key] - before[key] for key in OPERATIONS} == formula, t
    formula = training(6, heads, 5)
    assert formula.pop("parameters") == sum(parameter.numel() for parameter in mixer.parameters())
    assert {key: COUNTED[key] for key in OPERATIONS} == formula
    torch.testing.assert_close(torch.tensor(outputs, dtype=torch.float64), mixer(x)[0])


def layer(name: str, heads: int, dim: int, length: int) -> torch.nn.Module:
    options = (*EXTRACTOR[1:], f"attention.lags={length}", "attention.evaluate=direct") if name == "extractor" else ()
    sizes = {"dim": dim, "qkv_dim": dim, "heads": heads, "max_positions": length, "bias": False, "out_proj": True}
    return mixer_of(name, *options, **sizes, causal=True)


def products(function: Callable[[], object]) -> int:
    """Multiplications in matrix products and convolutions; torch counts as many additions."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        function()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("name", "heads"), [("softmax", 1), ("softmax", 8), ("extractor", 1)])
@pytest.mark.parametrize(("dim", "length"), [(24, 10)])
def test_torch_counts_the_products_of_table_3(name: str, heads: int, dim: int, length: int) -> None:
    """Our layers compute and mask the later positions, too, which the paper leaves out; torch does not count gates."""
    mixer, x = layer(name, heads, dim, length), torch.randn(1, length, dim, dtype=torch.float64)
    later = length * (length - 1) // 2 * (dim**2 if name == "extractor" else 2 * dim)
    gates = length * dim if name == "extractor" else 0
    formula = MODELS[name][2](dim, heads, length)["multiplications"]
    assert products(lambda: mixer(x)) == formula - gates + later


def test_the_paper_s_sizes() -> None:
    """2,129,920 parameters in an Extractor, 65,536 in self-attention; the closed forms that the paper prints."""
    assert extractor_training(128, 1, 128)["parameters"] == 2_129_920
    assert attention_training(128, 8, 128)["parameters"] == 65_536
    for d, length in ((128, 128), (7, 11)):
        counts = extractor_training(d, 1, length)
        assert 2 * counts["multiplications"] == length**2 * d**2 + 5 * length * d**2 + 2 * length * d
        assert 2 * counts["additions"] == length**2 * d**2 + 5 * length * d**2 - 6 * length * d
