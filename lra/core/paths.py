"""Where the configuration lies: inside an installed wheel, or at the top of a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent


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
