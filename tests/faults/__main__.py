"""The trial: so many kills and inputs, drawn by a seed; one line a case, counts at the end, 1 where a case is not well.

PYTHONPATH=tests python -m faults kills=200 inputs=150 seed=1 out=trial.md
PYTHONPATH=tests python -m faults kills=10 inputs=0 of=race         those with "race" in their names alone
PYTHONPATH=tests python -m faults case=kills:17 seed=1
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from faults.runs import warm
from faults.trial import KINDS_OF_CASES, WELL, Outcome, Verdict, drawn, named, tried

from lra.core.files import json_bytes

WHOLE = {"kills": "200", "inputs": "150", "seed": "1", "out": "", "case": "", "of": ""}
HEAD = ("case", "what", "injected", "seen", "verdict", "seconds")


@dataclass(frozen=True)
class Done:
    """A case that was tried."""

    case: str  # kills:17
    what: str
    outcome: Outcome
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As HEAD has them, each in one line."""
        outcome = self.outcome
        cells = (self.case, self.what, outcome.injected, outcome.seen, outcome.verdict, f"{self.seconds:.1f}")
        return tuple(" ".join(cell.split()) for cell in cells)


def asked(words: list[str]) -> dict[str, str]:
    """The values on the command line, each as key=value; exits with 2 where one is none of ours."""
    known = dict(WHOLE)
    for word in words:
        key, _, value = word.partition("=")
        numeric = key in ("kills", "inputs", "seed")
        if key not in known or (numeric and not value.isdecimal()):
            what = f"{key}=NUMBER" if numeric else " ".join(f"{name}={value}" for name, value in WHOLE.items())
            sys.exit(f"faults: error: {word}: expected {what}")
        known[key] = value
    return known


def numbers(values: dict[str, str]) -> list[tuple[str, int]]:
    """The cases that are asked for, by their kind and number; exits with 2 where there is none of that kind or name."""
    for kind in KINDS_OF_CASES:
        wanted = values["case"].startswith(f"{kind}:") if values["case"] else values[kind] != "0"
        if wanted and not named(kind, values["of"]):
            sys.exit(f"faults: error: of={values['of']}: expected a part of one of: {'; '.join(named(kind))}")
    if values["case"]:
        kind, _, number = values["case"].partition(":")
        if kind not in KINDS_OF_CASES or not number.isdecimal() or int(number) < 1:
            sys.exit(f"faults: error: case={values['case']}: expected kills:NUMBER or inputs:NUMBER, counted from 1")
        return [(kind, int(number))]
    return [(kind, number) for kind in KINDS_OF_CASES for number in range(1, int(values[kind]) + 1)]


def cases(values: dict[str, str]) -> Iterator[Done]:
    for kind, number in numbers(values):
        name, case, rng = drawn(kind, int(values["seed"]), number, values["of"])
        start = monotonic()
        outcome = tried(case, rng)
        yield Done(f"{kind}:{number}", name, outcome, monotonic() - start)


def counts(done: list[Done], seconds: float) -> dict[str, int | float]:
    """How many cases of each kind came out how, by name; and the seconds."""
    tally: dict[str, int | float] = {}
    for kind in KINDS_OF_CASES:
        verdicts = Counter(trial.outcome.verdict for trial in done if trial.case.startswith(f"{kind}:"))
        tally |= {kind: verdicts.total()} | {f"{kind}, {verdict}": verdicts[verdict] for verdict in Verdict}
    return {**tally, "seconds": round(seconds)}


def said(tally: dict[str, int | float]) -> str:
    """The counts in one line."""
    parts = [
        f"{kind} {tally[kind]}: " + ", ".join(f"{tally[f'{kind}, {verdict}']} {verdict}" for verdict in Verdict)
        for kind in KINDS_OF_CASES
    ]
    return "; ".join([*parts, f"{tally['seconds']} seconds"])


def write(path: Path, values: dict[str, str], done: list[Done], tally: dict[str, int | float]) -> None:
    """What was asked, every case and the counts: as JSON into a file of that ending, else as Markdown."""
    if path.suffix == ".json":
        rows = [dict(zip(HEAD, trial.cells, strict=True)) for trial in done]
        path.write_bytes(json_bytes({"asked": values, "counts": tally, "cases": rows}))
        return
    rows = [HEAD, ["---"] * len(HEAD), *(trial.cells for trial in done)]
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    path.write_text("\n".join([f"# Trial of faults: {json.dumps(values)}", "", said(tally), "", *lines, ""]))


def main() -> None:
    values = asked(sys.argv[1:])
    start, done = monotonic(), []
    warm()
    for trial in cases(values):
        done.append(trial)
        print("  ".join(trial.cells), flush=True)
        if trial.outcome.verdict not in WELL:
            part = f" of='{values['of']}'" if values["of"] else ""
            print(f"  again: bash scripts/faults.sh case={trial.case} seed={values['seed']}{part}", flush=True)
    tally = counts(done, monotonic() - start)
    print(said(tally))
    if values["out"]:
        write(Path(values["out"]), values, done, tally)
    sys.exit(any(trial.outcome.verdict not in WELL for trial in done))


if __name__ == "__main__":
    main()
