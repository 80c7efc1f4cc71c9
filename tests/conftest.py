import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import Commands

from lra.reports import figures
from lra.training.distributed import VARIABLES

torch.set_num_threads(1)
for name in VARIABLES:  # torchrun sets them
    os.environ.pop(name, None)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed torch, so that weights do not depend on the tests before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def forget_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test wrote into its folder and imported."""
    path, modules = [*sys.path], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path_factory.getbasetemp()) in (vars(sys.modules[name]).get("__file__") or ""):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def no_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures out of reports, but in test_report: they take seconds."""
    if request.path.stem != "test_report":
        monkeypatch.setattr(figures, "drawn", lambda _: ("<svg/>", {}))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache of prepared data for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, cache: Path, tmp_path: Path) -> Commands:
    """Run commands in an empty working folder."""
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lra.runs.describe.measure_step", lambda *_: None)  # takes seconds at full size
    return Commands(capfd)


@pytest.fixture
def real_data() -> Path:
    """Return the folder of real data, or skip the test."""
    folder = os.environ.get("LRA_DATA")
    if not folder:
        pytest.skip("LRA_DATA is not set")
    return Path(folder)


def pytest_collection_finish() -> None:
    """Keep all imported and collected objects out of later garbage collections: composing is a tenth faster."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries find at exit what was not freed."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
