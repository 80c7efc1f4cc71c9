"""Each statistic of the report beside a closed form, a value by hand, an integral, a simulation or another library."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, chi, norm, t, ttest_rel

from lra.report import statistics


def test_the_interval_of_two_values_has_a_closed_form() -> None:
    """With one degree of freedom t is Cauchy's, whose quantile is a tangent."""
    low, high = statistics.mean_interval([3.0, 5.0])
    half = math.tan(math.pi * 0.475)  # the standard error of (3, 5) is 1
    assert (low, high) == pytest.approx((4 - half, 4 + half))


def test_the_interval_of_five_values_by_hand() -> None:
    low, high = statistics.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445105 * math.sqrt(2.5 / 5)  # the quantile is that of printed tables
    assert (low, high) == pytest.approx((3 - half, 3 + half))
    assert statistics.mean_interval([3.0]) is None
    assert statistics.mean_interval([2.0, 2.0]) == (2.0, 2.0)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    runs = np.random.default_rng(7).normal(37.0, 1.3, size=(5000, 5)).tolist()
    intervals = [statistics.mean_interval(values) for values in runs]
    covered = sum(low <= 37.0 <= high for low, high in intervals) / len(runs)
    assert 0.93 < covered < 0.97
    width = np.mean([high - low for low, high in intervals])
    assert width == pytest.approx(2 * 2.776445 * 1.3 * 0.939986 / math.sqrt(5), rel=0.02)  # E sd = 0.939986 sigma


def test_paired_differences_by_hand() -> None:
    found = statistics.paired([3.0, 5.0, 10.0], [2.0, 3.0, 7.0])
    assert (found.seeds, found.mean, found.sd) == (3, 2.0, 1.0)
    statistic = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - statistic / math.sqrt(2 + statistic**2))  # closed form, 2 degrees of freedom
    assert found.interval == pytest.approx((2 - 4.302652730 / math.sqrt(3), 2 + 4.302652730 / math.sqrt(3)))


def test_paired_differences_beside_scipy_and_turned_round() -> None:
    first, second = np.random.default_rng(3).normal(size=(2, 7))
    one, other = statistics.paired(first, second), statistics.paired(second, first)
    assert one.p == pytest.approx(ttest_rel(first, second).pvalue)
    assert (one.p, one.mean) == (pytest.approx(other.p), pytest.approx(-other.mean))


def test_differences_that_do_not_vary_have_no_p() -> None:
    """Nor do those that differ by the rounding of floats only."""
    assert 35.1 - 35.0 != 35.8 - 35.7
    assert statistics.paired([35.1, 35.8], [35.0, 35.7]).p is None
    assert statistics.paired([1.0], [2.0]) == statistics.Paired(1, -1.0, None, None, None)
    assert statistics.paired([], []).mean is None


def test_holm_by_hand() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.9, 0.6]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_holm_keeps_the_error_of_a_family() -> None:
    """Of twelve true hypotheses one or more are rejected in at most 5 % of all families."""
    families = np.random.default_rng(5).uniform(size=(4000, 12)).tolist()
    wrong = sum(min(statistics.holm(family)) < 0.05 for family in families) / len(families)
    assert 0.04 < wrong < 0.06


def test_mcnemar_by_hand() -> None:
    first = np.array([1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0], dtype=bool)
    second = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], dtype=bool)
    found = statistics.mcnemar(first, second)
    assert (found.only_first, found.only_second) == (1, 7)
    assert found.p == pytest.approx(2 * (1 + 8) / 2**8)  # at most one of eight, either way
    assert statistics.mcnemar(second, first).p == pytest.approx(found.p)
    assert statistics.mcnemar(first, first).p == 1.0


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 1), (3, 3), (5, 4), (2, 19), (230, 270)])
def test_mcnemar_is_scipys_binomial_test(only_first: int, only_second: int) -> None:
    first = np.arange(600) < only_first
    second = (np.arange(600) >= only_first) & (np.arange(600) < only_first + only_second)
    expected = binomtest(only_first, only_first + only_second).pvalue
    assert statistics.mcnemar(first, second).p == pytest.approx(expected)


