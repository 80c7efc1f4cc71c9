"""The demo begins with an empty cache: a worker of joblib generates the data, with processes of its own."""

import numpy as np
from joblib import Parallel, delayed

from lra.tasks import no_op_progress
from lra.tasks._listops_trees import generate

SHORT = {"min_length": 10, "max_length": 50, "max_depth": 4, "max_args": 6}


def labels(workers: int) -> np.ndarray:
    return generate(6000, **SHORT, seed=3, workers=workers, progress=no_op_progress)[2]


def test_a_worker_of_joblib_generates_data_with_several_processes() -> None:
    [there] = Parallel(n_jobs=2)([delayed(labels)(2)])
    assert np.array_equal(there, labels(1))
