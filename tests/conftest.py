import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import IO, Any

import omegaconf
import pytest
import torch
import yaml
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from support import Commands

from lra.core.paths import conf_dir
from lra.reports import figures
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


compose_anew = ConfigLoaderImpl._load_configuration_impl
interpolation_map = defaults_list._create_interpolation_map
compositions: dict[str, DictConfig] = {}


def compose_once(loader: ConfigLoaderImpl, **asked: Any) -> DictConfig:
    """Compose each command line once, if all its options are those of this checkout, which no test edits."""
    paths = [entry.path for entry in loader.config_search_path.get_path()]
    own = [path for path in paths if path.startswith("file:") and path != f"file://{conf_dir()}"]
    if own or any("hydra.searchpath" in override for override in asked["overrides"]):
        return compose_anew(loader, **asked)
    key = str((paths, asked))
    if key not in compositions:
        compositions[key] = compose_anew(loader, **asked)
    cfg = deepcopy(compositions[key])
    cfg.hydra.runtime.cwd = os.getcwd()
    return cfg


def interpolation_map_if_needed(overrides: Any, entries: list, self_added: bool) -> DictConfig | None:
    needed = any(entry.is_interpolation() for entry in entries)
    return interpolation_map(overrides, entries, self_added) if needed else None


# Composing a configuration takes a quarter of a second, of which these changes save two thirds.
yaml.load = load
omegaconf.base.parse = functools.cache(omegaconf.base.parse)
omegaconf._utils.parse = functools.cache(omegaconf._utils.parse)
ConfigStore.__deepcopy__ = lambda store, _memo: store  # Hydra copies it for every composition
defaults_list._create_interpolation_map = interpolation_map_if_needed
ConfigLoaderImpl._load_configuration_impl = compose_once


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
