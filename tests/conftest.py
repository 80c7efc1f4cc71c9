import functools
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import omegaconf
import pytest
import torch
import yaml
from imdb import PER_CLASS, Reviews, few
from support import Commands

from lra.report import figures
from lra.tasks import text
from lra.training.distributed import VARIABLES

torch.set_num_threads(1)
for name in VARIABLES:  # of whoever started the tests
    os.environ.pop(name, None)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup


load_yaml = yaml.load
load_options = functools.cache(lambda text: load_yaml(text, Loader=omegaconf._utils.get_yaml_loader()))


def load(stream: IO[str] | str, Loader: type) -> Any:
    """Parse each file of options once; OmegaConf copies what it gets. Errors name the file, so they are not cached."""
    if Loader.__name__ != "OmegaConfLoader" or isinstance(stream, str):
        return load_yaml(stream, Loader=Loader)
    try:
        return load_options(stream.read())
    except yaml.YAMLError:
        stream.seek(0)
        return load_yaml(stream, Loader=Loader)


# Composing a configuration takes a quarter of a second, of which these caches save two fifths.
yaml.load = load
omegaconf.base.parse = functools.cache(omegaconf.base.parse)
omegaconf._utils.parse = functools.cache(omegaconf._utils.parse)


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
        monkeypatch.setattr(figures, "drawn", lambda _: {"Test result of each seed": "<svg/>"})


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
    return Commands(monkeypatch, capfd)


@pytest.fixture
def impatient() -> Iterator[None]:
    """A test that waits for a FIFO, or for anything else, for five minutes ends with an error."""

    def end(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 300)
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
def reviews(monkeypatch: pytest.MonkeyPatch) -> Reviews:
    """Reviews of IMDb; the official data have no more of them here."""
    monkeypatch.setattr(text, "ROWS_PER_CLASS", PER_CLASS)
    return few()


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


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Headless Chromium, driven by Selenium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver_path:
        pytest.skip("no chromium or no chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    yield driver
    driver.quit()
