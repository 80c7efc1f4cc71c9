"""Long Range Arena in PyTorch: every attention on equal terms, every number with a receipt."""

from importlib import metadata

try:
    __version__ = metadata.version("lra")
except metadata.PackageNotFoundError:  # code that was never installed, on PYTHONPATH
    __version__ = "0+unknown"
