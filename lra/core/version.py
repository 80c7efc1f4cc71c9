"""The version of this package, as it was installed."""

from importlib import metadata

try:
    __version__ = metadata.version("lra")
except metadata.PackageNotFoundError:  # code that was never installed, on PYTHONPATH
    __version__ = "0+unknown"
