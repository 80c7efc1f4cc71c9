"""Long Range Arena benchmark harness in PyTorch: 42 sequence mixers, one trainer, seed variance."""

import sys
from importlib import import_module
from types import ModuleType
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

_PLACES = {
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
_PACKAGES = ("attention", "data", "model", "report")  # and functions as well


def _public(name: str) -> Any:
    return getattr(import_module(_PLACES[name]), name)


class _Function(ModuleType):
    """A package that is called as the function of its name: `lra.attention`, `lra.data`, `lra.model`, `lra.report`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _public(self.__name__.rpartition(".")[2])(*arguments, **options)


class _Lra(ModuleType):
    """Public names are imported when they are asked for, so that importing `lra` takes no time."""

    def __getattr__(self, name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module 'lra' has no attribute {name!r}", name=name, obj=self)
        return import_module(f"{__name__}.{name}") if name in _PACKAGES else _public(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PACKAGES and isinstance(value, ModuleType):  # as Python does when it has imported a package
            value.__class__ = _Function
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Lra
