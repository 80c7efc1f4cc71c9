"""The statistics of a report, numbers in and numbers out. The mathematics is scipy's, imported where it is needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

import numpy as np

LEVEL = 0.95  # of the intervals
ALPHA = 0.05  # of the tests
POWER = 0.8
POINTS = 0.5  # the difference that one wants to see
OUTLIERS = 0.01  # of normal samples have one by chance
ROUNDING = 1e-12  # of an estimated probability
ENOUGH = 5  # seeds; among fewer, two that are equal by rounding would make a third an outlier


def mean_interval(
    values: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> tuple[float, float] | None:
    """Student's t-interval of the mean, cut at `least` and `most`, which no mean can pass; None for fewer than two
    values."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / math.sqrt(n)
    return max(fmean(values) - half, least), min(fmean(values) + half, most)


@dataclass(frozen=True)
class Difference:
    """A mean minus another, each over `seeds` runs; None where there is none.

    `sd`: of a run, the root of the mean of the two variances; `p`: two-sided, by Welch's (1947) t-test.
    """

    seeds: int
    mean: float | None = None
    sd: float | None = None
    error: float | None = None
    freedom: float | None = None
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.within(LEVEL)

    def within(self, level: float, more: float = 0.0) -> tuple[float, float] | None:
        """The interval of a level; `more`: the half-width of what varies besides, added in squares."""
        from scipy.special import stdtrit

        if self.error is None:
            return None
        half = math.hypot(float(stdtrit(self.freedom, (1 + level) / 2)) * self.error, more)
        return self.mean - half, self.mean + half

    def equivalence(self, margin: float) -> float | None:
        """p of two one-sided tests (Schuirmann, 1987) that the difference is within the margin."""
        from scipy.special import stdtr

        return None if self.error is None else float(stdtr(self.freedom, (abs(self.mean) - margin) / self.error))


def difference(first: Sequence[float], other: Sequence[float]) -> Difference:
    """First minus other. Runs of one seed share the order of their data, which the test does not count on."""
    from scipy.special import stdtr

    n = len(first)
    if n != len(other):
        raise ValueError(f"expected the runs of the same seeds, found {n} and {len(other)}")
    if not n:
        return Difference(0)
    mean = fmean(first) - fmean(other)
    # A count of examples in percent has no digits beyond these; what is there is rounding.
    parts = [np.var(np.round(values, 9), ddof=1) / n if min(values) < max(values) else 0.0 for values in (first, other)]
    total = float(sum(parts)) if n > 1 else 0.0
    if not total:
        return Difference(n, mean)
    error, freedom = math.sqrt(total), (n - 1) * total**2 / float(sum(part**2 for part in parts))
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Difference(n, mean, math.sqrt(total * n / 2), error, freedom, p)


def crossed(first: np.ndarray, other: np.ndarray | None = None) -> tuple[float, float] | None:
    """The interval of a mean, or of a difference of means, in percent, for new seeds and new examples alike.

    `first`, `other` [seeds, examples] bool: which examples are right. To the half-width over seeds that over examples
    is added in squares (Zou and Donner, 2008), from the variance component of a two-way layout (Brennan, 2001): what
    each seed makes of each example is in the seeds' part already.
    """
    from scipy.special import ndtri

    systems = [100.0 * array for array in (first, other) if array is not None]
    seeds, examples = first.shape
    if seeds < 2:
        return None
    means = [system.mean(axis=1).tolist() for system in systems]
    over_seeds = difference(means[0], means[1] if other is not None else [0.0] * seeds)
    of_examples = systems[0].mean(axis=0) - (systems[1].mean(axis=0) if other is not None else 0.0)
    component = max(0.0, float(of_examples.var(ddof=1)) - sum(map(_residual, systems)) / seeds)
    return over_seeds.within(LEVEL, float(ndtri((1 + LEVEL) / 2)) * math.sqrt(component / examples))


