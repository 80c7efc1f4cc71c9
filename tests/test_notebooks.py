"""The notebooks run from top to bottom, each in its own kernel."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from lra.core.paths import CHECKOUT

PLACES = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
SHOWN = {  # what stands in their outputs
    "read-results": ["results of 'hour' (245 runs)", "image/png", "equivalent"],
    "my-attention": ["all checks passed", "sigmoid  seed 2", "| Sigmoid | O(L²) |", "torch.Size([2, 100, 64])"],
}
REPORT = CHECKOUT / "results" / "hour" / "README.md"
SECONDS = 300  # of one cell, on a machine that is busy


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem == "my-attention" else []) for path in PLACES],
    ids=lambda path: path.stem,
)
def test_a_notebook_is_kept_without_output_and_runs(
    path: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook runs in an empty folder beside the results, as in a checkout."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code), "clear all outputs, then commit"
    (tmp_path / "results").symlink_to(CHECKOUT / "results")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    shown = str([cell.outputs for cell in code])
    assert [text for text in SHOWN[path.stem] if text not in shown] == []
    if path.stem == "read-results":
        row = next(line for line in REPORT.read_text().splitlines() if line.startswith("| S4D |"))
        means = re.findall(r"[\d.]+ ± [\d.]+", row)
        assert len(means) == 7 and [mean for mean in means if mean not in shown] == []
