"""Tensors of every kind that torch trains are saved and read back with their names, types and values."""

from pathlib import Path

import pytest
import torch

from lra.core.errors import UserError
from lra.records import tensors

WEIGHT = torch.arange(12.0).view(3, 4)
KINDS = {
    "transposed": WEIGHT.T,
    "expanded": WEIGHT[:1].expand(5, 4),
    "part of another": WEIGHT[1:],
    "overlapping part": WEIGHT.view(-1)[2:7],
    "every second": WEIGHT[:, ::2],
    "number": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "complex": torch.complex(WEIGHT, -WEIGHT),
    "complex of float64": torch.complex(WEIGHT, -WEIGHT).to(torch.cdouble),
    "complex, empty": torch.empty(2, 0, dtype=torch.cfloat),
    "conjugate": torch.complex(WEIGHT, -WEIGHT).T.conj(),
    "imaginary part of a conjugate": torch.complex(WEIGHT, WEIGHT).conj().imag,
    "bfloat16": WEIGHT.bfloat16().T,
    "half": WEIGHT.half(),
    "parameter": torch.nn.Parameter(torch.linalg.qr(torch.eye(3) + 1)[0]),
    "bool": WEIGHT > 3,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_is_read_back_as_it_was(kind: str, tmp_path: Path) -> None:
    given = {"whole": WEIGHT, "one": KINDS[kind], "same": KINDS[kind]}
    (tmp_path / "file").write_bytes(tensors.encode(given))
    read = tensors.read(tmp_path / "file")
    assert read.keys() == given.keys()
    for name, tensor in given.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)


def test_a_shared_tensor_is_saved_once_and_notes_are_kept() -> None:
    large = torch.ones(1000)
    data = tensors.encode({"query": large, "key": large, "copy": large.clone()}, step=3)
    assert 8000 < len(data) < 9000
    assert tensors.decode(data)[1]["step"] == 3
    assert tensors.encode({"one": large}) == tensors.encode({"one": large})


def test_tensors_that_cannot_be_saved_are_named() -> None:
    for value, found in ((torch.eye(3).to_sparse(), "torch.sparse_coo"), ({"a": 1}, "dict")):
        with pytest.raises(UserError, match=f"^mask cannot be saved: expected a dense tensor, found .*{found}"):
            tensors.encode({"mask": value})
