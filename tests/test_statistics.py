"""Each statistic of the report beside a closed form, a value by hand, an integral, a simulation or another library."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, chi, norm, t, ttest_1samp, ttest_ind

from lra.report.statistics import inference


def test_the_interval_of_two_values_has_a_closed_form() -> None:
    """With one degree of freedom t is Cauchy's, whose quantile is a tangent."""
    low, high = inference.mean_interval([3.0, 5.0])
    half = math.tan(math.pi * 0.475)  # the standard error of (3, 5) is 1
    assert (low, high) == pytest.approx((4 - half, 4 + half))


def test_the_interval_of_five_values_by_hand() -> None:
    low, high = inference.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445105 * math.sqrt(2.5 / 5)  # the quantile is that of printed tables
    assert (low, high) == pytest.approx((3 - half, 3 + half))
    assert inference.mean_interval([3.0, 5.0], 1.5, 11.0) == (1.5, 11.0)
    assert inference.mean_interval([3.0]) is None
    assert inference.mean_interval([2.0, 2.0]) == (2.0, 2.0)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    runs = np.random.default_rng(7).normal(37.0, 1.3, size=(5000, 5)).tolist()
    intervals = [inference.mean_interval(values) for values in runs]
    covered = sum(low <= 37.0 <= high for low, high in intervals) / len(runs)
    assert 0.93 < covered < 0.97
    width = np.mean([high - low for low, high in intervals])
    assert width == pytest.approx(2 * 2.776445 * 1.3 * 0.939986 / math.sqrt(5), rel=0.02)  # E sd = 0.939986 sigma


def test_a_difference_by_hand() -> None:
    """Variances 13 and 7 of three runs each: a standard error of the root of 20/3, with 20^2 x 2 / (13^2 + 7^2) degrees
    of freedom."""
    difference = inference.difference([3.0, 5.0, 10.0], [2.0, 3.0, 7.0])
    assert (difference.seeds, difference.mean) == (3, 2.0)
    assert (difference.error, difference.sd) == (pytest.approx(math.sqrt(20 / 3)), pytest.approx(math.sqrt(10)))
    assert difference.freedom == pytest.approx(800 / 218)
    assert difference.interval == pytest.approx(
        (2 - t.ppf(0.975, 800 / 218) * difference.error, 2 - t.ppf(0.025, 800 / 218) * difference.error)
    )
    assert difference.equivalence(5.0) == pytest.approx(t.sf(3 / difference.error, 800 / 218))


def test_differences_are_welchs_and_turn_round() -> None:
    first, second = np.random.default_rng(3).normal(size=(2, 7)).tolist()
    difference, turned = inference.difference(first, second), inference.difference(second, first)
    expected = ttest_ind(first, second, equal_var=False)
    assert (difference.p, difference.freedom) == (pytest.approx(expected.pvalue), pytest.approx(expected.df))
    assert difference.interval == pytest.approx(tuple(expected.confidence_interval()))
    assert (difference.p, difference.mean) == (pytest.approx(turned.p), pytest.approx(-turned.mean))


def test_a_difference_to_a_constant_is_the_t_test_of_one_sample() -> None:
    runs = [3.0, 5.0, 10.0]
    difference = inference.difference(runs, [2.0] * 3)
    assert difference.p == pytest.approx(ttest_1samp(runs, 2.0).pvalue)
    assert difference.interval == pytest.approx(tuple(end - 2 for end in inference.mean_interval(runs)))


def test_runs_that_do_not_vary_have_no_p() -> None:
    for first, second in (([35.1, 35.1], [35.0, 35.0]), ([1.0], [2.0])):
        difference = inference.difference(first, second)
        assert (difference.p, difference.interval, difference.equivalence(1.0)) == (None, None, None)
        assert difference.mean == pytest.approx(first[0] - second[0])
    assert inference.difference([], []).mean is None
    with pytest.raises(ValueError, match="the same seeds, found 1 and 2"):
        inference.difference([1.0], [1.0, 2.0])


def test_hochberg_by_hand() -> None:
    assert inference.hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert inference.hochberg([0.9, 0.6]) == [0.9, 0.9]
    assert inference.hochberg([]) == []


