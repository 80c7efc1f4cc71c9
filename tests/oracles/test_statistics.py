"""Holm's correction, McNemar's test and the seeds needed, beside statsmodels."""

import math

import numpy as np
import pytest

from lra.report import statistics

pytest.importorskip("statsmodels")
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def test_holm() -> None:
    p_values = np.random.default_rng(13).uniform(size=9) ** 2
    assert statistics.holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_mcnemar() -> None:
    first, second = np.random.default_rng(13).uniform(size=(2, 300)) < 0.8
    counts = [[np.sum(first & second), np.sum(first & ~second)], [np.sum(~first & second), np.sum(~first & ~second)]]
    assert statistics.mcnemar(first, second).p == pytest.approx(mcnemar(counts, exact=True).pvalue)


@pytest.mark.parametrize("sd", [0.4, 1.1, 3.0])
def test_the_seeds_needed(sd: float) -> None:
    for solver, pairs in ((TTestPower(), True), (TTestIndPower(), False)):
        exact = solver.solve_power(effect_size=0.5 / sd, power=0.8, alpha=0.05)
        assert statistics.seeds_needed(sd, pairs=pairs) == math.ceil(exact)
