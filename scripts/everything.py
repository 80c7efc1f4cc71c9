"""The parts of scripts/everything.sh: each is run, its time and counts are kept, and a page sums them up.

A part that passed is not run again while the files that it reads are the same in HEAD. That is every file but the page,
so that it can be committed, and those that READ_BY gives to other parts. State and logs: runs/everything/PART.json and
.log.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lra.core.errors import did_you_mean
from lra.core.files import write_atomic
from lra.records.provenance import now, provenance

PAGE = Path("results/everything.md")
STATE = Path("runs/everything")
PARTS = {
    "suite": "bash scripts/test.sh",
    "slow": "bash scripts/test.sh -m slow",
    "oracles": "bash scripts/oracles.sh",
    "launchers": "bash scripts/launchers.sh",
    "demo": f"rm -rf {STATE}/demo && bash scripts/demo.sh out={STATE}/demo",
    "ten_minutes": "bash scripts/ten_minutes.sh",
    "site": f"bash scripts/docs.sh --site-dir {STATE}/site",
    "verify": ".venv/bin/lra-report --verify results --text README.md",
    "reruns": ".venv/bin/python scripts/reruns.py",
    "package": "bash scripts/package.sh",
    "faults": "bash scripts/faults.sh kills=60 inputs=60",
    "lowest": "bash scripts/versions.sh lowest",
    "newest": "bash scripts/versions.sh newest",
}
CODE_ALONE = {"oracles", "launchers", "demo", "faults"}
READ_BY = {  # these parts alone read it, or what is in the folder; every part reads all other files
    "results/": PARTS.keys() - CODE_ALONE - {"ten_minutes"},
    "docs/": PARTS.keys() - CODE_ALONE,
    "CHANGELOG.md": {"suite", "package", "site"},
    "CONTRIBUTING.md": {"suite", "package", "site"},
    "README.md": PARTS.keys() - CODE_ALONE,
    "scripts/everything.py": {"suite", "package"},
    "scripts/everything.sh": {"suite", "package"},
    "tests/test_everything.py": {"suite", "package"},
    "scripts/reruns.py": {"suite", "package", "reruns"},
}
COUNTED = r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)\b"


@dataclass(frozen=True)
class Ran:
    """What a part gave: its exit code, what it counted, in words, and its seconds."""

    part: str
    command: str
    code: int
    counts: str
    seconds: float
    commit: str
    ended: str

    @property
    def result(self) -> str:
        return "passed" if self.code == 0 else f"failed, exit code {self.code}"

    @property
    def took(self) -> str:
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{minutes} min {seconds} s"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def changed(part: str, commit: str) -> list[str]:
    """The files that a part reads and that are others in HEAD than they were at a commit; the commit, where it is of
    another clone."""
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True).returncode:
        return [commit]
    return [path for path in git("diff", "--name-only", commit, "HEAD").splitlines() if reads(part, path)]


def reads(part: str, path: str) -> bool:
    """Whether a part reads a file: by the first of READ_BY that is the file or its folder."""
    readers = (
        parts for place, parts in READ_BY.items() if path == place or (place[-1] == "/" and path.startswith(place))
    )
    return path != str(PAGE) and part in next(readers, {part})


def uncommitted() -> list[str]:
    """The paths that are not as HEAD has them, but for the page."""
    paths = [line[3:] for line in git("status", "--porcelain").splitlines()]
    return [path for path in paths if path != str(PAGE)]


def counts(log: str) -> str:
    """What a part counted: as pytest says it, the records of all folders, or else in its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    by_pytest = [line for line in lines if re.search(rf"{COUNTED}.* in [\d.]+s", line)]
    if by_pytest:
        return ", ".join(f"{number} {kind}" for number, kind in re.findall(COUNTED, by_pytest[-1]))
    verified = re.findall(r": (\d+) records, (\d+) mismatches", log)
    if len(verified) > 1:
        records, mismatches = (sum(map(int, column)) for column in zip(*verified, strict=True))
        return f"{len(verified)} folders, {records} records, {mismatches} mismatches"
    return lines[-1].strip()[:120] if lines else ""