@pytest.mark.parametrize(("seeds", "spread"), [(3, 1), (3, 4), (5, 1), (5, 4)])
def test_differences_are_covered_and_equivalence_is_rarely_wrong(seeds: int, spread: int) -> None:
    """The true difference is the margin: at most 5 % may be called equivalent."""
    rng = np.random.default_rng(23)
    pairs = zip(rng.normal(1, 1, (3000, seeds)).tolist(), rng.normal(0, spread, (3000, seeds)).tolist(), strict=True)
    differences = [inference.difference(first, second) for first, second in pairs]
    assert 0.93 < np.mean([difference.interval[0] <= 1 <= difference.interval[1] for difference in differences]) < 0.98
    assert np.mean([difference.equivalence(1.0) < 0.05 for difference in differences]) < 0.06


def right(rng: np.random.Generator, examples: np.ndarray, seeds: int, spread: float) -> np.ndarray:
    """[seeds, examples] bool: an example is right where its ease, the seed's skill and chance sum to enough."""
    skill = rng.normal(0, spread, (seeds, 1))
    return examples + skill + rng.normal(0, 0.8, (seeds, len(examples))) > 0.45


def coverage(seeds: int, spread: float, tables: int, two: bool) -> tuple[float, float]:
    """How often the interval over seeds, and that over seeds and examples, has what is true of all examples.

    Runs that do not vary have none, which counts as a miss."""
    rng = np.random.default_rng(29)
    truth = 0.0 if two else 100 * norm.sf(0.45 / math.sqrt(1 + 0.64 + spread**2))
    hits = []
    for _ in range(tables):
        examples = rng.normal(0, 1, 1009)
        first, other = (right(rng, examples, seeds, spread) for _ in range(2))
        means = [(100 * array.mean(axis=1)).tolist() for array in (first, other)]
        over_seeds = inference.difference(*means).interval if two else inference.mean_interval(means[0])
        both = inference.crossed(first, other if two else None)
        hits.append([ends is not None and ends[0] <= truth <= ends[1] for ends in (over_seeds, both)])
    return tuple(np.mean(hits, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("seeds", [3, 5])
def test_seeds_and_examples_cover_what_is_true_of_all_examples(seeds: int, spread: float, two: bool) -> None:
    over_seeds, both = coverage(seeds, spread, 1500, two)
    print(f"{seeds} seeds, spread {spread}, two systems {two}: over seeds {over_seeds:.3f}, crossed {both:.3f}")
    assert 0.92 < both < 0.995
    assert over_seeds <= both


def test_an_interval_over_seeds_alone_misses_other_examples() -> None:
    over_seeds, both = coverage(5, 0.01, 300, two=False)
    assert over_seeds < 0.85
    assert both > 0.92


def test_the_crossed_interval_holds_that_over_seeds() -> None:
    rng = np.random.default_rng(31)
    array = right(rng, rng.normal(0, 1, 211), 3, 0.1)
    low, high = inference.crossed(array)
    inner = inference.mean_interval((100 * array.mean(axis=1)).tolist())
    assert low < inner[0] < inner[1] < high
    assert inference.crossed(array[:1]) is None
    same = np.repeat(array[:1], 3, axis=0)
    assert inference.crossed(same) is None


def test_holm_by_hand() -> None:
    assert inference.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert inference.holm([0.9, 0.6]) == [1.0, 1.0]
    assert inference.holm([]) == []


def test_holm_keeps_the_error_of_a_family() -> None:
    """Of twelve true hypotheses one or more are rejected in at most 5 % of all families."""
    families = np.random.default_rng(5).uniform(size=(4000, 12)).tolist()
    wrong = sum(min(inference.holm(family)) < 0.05 for family in families) / len(families)
    assert 0.04 < wrong < 0.06


def test_mcnemar_by_hand() -> None:
    first = np.array([1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0], dtype=bool)
    second = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], dtype=bool)
    comparison = inference.mcnemar(first, second)
    assert (comparison.only_first, comparison.only_second) == (1, 7)
    assert comparison.p == pytest.approx(2 * (1 + 8) / 2**8)  # at most one of eight, either way
    assert inference.mcnemar(second, first).p == pytest.approx(comparison.p)
    assert inference.mcnemar(first, first).p == 1.0


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 1), (3, 3), (5, 4), (2, 19), (230, 270)])
def test_mcnemar_is_scipys_binomial_test(only_first: int, only_second: int) -> None:
    first = np.arange(600) < only_first
    second = (np.arange(600) >= only_first) & (np.arange(600) < only_first + only_second)
    expected = binomtest(only_first, only_first + only_second).pvalue
    assert inference.mcnemar(first, second).p == pytest.approx(expected)


