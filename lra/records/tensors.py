"""Store tensors, including shared, strided and complex ones, in a safetensors file.

The metadata of a file has one key, because safetensors does not keep several keys in order. Its value is a JSON object:
`shared` maps each further name of a stored tensor to the name under which it is stored; `complex` lists tensors stored
with a last axis of real and imaginary part; other entries are notes of the caller. All of these may be absent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import UserError

if TYPE_CHECKING:  # importing torch takes seconds, and skipping a finished run does not need it
    from torch import Tensor

NOTES = "lra"  # the only key of the metadata


def encode(tensors: "Mapping[str, Tensor]", **notes: Any) -> bytes:
    """Return the bytes of a safetensors file with the JSON values `notes` in its metadata.

    Raises:
        UserError: a value is not a tensor, or a tensor is quantized or not dense.
    """
    import torch
    from safetensors.torch import save

    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    names: dict[tuple, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            found = f"a {tensor.layout} tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise UserError(f"{name} cannot be saved: expected a dense tensor, found {found}")
        signs = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        # Tied weights are one tensor under two names. It is stored once, because safetensors refuses shared memory.
        memory = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), *signs
        if tensor.numel() and names.setdefault(memory, name) != name:
            shared[name] = names[memory]
            continue
        # Conjugated and negated tensors are lazy views, of which safetensors would store the bytes underneath.
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        stored[name] = plain.cpu().clone(memory_format=torch.contiguous_format)
    pairs = [name for name in stored if tensors[name].is_complex()]
    notes = {key: value for key, value in (("shared", shared), ("complex", pairs)) if value} | notes
    return save(stored, metadata={NOTES: json.dumps(notes)} if notes else None)


def decode(data: bytes) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return the tensors and the notes in the bytes of a file. Raises ValueError if the bytes are damaged."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # the first eight bytes are its length
        notes = json.loads(header.get("__metadata__", {}).get(NOTES, "{}"))
        tensors = load(data)
        for name in notes.get("complex", ()):
            tensors[name] = torch.view_as_complex(tensors[name])
        return tensors | {name: tensors[other] for name, other in notes.get("shared", {}).items()}, notes
    except (SafetensorError, AttributeError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def read(path: Path) -> "dict[str, Tensor]":
    """Return the tensors in the file `path`, by name. Raises UserError if it is damaged."""
    try:
        return decode(path.read_bytes())[0]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable safetensors file: {error}") from None
