"""Numbers as text."""

from collections.abc import Sequence

from lra.report.statistics.table import Summary, p_text


def plural(number: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {what}{'s' * (number != 1)}"


def decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def mean_sd(summary: Summary) -> str:
    return decimals(summary.mean) + ("" if summary.sd is None else f" ± {summary.sd:.2f}")


def count(summary: Summary) -> str:
    """Seeds done of seeds declared, and what became of the others."""
    done = str(summary.done) if summary.declared is None else f"{summary.done}/{summary.declared}"
    return done + "".join(f", {number} {state}" for state, number in summary.problems.items())


def whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def short_p(p: float | None) -> str:
    return "" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")
