"""The statistics of a report, numbers in and numbers out. The mathematics is scipy's, imported where it is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev

import numpy as np

LEVEL = 0.95  # of the intervals
ALPHA = 0.05  # of the tests
POWER = 0.8
POINTS = 0.5  # the difference that one wants to see
OUTLIER = 3.5  # modified z, after Iglewicz and Hoaglin (1993)
ENOUGH = 5  # seeds, for a median and its deviation to mean anything


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's t-interval of the mean; None for fewer than two values."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / math.sqrt(n)
    return fmean(values) - half, fmean(values) + half


@dataclass(frozen=True)
class Paired:
    """Differences between two systems, seed by seed. `p`: two-sided t-test; None where the differences do not vary."""

    seeds: int
    mean: float | None
    sd: float | None
    interval: tuple[float, float] | None
    p: float | None


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """First minus second."""
    from scipy.stats import ttest_1samp

    # A count of examples in percent has no digits beyond these; what is there is rounding.
    differences = np.round(np.subtract(first, second), 9).tolist()
    n = len(differences)
    if n < 2:
        return Paired(n, differences[0] if n else None, None, None, None)
    varies = min(differences) < max(differences)
    p = float(ttest_1samp(differences, 0).pvalue) if varies else None
    return Paired(n, fmean(differences), stdev(differences), mean_interval(differences), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down p-values, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class Discordant:
    """Examples that only one of two systems gets right, and McNemar's p."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: np.ndarray, second: np.ndarray) -> Discordant:
    """McNemar's test, exact and two-sided, of which examples [n] bool two systems get right.

    Without a difference each of the discordant examples is either's with probability 1/2: twice the binomial tail.
    """
    from scipy.special import bdtr

    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    tail = float(bdtr(min(only_first, only_second), only_first + only_second, 0.5))
    return Discordant(only_first, only_second, min(1.0, 2 * tail))


def power(n: np.ndarray, effect: float, *, pairs: bool) -> np.ndarray:
    """Power of the two-sided t-test of `n` pairs, or of `n` runs in each of two groups; `effect` is in sd."""
    from scipy.stats import nct, t

    freedom = n - 1 if pairs else 2 * n - 2
    shift = effect * np.sqrt(n if pairs else n / 2)
    critical = t.ppf(1 - ALPHA / 2, freedom)
    return nct.sf(critical, freedom, shift) + nct.cdf(-critical, freedom, shift)


def seeds_needed(sd: float, *, pairs: bool) -> int:
    """The least number of seeds that shows a difference of POINTS with power POWER.

    `pairs`: `sd` is that of the differences by seed; else of each of two systems with seeds of their own.
    """
    from scipy.stats import norm

    if sd == 0:
        return 2
    effect = POINTS / sd
    normal = (norm.ppf(1 - ALPHA / 2) + norm.ppf(POWER)) ** 2 / effect**2 * (1 if pairs else 2)
    candidates = np.arange(max(2, int(normal)), int(normal) + 10)  # Student's t needs a few more than the normal
    return int(candidates[np.argmax(power(candidates, effect, pairs=pairs) >= POWER)])


@cache
def expected_maximum(n: int) -> float:
    """Mean of the largest of `n` independent standard normal values: what best-of-n adds to the mean, in sd."""
    from scipy.integrate import quad
    from scipy.stats import norm

    return float(quad(lambda x: x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1), -10, 10)[0])


def outliers(values: Sequence[float]) -> list[bool]:
    """Which values have a modified z-score, 0.6745 |x - median| / MAD, beyond OUTLIER; none among fewer than ENOUGH.

    Where most values are equal (MAD = 0), every other is one.
    """
    if len(values) < ENOUGH:
        return [False] * len(values)
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return [0.6745 * abs(value - middle) > OUTLIER * deviation for value in values]
