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


def expanded(path: str, key: str) -> Path:
    """Expand `~` in the value of a key. Raises UserError if the user has no home directory, as in some containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{key}={path}: this user has no home directory; write the folder without ~") from None