def _residual(system: np.ndarray) -> float:
    """The mean square of [seeds, examples] beside that of rows and columns."""
    rest = system - system.mean(axis=1, keepdims=True) - system.mean(axis=0, keepdims=True) + system.mean()
    return float((rest**2).sum() / ((system.shape[0] - 1) * (system.shape[1] - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down p-values, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


def hochberg(p_values: Sequence[float]) -> list[float]:
    """Hochberg's (1988) step-up p-values of independent tests, in the order given."""
    adjusted = [0.0] * len(p_values)
    least = 1.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: -p_values[place]), start=1):
        least = adjusted[place] = min(least, p_values[place] * rank)
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


def power(n: np.ndarray, effect: float) -> np.ndarray:
    """Power of the two-sided t-test of `n` runs of each of two systems; `effect` is in sd."""
    from scipy.special import nctdtr, stdtrit

    freedom, shift = 2 * n - 2, effect * np.sqrt(n / 2)
    critical = stdtrit(freedom, 1 - ALPHA / 2)
    return 1 - nctdtr(freedom, shift, critical) + nctdtr(freedom, shift, -critical)


def equivalence_power(n: np.ndarray, margin: float) -> np.ndarray:
    """Power of two one-sided t-tests of `n` runs of each of two systems that are equal; `margin` is in sd.

    The mean over 100 quantiles of the estimated sd of what is exact for each.
    """
    from scipy.special import gammaincinv, ndtr, stdtrit

    freedom = (2 * n - 2)[:, None]
    estimated = np.sqrt(gammaincinv(freedom / 2, (np.arange(100) + 0.5) / 100) * 2 / freedom)
    left = margin * np.sqrt(n / 2)[:, None] - stdtrit(freedom, 1 - ALPHA) * estimated
    return np.clip(2 * ndtr(left) - 1, 0, 1).mean(axis=1)


def seeds_needed(sd: float, points: float = POINTS) -> int:
    """The least number of seeds of each of two systems that shows a difference of `points` with power POWER."""
    return _fewest(power, points / sd, 1 - ALPHA / 2, POWER) if sd else 2


def seeds_to_decide(sd: float, margin: float, estimate: float = 0.0) -> int:
    """The least number of seeds of each of two systems that decides with power POWER.

    Where the estimated difference is beyond the margin, it shows that difference; else it shows one of the margin, and
    that there is none of it where the systems are equal.
    """
    if abs(estimate) > margin:
        return seeds_needed(sd, abs(estimate))
    alike = _fewest(equivalence_power, margin / sd, 1 - ALPHA, (1 + POWER) / 2) if sd else 2
    return max(seeds_needed(sd, margin), alike)


def _fewest(power_of: Callable[[np.ndarray, float], np.ndarray], effect: float, *levels: float) -> int:
    """From what normal quantiles at `levels` say, which Student's t needs a few more than."""
    from scipy.special import ndtri

    n = max(2, int(2 * (sum(map(ndtri, levels)) / effect) ** 2))
    while power_of(np.array([n]), effect)[0] < POWER:
        n += 1
    return n


@cache
def expected_maximum(n: int) -> float:
    """Mean of the largest of `n` independent standard normal values: what best-of-n adds to the mean, in sd."""
    from scipy.integrate import quad
    from scipy.stats import norm

    return float(quad(lambda x: x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1), -10, 10)[0])


def outliers(values: Sequence[float]) -> list[bool]:
    """Which of at least ENOUGH values are outliers by Grubbs's (1950) two-sided test at OUTLIERS; one at most.

    The false alarms are OUTLIERS of all normal samples.
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < ENOUGH or min(values) == max(values):
        return [False] * n
    distances = [abs(value - fmean(values)) / stdev(values) for value in values]
    quantile = float(stdtrit(n - 2, OUTLIERS / (2 * n))) ** 2
    critical = (n - 1) / math.sqrt(n) * math.sqrt(quantile / (n - 2 + quantile))
    return [distance == max(distances) > critical for distance in distances]


Times = tuple[Sequence[float], Sequence[float]]
"""How long it took, and of what had not happened when somebody looked, when that was."""


def median_time(happened: Sequence[float], censored: Sequence[float]) -> int | None:
    """The time by which half has happened, by Kaplan and Meier's estimate; None where less does."""
    from scipy.stats import CensoredData, ecdf

    estimate = ecdf(CensoredData(uncensored=happened, right=censored)).sf
    curve = zip(estimate.quantiles, estimate.probabilities, strict=True)
    return next((int(time) for time, left in curve if left <= 0.5 + ROUNDING), None)


def log_rank(first: Times, other: Times) -> tuple[bool, float] | None:
    """Whether the first is the quicker, and the p of the log-rank test that both take as long; None where it has
    nothing to compare."""
    from scipy.stats import CensoredData, logrank

    with np.errstate(invalid="ignore"):  # 0 / 0 then
        test = logrank(*(CensoredData(uncensored=happened, right=more) for happened, more in (first, other)))
    return None if np.isnan(test.pvalue) else (bool(test.statistic > 0), float(test.pvalue))