def perform(part: str, command: str, commit: str) -> Ran:
    """Run a part, and keep what it says and gives."""
    STATE.mkdir(parents=True, exist_ok=True)
    start, log = time.monotonic(), STATE / f"{part}.log"
    with open(log, "w") as file:
        arguments = ["bash", "-c", command]
        code = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    said = counts(log.read_text(errors="replace"))
    ran = Ran(part, command, code, said, time.monotonic() - start, commit, now())
    write_atomic(STATE / f"{part}.json", json.dumps(asdict(ran), indent=1).encode())
    return ran


def kept(part: str) -> Ran | None:
    """What a part gave when it last ran here."""
    path = STATE / f"{part}.json"
    return Ran(**json.loads(path.read_text())) if path.exists() else None


def since(part: str, commit: str) -> str:
    """How many files that it reads have changed since a commit, and in which folders."""
    paths = changed(part, commit)
    folders = sorted({path.split("/")[0] for path in paths})
    return f"{len(paths)} in {', '.join(folders)}" if paths else ""


def page() -> str:
    """The summary of what ran, and of what changed since."""
    ran = {part: kept(part) for part in PARTS}
    known = sorted((run for run in ran.values() if run is not None), key=lambda run: run.ended)
    passed, seconds = sum(run.code == 0 for run in known), sum(run.seconds for run in known)
    machine = provenance({}, None, "cpu", "fp32", now())
    data = "at hand" if os.environ.get("LRA_DATA") else "not at hand, so tests of them are skipped"
    rows = [
        f"| {part} | `{run.command}` | {run.result} | {run.counts.replace('|', '/')} | {run.took} | {run.commit[:9]} | "
        f"{since(part, run.commit)} |"
        if run
        else f"| {part} | `{PARTS[part]}` | not run | | | | |"
        for part, run in ran.items()
    ]
    lines = [
        "# Everything that checks this repository\n",
        f"By `bash scripts/everything.sh`: {passed} of {len(PARTS)} parts passed, in {seconds / 60:.0f} minutes.\n",
        "- What passed at a commit holds while no file has changed that the part reads: any but this page and what "
        "`READ_BY` in `scripts/everything.py` gives to other parts.",
        f"- Last part ended: {known[-1].ended if known else 'never'}.",
        f"- Machine: {machine['cpu']}, {os.cpu_count()} cores; Python {machine['python']}, "
        f"torch {machine['packages']['torch']}.",
        f"- Raw data: {data}.\n",
        "| part | command | result | counts | time | at commit | files changed since |",
        "|---|---|---|---|---:|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def refused(parts: list[str]) -> str | None:
    """Why these parts cannot be run now."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        return f"{unknown[0]}: no such part; {did_you_mean(unknown[0], PARTS)}"
    changed = uncommitted()
    return f"{changed[0]}: not as in HEAD; commit first, since what passes is kept by the commit" if changed else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="everything.sh", description="Run what has not passed at this commit.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="the parts and their commands")
    parser.add_argument("--without-slurm", action="store_true", help="leave the launchers' tests with SLURM out")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{part:12} {command}" for part, command in PARTS.items()))
        return 0
    if refusal := refused(arguments.parts):
        print(f"everything.sh: error: {refusal}", file=sys.stderr)
        return 2
    commit = git("rev-parse", "HEAD").strip()
    commands = dict(PARTS)
    if arguments.without_slurm:
        commands["launchers"] = f"WITHOUT_SLURM=1 {commands['launchers']}"
    failed = 0
    for part in arguments.parts or PARTS:
        before = kept(part)
        passed = before is not None and before.code == 0 and before.command == commands[part]
        holds = passed and not changed(part, before.commit)
        ran = before if holds else perform(part, commands[part], commit)
        failed += ran.code != 0
        note = " (before)" if holds else "" if ran.code == 0 else f" ({STATE / part}.log)"
        print(f"{part}: {ran.result}; {ran.counts}; {ran.took}{note}", flush=True)
    write_atomic(PAGE, page().encode())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
