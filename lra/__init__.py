"""Long Range Arena benchmark harness in PyTorch: 42 sequence mixers, one trainer, seed variance."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lra.core.paths import __version__ as __version__

if TYPE_CHECKING:
    from lra.api.data import data
    from lra.api.layer import attention, attentions, check
    from lra.api.model import model
    from lra.api.results import compare, load, report
    from lra.api.training import compose, train
    from lra.core.errors import UserError

__all__ = [
    "UserError", "attention", "attentions", "check", "compare", "compose", "data", "load", "model", "report", "train",
]  # fmt: skip

_MODULES = {
    "UserError": "lra.core.errors",
    "attention": "lra.api.layer",
    "attentions": "lra.api.layer",
    "check": "lra.api.layer",
    "compare": "lra.api.results",
    "compose": "lra.api.training",
    "data": "lra.api.data",
    "load": "lra.api.results",
    "model": "lra.api.model",
    "report": "lra.api.results",
    "train": "lra.api.training",
}


def __getattr__(name: str) -> Any:
    """Return a public object, whose module is imported at the first access, so that `import lra` is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'lra' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