def test_mcnemar_of_many_examples_is_near_its_normal_form() -> None:
    first = np.arange(2000) < 230
    second = (np.arange(2000) >= 230) & (np.arange(2000) < 500)  # 230 against 270
    normal = 2 * norm.sf((abs(230 - 270) - 1) / math.sqrt(500))
    assert statistics.mcnemar(first, second).p == pytest.approx(normal, rel=0.01)


def integrated_power(n: int, effect: float, pairs: bool) -> float:
    """P(|z + shift| > critical s): the normal numerator for each value of the estimated standard deviation s."""
    freedom, shift = (n - 1, effect * math.sqrt(n)) if pairs else (2 * n - 2, effect * math.sqrt(n / 2))
    critical = t.ppf(0.975, freedom)

    def given(s: float) -> float:
        rejected = norm.sf(critical * s - shift) + norm.cdf(-critical * s - shift)
        return rejected * chi.pdf(s * math.sqrt(freedom), freedom) * math.sqrt(freedom)

    return quad(given, 0, 10, limit=200)[0]


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("sd", [0.2, 0.35, 0.8, 1.7])
def test_the_seeds_needed_are_the_fewest_that_do(sd: float, pairs: bool) -> None:
    needed = statistics.seeds_needed(sd, pairs=pairs)
    assert integrated_power(needed, 0.5 / sd, pairs) >= 0.8
    assert integrated_power(needed - 1, 0.5 / sd, pairs) < 0.8


def test_the_seeds_needed_for_known_spreads() -> None:
    """Sample sizes that textbooks print for effects of 2.5, 1, 0.5 and 0.25 standard deviations."""
    assert [statistics.seeds_needed(sd, pairs=False) for sd in (0.2, 0.5, 1.0, 2.0)] == [4, 17, 64, 253]
    assert [statistics.seeds_needed(sd, pairs=True) for sd in (0.5, 1.0, 2.0)] == [10, 34, 128]
    assert statistics.seeds_needed(0.0, pairs=True) == statistics.seeds_needed(1e-6, pairs=True) == 2


def test_so_many_seeds_show_the_difference_in_a_simulation() -> None:
    sd = 0.5
    n = statistics.seeds_needed(sd, pairs=True)
    differences = np.random.default_rng(11).normal(0.5, sd, size=(2000, n))
    shown = sum(statistics.paired(row, np.zeros(n)).p < 0.05 for row in differences) / len(differences)
    assert 0.78 < shown < 0.84


def test_the_expected_maximum_has_closed_forms() -> None:
    assert statistics.expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert statistics.expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert statistics.expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    of_five = 5 / (4 * math.sqrt(math.pi)) * (1 + 6 / math.pi * math.asin(1 / 3))
    assert statistics.expected_maximum(5) == pytest.approx(of_five)
    drawn = np.random.default_rng(2).normal(size=(40000, 20)).max(axis=1).mean()
    assert statistics.expected_maximum(20) == pytest.approx(drawn, abs=0.01)


def test_outliers_by_hand() -> None:
    """Median 37, MAD 1: 3.5 / 0.6745 = 5.189 is the distance from which a value is odd."""
    assert statistics.outliers([36.0, 37.0, 38.0, 37.0 + 5.18, 36.0]) == [False] * 5
    assert statistics.outliers([36.0, 37.0, 38.0, 37.0 + 5.20, 36.0]) == [False, False, False, True, False]
    assert statistics.outliers([37.0, 37.0, 37.0, 17.0, 37.0]) == [False, False, False, True, False]
    assert statistics.outliers([37.0, 37.0, 37.0, 17.0]) == [False] * 4
    assert statistics.outliers([37.0] * 5) == [False] * 5
