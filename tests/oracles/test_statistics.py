"""Intervals, tests, corrections and the seeds needed, beside statsmodels."""

import math

import numpy as np
import pytest

from lra.report.statistics import inference

pytest.importorskip("statsmodels")
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def runs(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies of two systems, one of which varies more."""
    rng = np.random.default_rng(13)
    return 37 + rng.normal(size=seeds), 36 + 3 * rng.normal(size=seeds)


def test_the_interval_of_a_mean() -> None:
    values, _ = runs(7)
    assert inference.mean_interval(values.tolist()) == pytest.approx(DescrStatsW(values).tconfint_mean(0.05))


@pytest.mark.parametrize("seeds", [2, 3, 11])
def test_a_difference_of_two_systems(seeds: int) -> None:
    """Welch's test and its interval, and two one-sided tests at a margin that is met and at one that is not."""
    first, other = runs(seeds)
    theirs = CompareMeans(DescrStatsW(first), DescrStatsW(other))
    ours = inference.difference(first.tolist(), other.tolist())
    _, p, freedom = theirs.ttest_ind(usevar="unequal")
    assert (ours.p, ours.freedom) == (pytest.approx(p), pytest.approx(freedom))
    for level in (0.9, 0.95):
        assert ours.within(level) == pytest.approx(theirs.tconfint_diff(1 - level, usevar="unequal"))
    for margin in (0.1, 9.0):
        assert ours.equivalence(margin) == pytest.approx(theirs.ttost_ind(-margin, margin, usevar="unequal")[0])


@pytest.mark.parametrize(("ours", "method"), [(inference.holm, "holm"), (inference.hochberg, "simes-hochberg")])
def test_corrections_of_many_tests(ours, method: str) -> None:
    p_values = np.random.default_rng(13).uniform(size=9) ** 2
    assert ours(p_values.tolist()) == pytest.approx(multipletests(p_values, method=method)[1])


@pytest.mark.parametrize("ease", [(0.8, 0.8), (0.8, 0.7)])
def test_mcnemar(ease: tuple[float, float]) -> None:
    first, second = np.random.default_rng(13).uniform(size=(2, 300)) < np.array(ease)[:, None]
    counts = [[np.sum(first & second), np.sum(first & ~second)], [np.sum(~first & second), np.sum(~first & ~second)]]
    assert inference.mcnemar(first, second).p == pytest.approx(mcnemar(counts, exact=True).pvalue)


@pytest.mark.parametrize("effect", [0.2, 0.9, 2.5])
def test_the_power_of_a_test_of_two_systems(effect: float) -> None:
    seeds = np.array([2, 3, 5, 17, 101])
    expected = TTestIndPower().power(effect, seeds, 0.05)
    np.testing.assert_allclose(inference.power(seeds, effect), expected, rtol=1e-9)


@pytest.mark.parametrize("sd", [0.4, 1.1, 3.0])
@pytest.mark.parametrize("points", [0.5, 1.3])
def test_the_seeds_needed(sd: float, points: float) -> None:
    """Of each of two systems; runs of one seed are not counted as pairs."""
    exact = TTestIndPower().solve_power(effect_size=points / sd, power=0.8, alpha=0.05)
    assert inference.seeds_needed(sd, points) == math.ceil(exact)
