"""The Extractor paper's Tables 3 and 4 (Chen 2023): operations of self-attention and of the Extractor, by formula.

    python -m lra.tools.complexity              the tables for the paper's sizes, as Markdown

d is the width, n the heads, l the length of a training sequence, t the length when one more token is predicted.
Only tokens up to one's own are counted, as in the paper. The tests count the operations one by one, and with torch.
"""

import argparse
from collections.abc import Callable

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


def table(
    d: int, heads: list[int], length: int, attention: Callable[..., Counts], extractor: Callable[..., Counts]
) -> str:
    """Markdown: a row an operation, a column a model."""
    columns = [attention(d, n, length) for n in heads] + [extractor(d, 1, length)]
    names = [f"self-attention, {n} head{'s' * (n > 1)}" for n in heads] + ["Extractor"]
    lines = [f"| number of | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(f'{column[row]:,}' for column in columns)} |" for row in columns[0]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lra.tools.complexity", description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    sizes = parser.parse_args()
    print(f"# Operations of one layer of width {sizes.width} (Chen 2023, Tables 3 and 4)\n")
    command = f"python -m lra.tools.complexity --width {sizes.width} --length {sizes.length}"
    print(f"By `{command}`: the paper's formulas, which")
    print("`tests/test_extractor_paper.py` holds against counted operations of our layers.\n")
    print(f"## Training on a sequence of {sizes.length} tokens (Table 3)\n")
    print(table(sizes.width, [1, 8], sizes.length, attention_training, extractor_training))
    print(f"\n## One more token at length {sizes.length} (Table 4)\n")
    print(table(sizes.width, [1, 8], sizes.length, attention_step, extractor_step))


if __name__ == "__main__":
    main()