def test_mcnemar_of_many_examples_is_near_its_normal_form() -> None:
    first = np.arange(2000) < 230
    second = (np.arange(2000) >= 230) & (np.arange(2000) < 500)  # 230 against 270
    normal = 2 * norm.sf((abs(230 - 270) - 1) / math.sqrt(500))
    assert inference.mcnemar(first, second).p == pytest.approx(normal, rel=0.01)


def integrated_power(n: int, effect: float) -> float:
    """P(|z + shift| > critical s): the normal numerator for each value of the estimated standard deviation s."""
    freedom, shift = 2 * n - 2, effect * math.sqrt(n / 2)
    critical = t.ppf(0.975, freedom)

    def given(s: float) -> float:
        rejected = norm.sf(critical * s - shift) + norm.cdf(-critical * s - shift)
        return rejected * chi.pdf(s * math.sqrt(freedom), freedom) * math.sqrt(freedom)

    return quad(given, 0, 10, limit=200)[0]


@pytest.mark.parametrize("sd", [0.2, 0.35, 0.8, 1.7])
def test_the_seeds_needed_are_the_fewest_that_do(sd: float) -> None:
    needed = inference.seeds_needed(sd)
    assert integrated_power(needed, 0.5 / sd) >= 0.8
    assert integrated_power(needed - 1, 0.5 / sd) < 0.8


def test_the_seeds_needed_for_known_spreads() -> None:
    """Sample sizes that textbooks print for effects of 2.5, 1, 0.5 and 0.25 standard deviations."""
    assert [inference.seeds_needed(sd) for sd in (0.2, 0.5, 1.0, 2.0)] == [4, 17, 64, 253]
    assert inference.seeds_needed(0.0) == inference.seeds_to_decide(0.0, 1.0) == inference.seeds_needed(1e-6) == 2


@pytest.mark.parametrize("sd", [0.5, 1.3])
def test_so_many_seeds_decide_in_a_simulation(sd: float) -> None:
    """A difference of the margin is seen, and equal systems are called equivalent, each in 80 % of the cases."""
    n = inference.seeds_to_decide(sd, 1.0)
    rng = np.random.default_rng(11)
    equal, apart = (
        [inference.difference(*rng.normal([[shift], [0.0]], sd, (2, n)).tolist()) for _ in range(1000)]
        for shift in (0.0, 1.0)
    )
    assert 0.77 < np.mean([difference.equivalence(1.0) < 0.05 for difference in equal]) < 0.9
    assert np.mean([difference.p < 0.05 for difference in apart]) > 0.77


def test_seeds_that_decide_a_difference_beyond_the_margin_show_that_difference() -> None:
    assert inference.seeds_to_decide(1.0, 0.2, -0.5) == inference.seeds_to_decide(1.0, 0.2, 0.5) == 64
    assert inference.seeds_to_decide(1.0, 0.2, 0.1) == inference.seeds_to_decide(1.0, 0.2) > 64


def test_the_expected_maximum_has_closed_forms() -> None:
    assert inference.expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert inference.expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert inference.expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    of_five = 5 / (4 * math.sqrt(math.pi)) * (1 + 6 / math.pi * math.asin(1 / 3))
    assert inference.expected_maximum(5) == pytest.approx(of_five)
    drawn = np.random.default_rng(2).normal(size=(40000, 20)).max(axis=1).mean()
    assert inference.expected_maximum(20) == pytest.approx(drawn, abs=0.01)


def test_outliers_by_hand() -> None:
    """The critical value of Grubbs's two-sided test at 1 % for five values is 1.764 in printed tables."""
    assert inference.outliers([36.0, 37.0, 38.0, 37.0, 44.0]) == [False] * 5
    assert inference.outliers([36.9, 37.0, 37.1, 37.0, 44.0]) == [False, False, False, False, True]
    assert inference.outliers([37.0, 37.0, 37.0, 17.0, 37.0]) == [False, False, False, True, False]
    assert inference.outliers([37.0, 37.0, 37.0, 17.0]) == [False] * 4
    assert inference.outliers([37.0] * 5) == [False] * 5


@pytest.mark.parametrize("seeds", [5, 7])
def test_one_normal_cell_of_a_hundred_has_an_outlier(seeds: int) -> None:
    """Accuracies of 2,000 examples, to a twentieth of a percent."""
    cells = np.round(np.random.default_rng(13).normal(37, 1, (2000, seeds)) * 20) / 20
    alarms = np.mean([any(inference.outliers(cell)) for cell in cells.tolist()])
    assert 0.005 < alarms < 0.016
