"""Find the installed version of lra and the folder conf/, inside the package or at the top of a checkout."""

from importlib import metadata
from pathlib import Path

from lra.core.errors import UserError

try:
    __version__ = metadata.version("lra")
except metadata.PackageNotFoundError:  # lra is on PYTHONPATH and not installed
    __version__ = "0+unknown"

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
USER_OPTIONS = Path("lra_options")  # folder with the user's options, in the working directory


def conf_dir() -> Path:
    """Return the folder with the configuration groups (conf/)."""
    installed = PACKAGE / "conf"
    return installed if installed.is_dir() else CHECKOUT / "conf"


def expanded(path: str, key: str) -> Path:
    """Return `path`, the value of `key`, with `~` expanded. Raises UserError if the user has no home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # as in some containers
        raise UserError(f"{key}={path}: this user has no home directory; write the folder without ~") from None
