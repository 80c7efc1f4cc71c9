"""What a report says of a row besides its numbers: a verdict on the difference to the reference, and badges.

row.verdict    a Verdict; None for the reference itself, and where a column has no reference
row.badges     what a reader must know of the number, shown wherever the number is shown
column.short   the task in one word, as in `listops-short`; column.title has it all
column.answer  the verdicts of a column in words, which a page opens with
"""

from dataclasses import dataclass

BETTER, WORSE, EQUIVALENT = "better", "worse", "equivalent"
UNDECIDED, UNTESTED = "undecided", "untested"
SIGNS = {BETTER: "+", WORSE: "−", EQUIVALENT: "=", UNDECIDED: "?"}  # in a crowded table


@dataclass(frozen=True)
class Badge:
    """A caveat of a number. `code`: for a crowded table, as in `C2/5`; `label`: two words; `meaning`: a sentence."""

    code: str
    label: str
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """A row minus its reference, seed by seed over the seeds that both have. Numbers are None where there are none.

    `estimate`: positive where the row has the higher number; `interval`: over seeds, for this test set; `crossed`: over
    seeds and examples; `p`: two-sided, `holm`: corrected over the rows of the column; `equivalence`: of two one-sided
    tests; `needed`: seeds that would decide; `of_means`: the difference of the printed means where it is another one;
    `reason`: why nothing was tested.
    """

    reference: str
    word: str
    margin: float
    seeds: int
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    crossed: tuple[float, float] | None = None
    p: float | None = None
    holm: float | None = None
    equivalence: float | None = None
    needed: int | None = None
    of_means: float | None = None
    reason: str = ""
