"""Locations of the configuration: inside an installed wheel, or at the top of a checkout."""

from pathlib import Path

from lra.core.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
USER_OPTIONS = Path("lra_options")  # a folder of options in the working directory


def conf_dir() -> Path:
    """The folder of the configuration groups."""
    installed = PACKAGE / "conf"
    return installed if installed.is_dir() else CHECKOUT / "conf"


def table1_file() -> Path:
    """The file of Table 1's rows, from which sweeps and reports take them."""
    return conf_dir() / "table1.yaml"


def systems_file() -> Path:
    """The file of further systems, which stand in no table of the paper."""
    return conf_dir() / "systems.yaml"


def expanded(path: str, key: str) -> Path:
    """Expand `~` in the value of a key. Raises UserError if the user has no home directory, as in some containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        variable = {"cache": " or LRA_CACHE=...", "data_dir": " or LRA_DATA=..."}.get(key, "")
        raise UserError(f"{key}={path}: this user has no home directory; set {key}=...{variable}") from None
