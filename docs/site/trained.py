"""Results of an attention in the kept results."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import studies

from lra.reports.render import escape
from lra.reports.tables import mean_sd, number


@dataclass(frozen=True)
class Trained:
    """A system in a column of a results folder."""

    folder: str
    row: Any  # of the frame of cells


def trained(top: Path) -> dict[str, list[Trained]]:
    """Return the systems of each attention that have no settings of their own."""
    known: dict[str, list[Trained]] = defaultdict(list)
    for folder, report in studies.reports(top).items():
        cells = report.cells.rename(columns={"mean": "mean_"})
        for row in cells[(cells.kind == "system") & (cells.settings == "")].itertuples():
            known[row.attention].append(Trained(folder, row))
    return known


def section(runs: Sequence[Trained]) -> Iterator[str]:
    """Yield lines of Markdown; none where the attention was not trained."""
    if not runs:
        return
    yield "## Results\n"
    yield "Test split, mean ± sd over seeds, small models.\n"
    yield "| results | task | system | result | n | solved | median steps | compared with the reference |"
    yield "|---|---|---|---:|---:|---:|---:|---|"
    for run in runs:
        row = run.row
        named = isinstance(row.reference, str)
        verdict = f"{row.verdict} ({escape(row.reference)})" if named else "the reference"
        cells = [f"[{run.folder}](../results/{run.folder}/README.md)", escape(row.column), escape(row.system)]
        solved = f"{int(row.solved)} of {int(row.ran)}" if row.goal == row.goal else ""
        cells += [mean_sd(row.mean_, row.sd), str(int(row.n)), solved, number(row.median_steps, ",.0f"), verdict]
        yield f"| {' | '.join(cells)} |"
    yield ""
