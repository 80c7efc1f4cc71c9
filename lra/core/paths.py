"""The installed version, and locations of the configuration: inside a wheel, or at the top of a checkout."""

from importlib import metadata
from pathlib import Path

from lra.core.errors import UserError

try:
    __version__ = metadata.version("lra")
except metadata.PackageNotFoundError:  # code that was never installed, on PYTHONPATH
    __version__ = "0+unknown"

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
USER_OPTIONS = Path("lra_options")  # a folder of options in the working directory


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


def expanded(path: str, key: str) -> Path:
    """Expand `~` in the value of a key. Raises UserError if the user has no home directory, as in some containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        variable = {"cache": " or LRA_CACHE=...", "data_dir": " or LRA_DATA=..."}.get(key, "")
        raise UserError(f"{key}={path}: this user has no home directory; set {key}=...{variable}") from None
