import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from golden import folder as golden
from reports import declare, put
from support import Commands

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights that a test draws do not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of prepared data for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, cache: Path, tmp_path: Path) -> Commands:
    """The commands, run in an empty working folder."""
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return Commands(monkeypatch, capfd)


@pytest.fixture
def impatient() -> Iterator[None]:
    """A test that waits for a FIFO, or for anything else, for 20 seconds ends with an error."""

    def end(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data; the test is skipped where there is none."""
    folder = os.environ.get("LRA_DATA")
    if not folder:
        pytest.skip("LRA_DATA is not set")
    return Path(folder)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A results folder of one column: finished, failed and missing runs."""
    for seed, accuracy in enumerate((37.0, 38.0, 37.5), start=1):
        put(tmp_path, seed, accuracy)
    put(tmp_path, 1, 36.35, attention="softmax", variant="transformer")
    put(tmp_path, 2, None, attention="softmax", variant="transformer", reason="fire")
    put(tmp_path, 1, 30.0, attention="mine", variant="transformer", settings={"model.depth": 2})
    declare(
        tmp_path,
        {"attention": "simple", "variant": "simple", "seeds": [1, 2, 3, 4]},
        {"attention": "softmax", "variant": "transformer", "seeds": [1, 2]},
        {"attention": "simple", "variant": "simple_res", "seeds": [1, 2]},
    )
    return tmp_path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The results folder of tests/golden."""
    root = tmp_path / "golden"
    golden.make(root)
    return root


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
