"""Statistics of a report on SciPy and statsmodels, which are imported when they are first needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

LEVEL = 0.95  # of intervals
ALPHA = 0.05  # of tests


@dataclass(frozen=True)
class Summary:
    """Test results of the seeds of a cell; None where there are too few.

    Args:
        low, high: Student's t interval of the mean.
        best: the highest accuracy, or the lowest perplexity.
        expected_best: mean of the best of `n` seeds, if seeds are normal with this mean and sd.
    """

    n: int
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    best: float | None = None
    expected_best: float | None = None


def summarise(scores: Sequence[float], *, lower_is_better: bool = False) -> Summary:
    """Summarise the scores of a cell, in percent or as perplexities."""
    from scipy.stats import t

    n = len(scores)
    if not n:
        return Summary(0)
    mean, best = fmean(scores), (min if lower_is_better else max)(scores)
    if n == 1:
        return Summary(1, mean, best=best)
    sd = stdev(scores)
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    gain = sd * expected_maximum(n)
    return Summary(n, mean, sd, mean - half, mean + half, best, mean - gain if lower_is_better else mean + gain)


@cache
def expected_maximum(n: int) -> float:
    """Return the mean of the largest of `n` independent standard normal values."""
    from scipy.integrate import quad
    from scipy.stats import norm

    return float(quad(lambda x: x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1), -10, 10)[0])


@dataclass(frozen=True)
class Comparison:
    """A mean minus another; None where no test can be made.

    Args:
        low, high: Welch's t interval of the difference.
        p: two-sided, by Welch's t-test.
        p_equivalent: by two one-sided tests (TOST) that the difference is within the margin.
    """

    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_equivalent: float | None = None
    margin: float | None = None
    lower_is_better: bool = False

    def word(self, p: float | None = None) -> str:
        """Return `better`, `worse`, `equivalent`, `undecided` or `untested`; `p`: a corrected p-value to go by."""
        p = self.p if p is None else p
        if p is None or self.difference is None:
            return "untested"
        if self.p_equivalent is not None and self.p_equivalent < ALPHA:
            return "equivalent"
        if p >= ALPHA:
            return "undecided"
        return "better" if (self.difference < 0) == self.lower_is_better else "worse"


def compare(
    first: Sequence[float], other: Sequence[float], margin: float, *, lower_is_better: bool = False
) -> Comparison:
    """Compare the scores of two cells: first minus other."""
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    if not first or not other:
        return Comparison()
    difference = fmean(first) - fmean(other)
    if min(len(first), len(other)) < 2 or (stdev(first) == 0 and stdev(other) == 0):
        return Comparison(difference, margin=margin, lower_is_better=lower_is_better)
    means = CompareMeans(DescrStatsW(first), DescrStatsW(other))
    low, high = means.tconfint_diff(1 - LEVEL, usevar="unequal")
    _, p, _ = means.ttest_ind(usevar="unequal")
    equivalent = means.ttost_ind(-margin, margin, usevar="unequal")[0]
    return Comparison(difference, float(low), float(high), float(p), float(equivalent), margin, lower_is_better)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down p-values in the order given."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(p_values, method="holm")[1]] if p_values else []


def not_above(correct: int, examples: int, percent: float) -> bool:
    """Return True if the 95 % Wilson interval of an accuracy is not entirely above `percent`."""
    from statsmodels.stats.proportion import proportion_confint

    low, _ = proportion_confint(correct, examples, alpha=1 - LEVEL, method="wilson")
    return bool(100 * low <= percent)


def median_steps(steps: Sequence[float | None]) -> float | None:
    """Return the steps after which half of the seeds have solved a task; None if fewer do.

    Args:
        steps: of each seed, None where it did not solve the task.
    """
    ordered = sorted(math.inf if count is None else count for count in steps)
    middle = ordered[(len(ordered) - 1) // 2] if ordered else math.inf
    return middle if math.isfinite(middle) else None
