"""The installed version, and the folder of the configuration: inside a wheel, or at the top of a checkout."""

from importlib import metadata
from pathlib import Path

try:
    __version__ = metadata.version("lra")
except metadata.PackageNotFoundError:  # code that was never installed, on PYTHONPATH
    __version__ = "0+unknown"

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent


def conf_dir() -> Path:
    """Return the folder of the configuration groups."""
    installed = PACKAGE / "conf"
    return installed if installed.is_dir() else CHECKOUT / "conf"


def table1_file() -> Path:
    """Return the file of Table 1's rows, which sweeps and reports read."""
    return conf_dir() / "table1.yaml"


def systems_file() -> Path:
    """Return the file of further systems, which are in no table of the paper."""
    return conf_dir() / "systems.yaml"
