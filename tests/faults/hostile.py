"""Names and texts that were made to do harm, in everything that a report shows: they stand there as text."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from faults.harmless import MARK, bounded, faults_in, outcome, ran
from faults.runs import Ended
from faults.trial import Case, Outcome
from reports import complete, declare, put

from lra.cli.report import main as report
from lra.core.files import digest
from lra.records import record
from lra.records.names import RECORD
from lra.report.render import figures

TEXTS = {
    "script": f"<script>{MARK}()</script>",
    "image": f'"><img src=x onerror={MARK}()>',
    "event": f"' onmouseover='{MARK}()' x='",
    "end of a script": f"</script><script>{MARK}()</script>",
    "end of a comment": f"--><svg onload={MARK}()>",
    "comment": f"<!--{MARK}",
    "entity": f"&lt;{MARK}&gt; &#60;{MARK}&#62;",
    "end of a title": f"</title></style><{MARK}>",
    "template": f"${MARK} ${{style}} {{{MARK}}} %({MARK})s",
    "address of a script": f"javascript:{MARK}()",
    "LaTeX that reads": f"\\input{{{MARK}}}",
    "LaTeX that runs": f"\\immediate\\write18{{{MARK}}}",
    "LaTeX that closes": f"{MARK}}}\\{MARK}{{",
    "LaTeX that opens": f"{{{{{MARK} $ & % # _ ~ ^^5c{MARK}",
    "LaTeX in an order": f"O(\\input{{{MARK}}})",
    "mathematics": f"$\\frac{{{MARK} $x_",
    "rows": f"{MARK} | {MARK} \\\\ & {MARK}",
    "link": f"[{MARK}](javascript:{MARK}) ![{MARK}](http://{MARK}.example/x.png)",
    "reference": f"[{MARK}]: http://{MARK}.example",
    "address": f"http://{MARK}.example <http://{MARK}.example>",
    "code": f"`{MARK} ```{MARK}",
    "heading": f"# {MARK}\n# {MARK}\n\n---\n",
    "list": f"- {MARK}",
    "quotation": f"> {MARK}",
    "emphasis": f"**{MARK} _{MARK}_ ~~{MARK}~~",
    "placeholder": f"<!--{{{MARK}}}-->1<!--{{}}-->",
    "colour": f"\x1b[31m{MARK}\x1b[2J\x9b31m",
    "title of a terminal": f"\x1b]0;{MARK}\x07\x08\x08",
    "markup": f"[bold]{MARK}[/][/] [link=file:///]{MARK}",
    "other direction": f"\u202e{MARK}\u2066\u200b",
    "zero byte": f"\x00{MARK}",
    "half a character": f"{MARK}\ud800",
    "other lines": f"{MARK}\r{MARK}\u2028{MARK}\x85{MARK}\x0b",
    "formula": f"=cmd|' /C {MARK}'!A0",
    "formula with a sign": f"@SUM({MARK})",
    "formula after a tab": f"\t={MARK}",
    "path upwards": f"../../{MARK}",
    "path from the root": f"/{MARK}/../etc",
    "endless": f"{MARK}" * 3_000,
    "combining": f"{MARK}" + "\u0301" * 500,
}  # fmt: skip


NAMES = ("task", "attention", "variant", "protocol", "baselines")
MADE_BY = ("commit", "cpu", "python", "precision", "data_sha256")
ROW = {"name": "Mine", "complexity": "L"}


def drawn(rng: Random) -> str:
    """One of them, or two of them together."""
    first, second = rng.sample(sorted(TEXTS), 2)
    return TEXTS[first] + (TEXTS[second] if rng.random() < 0.3 else "")


def results(root: Path, **changes: Any) -> list[Path]:
    """The records of three systems; returns those of one of them."""
    for seed, accuracy in enumerate((31.0, 38.5, 37.5), start=1):
        put(root, seed, accuracy + 2, attention="softmax", variant="transformer")
        put(root, seed, accuracy - 7, attention="linear", variant="transformer", settings={"model.depth": 2})
    cells = [("softmax", "transformer"), ("simple", "simple")]
    declare(
        root, *({"attention": attention, "variant": variant, "seeds": [1, 2, 3, 4]} for attention, variant in cells)
    )
    return [put(root, seed, accuracy, **changes) for seed, accuracy in enumerate((31.0, 38.5, 37.5), start=1)]


def rewrite(path: Path, **parts: Any) -> None:
    """Change a record, whose digest is right afterwards, whatever characters are in it."""
    run = record.read(path) | {"schema": record.SCHEMA}
    for name, part in parts.items():
        run[name] = {**run.get(name, {}), **part} if isinstance(part, dict) else part
    run["provenance"]["config_sha256"] = digest(run["config"])
    path.write_text(json.dumps({"sha256": digest(run), **run}))


def reported(injected: str, folder: Path, rng: Random, *, figures_too: bool = False) -> Outcome:
    """The report of `runs`, and then one more thing that a person does with it."""
    first = ran(report, "runs", inside=_with_figures if figures_too else bounded)
    asked = rng.choice(("--verify", "--pack", "--once", "--cards", "--submit", "--pages-only"))
    second = ran(report, "runs", asked)
    both = Ended(max(first.code, second.code), first.out + second.out, first.err + second.err)
    return outcome(f"{injected}, then {asked}", both, *faults_in(folder), at_most=2)


def _with_figures() -> None:
    honest = figures.write_figures
    bounded()
    figures.write_figures = honest
    import lra.report

    lra.report.render.figures.write_figures = honest


def in_record(name: str, *path: str, figures_too: bool = False) -> Case:
    """Of a text in a field of every record of a system; the last part may be a key: `{}`."""

    def case(rng: Random, folder: Path) -> Outcome:
        text = drawn(rng)
        value: Any = {text: 17.05} if name == "baselines" else text
        for key in reversed(path):
            value = {key.replace("{}", text): value}
        for place in results(folder / "runs"):
            rewrite(place, **({"row": ROW | value} if name == "row" else {name: value}))
        return reported(f"{'.'.join((name, *path))}: {text[:60]!r}", folder, rng, figures_too=figures_too)

    return case


def in_diagnostics(rng: Random, folder: Path) -> Outcome:
    text = drawn(rng)
    group = {f"{text}{number}": {"examples": 1000, "correct": 10 * number} for number in range(3)}
    for place in results(folder / "runs"):
        rewrite(place, diagnostics={text: group, "length": group})
    return reported(f"groups of examples: {text[:60]!r}", folder, rng, figures_too=True)


def in_failure(rng: Random, folder: Path) -> Outcome:
    text = drawn(rng)
    results(folder / "runs")
    rewrite(put(folder / "runs", 4, None), reason=text)
    return reported(f"reason of a failure: {text[:60]!r}", folder, rng)


def in_settings(rng: Random, folder: Path) -> Outcome:
    text = drawn(rng)
    for place in results(folder / "runs"):
        rewrite(place, settings={text: rng.choice([text, [text], {"a": text}, 10**400, None])})
    return reported(f"settings: {text[:60]!r}", folder, rng)


def in_sample(rng: Random, folder: Path) -> Outcome:
    """What a language model wrote."""
    text = drawn(rng)
    entry = {"perplexity": 31.0, "loss": float(np.log(31.0)), "accuracy": 20.0, "correct": 4, "examples": 20, "step": 9}
    for seed in (1, 2):
        put(folder / "runs", seed, 1.0, metric="perplexity", task="books", test={"last": entry, "best_val": entry})
    complete(folder / "runs")
    for path in folder.rglob("sample.txt"):
        path.write_bytes((text * 3).encode(errors="surrogatepass"))
        rewrite(path.with_name(RECORD), files=record.sha256(path.parent, path.name))
    return reported(f"generated text: {text[:60]!r}", folder, rng)


def in_declaration(rng: Random, folder: Path) -> Outcome:
    text = drawn(rng)
    results(folder / "runs")
    key = rng.choice(["task_name", "attention", "variant", "protocol", "reference", "folder", "settings", "seeds"])
    cell = {"task_name": "listops", "protocol": "paper", "attention": "mine", "variant": "mine", "settings": {}}
    cell |= {"selection": "best_val", "folder": "listops/mine", "seeds": [1], "margin": 1.5, "reference": "Simple"}
    cells = [cell | {key: {"settings": {text: text}, "seeds": [1, 10**30]}.get(key, text)}]
    declared = {"schema": record.SCHEMA, "sha256": digest(cells), "cells": cells}
    (folder / "runs" / "sweep.json").write_text(json.dumps(declared))
    return reported(f"sweep.json, {key}: {text[:60]!r}", folder, rng)


def in_published(rng: Random, folder: Path) -> Outcome:
    text = drawn(rng)
    results(folder / "runs")
    systems = [{"name": text, "attention": "linear", "variant": "transformer", "complexity": text}]
    source = {
        "name": text,
        "reference": text,
        "numbers": text,
        "best": {text: {"listops": 37.0}, "Simple": {"listops": 1}},
    }
    whole = {"tasks": {"listops": text}, "systems": systems, "sources": [source]}
    (folder / "runs" / "published.yaml").write_text(json.dumps(whole))
    return reported(f"published.yaml: {text[:60]!r}", folder, rng, figures_too=True)


def in_costs(rng: Random, folder: Path) -> Outcome:
    """attentions.json, which lies beside the folder."""
    text = drawn(rng)
    results(folder / "runs")
    length = rng.choice([text, "1024", "9" * 5000, "٣"])
    cost = {"ratio": [1.0, 1.0, 1.0], "memory": 1.0}
    rows = {"softmax": {"settings": text, "lengths": {length: cost}}}
    (folder / "attentions.json").write_text(json.dumps({"rows": rows, "flags": {"softmax": {text: True}}}))
    ended = ran(report, "runs", "--cards")
    return outcome(f"attentions.json: {text[:40]!r}, length {length[:40]!r}", ended, *faults_in(folder))


def in_folders(rng: Random, folder: Path) -> Outcome:
    """Names of folders: bytes that are no text among them."""
    names = [os.fsencode(text[:80].replace("/", "∕").replace("\0", "")) for text in map(_encodable, TEXTS.values())]
    name = os.fsdecode(
        rng.choice([*names, b"caf\xe9", b"\xff\xfe", b"~", b"-rf", b"--overview", b"%2e%2e", b"a:b", b" "])
    )
    above = rng.random() < 0.5
    root = Path("all" if above else "all/runs") / name
    results(root)
    if above:
        first, asked = ran(report, f"all/{name}"), rng.choice(("--overview", "--verify"))
        second = ran(report, "all", asked)
    else:
        declare(Path("all/runs"), {"attention": "simple", "variant": "simple", "seeds": [1, 2]})
        first, asked = ran(report, "all/runs"), rng.choice(("--overview", "--verify", "--pack", "--unpack"))
        second = ran(report, "all" if asked == "--overview" else "all/runs", asked)
    both = Ended(max(first.code, second.code), first.out + second.out, first.err + second.err)
    place = "of the results" if above else "inside of the results"
    return outcome(f"folder {place} {os.fsencode(name)[:50]!r}, then {asked}", both, *faults_in(folder), at_most=30)


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def in_findings(rng: Random, folder: Path) -> Outcome:
    """Pages beside results folders: their titles, and placeholders for numbers."""
    text = drawn(rng)
    results(folder / "all" / "one")
    placeholder = rng.choice([text, "one/listops/Simple/mean", "one/" * 99, "../../one", "one/\x1b[31m"])
    (folder / "all" / "findings.md").write_bytes(
        f"x <!--{{{placeholder}}}-->1<!--{{}}-->\n".encode(errors="surrogatepass")
    )
    beside = folder / "all" / "own.md"
    rng.choice([_title(text), lambda path: path.symlink_to("/etc/hostname"), os.mkfifo, _bytes])(beside)
    ended = ran(report, "all", rng.choice(("--overview", "--fill", "--verify")))
    for path in (beside, folder / "all" / "findings.md"):
        path.unlink()
    return outcome(f"findings and pages beside: {text[:60]!r}", ended, *faults_in(folder), at_most=9)


def _title(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(f"# {text}\n".encode(errors="surrogatepass"))


def _bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 9)


def in_earlier_report(rng: Random, folder: Path) -> Outcome:
    """The table1.json of an earlier report names the figures that are to be removed."""
    text = drawn(rng)
    results(folder / "runs")
    paths = rng.choice([["../../precious/deep/thesis.txt"], ["/etc/hostname"], ["figures/../../x.svg"], [text]])
    listed = {"title": text, "selection": None, "figures": dict.fromkeys(paths, "0" * 64)}
    (folder / "runs" / "table1.json").write_text(json.dumps(listed))
    ended = ran(report, "runs", *rng.choice((["--verify"], [], ["--pages-only"])))
    return outcome(f"table1.json that lists {paths[0][:60]!r}", ended, *faults_in(folder))


def on_a_board(rng: Random, folder: Path) -> Outcome:
    """Files that strangers submit: their names and what is in them."""
    text = drawn(rng)
    for place in results(folder / "runs"):
        rewrite(place, attention=text[:99], row={"name": text, "complexity": text})
    complete(folder / "runs")
    first = ran(report, "runs", "--submit")
    (folder / "board").mkdir()
    name = os.fsdecode(rng.choice([b"caf\xe9", b"javascript:x", b"<img src=x>", b"a\nb", b"=1+1", b"\x1b[31m"]))
    shutil.copy("runs.receipts.zip", Path("board") / f"{name}.receipts.zip")
    second = ran(report, "board", "--board")
    both = Ended(max(first.code, second.code), first.out + second.out, first.err + second.err)
    return outcome(f"submission {os.fsencode(name)!r}: {text[:50]!r}", both, *faults_in(folder), at_most=2)


INPUTS: dict[str, Case] = {
    **{f"text in {name} of a record": in_record(name) for name in NAMES},
    "text in row.name of a record": in_record("row", "name"),
    "text in row.complexity of a record": in_record("row", "complexity"),
    "text in the names of a record, in figures": in_record("task", figures_too=True),
    "text in the configuration of a record": in_record("config", "model", "{}"),
    **{f"text in {name} of a record": in_record("provenance", name) for name in MADE_BY},
    "text in the groups of a record": in_diagnostics,
    "text in the reason of a failure": in_failure,
    "text in the settings of a record": in_settings,
    "text that a model generated": in_sample,
    "text in sweep.json": in_declaration,
    "text in published.yaml": in_published,
    "text in attentions.json": in_costs,
    "names of folders": in_folders,
    "text in findings and beside": in_findings,
    "an earlier table1.json": in_earlier_report,
    "files on a board": on_a_board,
}  # fmt: skip
