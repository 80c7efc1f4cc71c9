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
for name in VARIABLES:  # of whoever started the tests
    os.environ.pop(name, None)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights that a test draws do not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No later test imports the modules that a test wrote into its folder."""
    path, modules = [*sys.path], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path_factory.getbasetemp()) in (vars(sys.modules[name]).get("__file__") or ""):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have a word in place of figures, which take seconds, but in the tests of reports."""
    if request.path.stem != "test_report":
        monkeypatch.setattr(figures, "drawn", lambda _: ("<svg/>", {}))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of prepared data for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, cache: Path, tmp_path: Path) -> Commands:
    """The commands, run in an empty working folder."""
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lra.runs.describe.measure_step", lambda *_: None)  # takes seconds at full size
    return Commands(capfd)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data; the test is skipped where there is none."""
    folder = os.environ.get("LRA_DATA")
    if not folder:
        pytest.skip("LRA_DATA is not set")
    return Path(folder)


def pytest_collection_finish() -> None:
    """Freeze all that is imported and collected: no later collection of garbage looks through it, which took a
    seventh of the time of composing configurations."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries say at the end of the process what was not freed."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
