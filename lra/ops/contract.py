"""Whether a class, and what it computes, keeps the contract of a mixer: each fault is one line for who wrote the class.

`nn.Module` is not abstract: Python would let a class without its methods train until one of them is called.
"""

from collections.abc import Iterator
from inspect import Parameter, getattr_static, signature

import torch
from torch import Tensor

from lra.core.errors import UserError

FLAGS = (
    "maskable", "can_be_causal", "commutes", "projects_out", "reads_few", "full_pattern", "keeps_weights", "one_graph",
)  # fmt: skip
CARD = "card = Card(paper=..., formula=..., time=..., linear=..., oracle=...)"


def check_definition(cls: type, card: type) -> None:
    """Raises UserError with what is missing in a subclass of Mixer, or is of another form; `card`: what its card is."""
    fault = next(_faults(cls, card), None)
    if fault is not None:
        raise UserError(f"{cls.__module__}.{cls.__name__}{fault}")


def _faults(cls: type, card: type) -> Iterator[str]:
    for name, base in _left_open(cls).items():
        asked, given = getattr_static(base, name), getattr_static(cls, name)
        base_name = f"{base.__module__}.{base.__name__}"
        if isinstance(asked, property):
            if given is asked:
                yield f" has no {name}: define it as a @property, as {base_name} describes it"
            elif callable(given):
                yield f".{name} is a method: put @property above it"
            continue
        names = list(signature(asked).parameters)
        if name == "forward" and cls.reads_few is True:
            names.append("reads")
        wanted = f"{name}({', '.join(names)})"
        if given is asked:
            yield (
                f" has no {wanted}: define it as {base_name} describes it, or say that subclasses do: "
                f"class {cls.__name__}(..., abstract=True)"
            )
        elif not callable(given) or not _takes(given, len(names)):
            yield f".{name}: expected a method {wanted}, as {base_name} describes it"
    if not isinstance(getattr_static(cls, "card", None), card):
        yield f" has no card: add to the class {CARD}, with Card from lra.attention"
    first = next(iter(signature(cls).parameters.values()), None)
    if first is None or first.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        yield ".__init__: expected __init__(self, shape, *, ...) that calls super().__init__(shape)"
    for flag in FLAGS:
        value = getattr_static(cls, flag)
        if not isinstance(value, bool | property):
            yield f".{flag} = {value!r}: expected True or False"


def _left_open(cls: type) -> dict[str, type]:
    """What the bases of the class leave to their subclasses, and which base does."""
    return {
        name: base
        for base in reversed(cls.__mro__[1:])
        for name, value in vars(base).items()
        if getattr(value, "__isabstractmethod__", False)
    }


def _takes(method: object, count: int) -> bool:
    """Whether a function can be called with so many arguments, by position."""
    try:
        signature(method).bind(*range(count))
    except TypeError:
        return False
    return True


def check_output(source: str, output: object, shape: torch.Size, dtypes: tuple[torch.dtype, ...], axes: str) -> None:
    """Raises UserError unless `output` is a tensor of the shape, in the first or any other of the types, if there are
    any. It is added to or multiplied with tensors of that shape: a 1 in its own would spread it without a word."""
    if not isinstance(output, Tensor):
        given = "nothing" if output is None else type(output).__name__
    elif output.shape != shape or (dtypes and output.dtype not in dtypes):
        given = _described(output.shape, output.dtype)
    else:
        return
    raise UserError(f"{source} gives {given}, expected {_described(shape, *dtypes[:1])} ({axes})")


def _described(shape: torch.Size, dtype: torch.dtype | None = None) -> str:
    return f"{list(shape)}" + ("" if dtype is None else f" in {str(dtype).removeprefix('torch.')}")
