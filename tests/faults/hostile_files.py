"""Files that were made to do harm: what lies beside records, receipts, archives, raw data."""

import gzip
import hashlib
import io
import json
import lzma
import pickle
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from faults.harmless import faults_in, outcome, ran
from faults.hostile import drawn, results, rewrite
from faults.hostile_runs import judged, junk, spoiled
from faults.payloads import Bomb
from faults.trial import Case, Outcome
from reports import complete

from lra.cli import prepare
from lra.cli.report import main as report
from lra.core.files import digest
from lra.records import record
from lra.records.names import METRICS, PREDICTIONS, RECEIPTS


def records_of_a_folder(rng: Random, folder: Path) -> Outcome:
    """As above, among other records, which are still reported."""
    path = rng.choice(results(folder / "runs"))
    content = record.read(path) | {"schema": record.SCHEMA}
    where = spoiled(content, rng)
    path.write_text(json.dumps({"sha256": digest(content), **content}))
    asked = rng.choice(("--verify", "--pages-only", "--once", "--cards", "--pack", "--overview"))
    ended = ran(report, "." if asked == "--overview" else "runs", asked)
    return judged(f"record: {where}; lra-report {asked}", ended, folder)


def evaluations(rng: Random, folder: Path) -> Outcome:
    """Lines of metrics.jsonl that the record vouches for."""
    path = rng.choice(results(folder / "runs"))
    complete(folder / "runs")
    line = {"step": 50, "val_accuracy": 37.0, "val_loss": 1.0, "seconds": 1.0, "train_loss": 2.0, "lr": 0.1}
    for _ in range(rng.randrange(1, 3)):
        key = rng.choice([*line, "blocks", drawn(rng)[:30]])
        line[key] = junk(rng)
    data = (json.dumps(line) + "\n").encode()
    kinds: list[Callable[[], bytes]] = [
        lambda: data * 3, lambda: data.replace(b"\n", b"\r\n") * 2, lambda: b"\xef\xbb\xbf" + data,
        lambda: data[:-1], lambda: b"\xff" + data, lambda: b'{"step": 1, "val_loss": 1e999}\n', lambda: b"\n\n\n",
        lambda: b'{"step": 1, "val_accuracy": 50.0, "val_loss": 1.0, "seconds": 1}\n' * 200_000,
        lambda: b'{"step": ' + b"9" * 5000 + b"}\n", lambda: b'{"step": 5, "val_loss": ' + b"[" * 5000 + b"}\n",
    ]  # fmt: skip
    kind = rng.randrange(len(kinds))
    path.with_name(METRICS).write_bytes(kinds[kind]())
    rewrite(path, files=record.sha256(path.parent, METRICS))
    asked = rng.choice(("--verify", "--pages-only", "--once"))
    return judged(f"metrics.jsonl {kind}: {line!r:.60}; {asked}", ran(report, "runs", asked), folder, most=3)


def array(rng: Random, folder: Path) -> Outcome:
    """predictions.npy and costs.npy that the record vouches for."""
    path = rng.choice(results(folder / "runs"))
    complete(folder / "runs")
    arrays = [
        np.array([[Bomb()]], dtype=object), np.zeros((2, 2000)), np.full((2, 2000), np.nan), np.zeros((2, 2000), "U3"),
        np.zeros((2, 2000), complex), np.zeros((2, 2000), [("a", "u1")]), np.full((2, 2000), -5), np.zeros((2, 0)),
        np.full((2, 2000), 2**62), np.zeros((2, 2000), "M8[s]"), np.array(3), np.zeros((2000, 2)), np.zeros((2,
        2000), bool),
    ]  # fmt: skip
    data = io.BytesIO()
    np.save(data, rng.choice(arrays), allow_pickle=True)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2, %d), }" % 2**50
    evil = b"{'descr': __import__('os').system('touch executed'), 'fortran_order': False, 'shape': (2, 2000)}"
    texts = [b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" for text in (header, evil)]
    content = rng.choice(
        [data.getvalue()] * 9 + [*texts, b"\x93NUMPY\x09\x00", b"PK\x03\x04", b"", pickle.dumps(Bomb())]
    )
    name = rng.choice((PREDICTIONS, PREDICTIONS, "costs.npy"))
    path.with_name(name).write_bytes(content)
    rewrite(path, files=record.sha256(path.parent, name))
    asked = rng.choice(("--verify", "--pages-only", "--submit", "--cards"))
    ended = ran(report, "runs", asked)
    wrong = ["code was run"] * Path("executed").exists()
    return outcome(f"{name}: {content[:70]!r}; {asked}", ended, *wrong, *faults_in(folder), at_most=3)


def claims(rng: Random, folder: Path) -> Outcome:
    """Numbers that the files beside a record do not give: --verify says so."""
    path = rng.choice(results(folder / "runs"))
    complete(folder / "runs")
    assert ran(report, "runs", "--pages-only").code == 0
    original = record.read(path)
    entry = original["test"]["best_val"] | rng.choice([
        {"accuracy": 99.0}, {"correct": 1900, "accuracy": 95.0}, {"examples": 20, "correct": 19, "accuracy": 95.0},
        {"perplexity": 1.5}, {"loss": 0.3},
    ])  # fmt: skip
    validation = {"best": original["validation"]["best"] | {"correct": 1900, "accuracy": 95.0}}
    parts = rng.choice([{"test": {"best_val": entry}}, {"validation": validation}, {"seed": 77}, {"steps": 3}])
    rewrite(path, **parts)
    ended = ran(report, "runs", "--verify")
    wrong = [] if ended.code == 1 or (ended.code == 2 and "error:" in ended.err) else ["--verify finds nothing"]
    return outcome(f"claimed: {parts!r:.80}", ended, *wrong, at_most=3)


def receipts(rng: Random, folder: Path) -> Outcome:
    """A receipts.zip by hand: names, kinds, lists and sizes of its members."""
    results(folder / "runs")
    complete(folder / "runs")
    assert ran(report, "runs", "--pages-only").code == 0
    assert ran(report, "runs", "--pack").code == 0
    target = folder / "runs" / RECEIPTS
    with zipfile.ZipFile(target) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(
        ["../outside", "/tmp/outside", "a/../../b", "a\\..\\b", "C:x", "a\nb", "\x1b[31m", "x" * 5000, "", "a/"]
    )
    kind = rng.choice(
        ["name", "name", "link", "device", "bomb", "twice", "many", "list", "encrypted", "lzma", "comment"]
    )
    sums = members.pop("SHA256SUMS").decode()
    extra = {"bomb": bytes(2**28), "many": b""}.get(kind, b"x")
    if kind != "list":
        sums += f"{hashlib.sha256(extra).hexdigest()}  {name}\n"
    else:
        sums = rng.choice(
            [sums[:-9], sums * 2, sums.replace("  ", " *"), "\xff" + sums, sums + "0" * 64 + "  a\x1b[31m\n"]
        )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {"SHA256SUMS": sums.encode(), **members}.items():
            archive.writestr(member, data)
        info = zipfile.ZipInfo(name or "a")
        modes = {"link": stat.S_IFLNK, "device": stat.S_IFCHR}
        info.external_attr = (modes.get(kind, stat.S_IFREG) | 0o777) << 16
        info.compress_type = zipfile.ZIP_LZMA if kind == "lzma" else zipfile.ZIP_DEFLATED
        for number in range({"twice": 2, "many": 70_000}.get(kind, 1) if kind != "list" else 0):
            info.filename = f"{name}{number}" if kind == "many" else info.filename
            archive.writestr(zipfile.ZipInfo(info.filename) if kind == "many" else info, extra)
        archive.comment = b"\x1b[31m" * 99
    asked = rng.choice(("--unpack", "--verify", "--pages-only", "--once", "--pack"))
    return judged(f"receipts.zip, {kind} {name[:30]!r}; {asked}", ran(report, "runs", asked), folder)


def raw_data(rng: Random, folder: Path) -> Outcome:
    """Files of a person's own texts: lra-prepare task=files."""
    (folder / "mine").mkdir()
    rows = "".join(f"the text {number} {drawn(rng)[:20]!r},{number % 2}\n" for number in range(40))
    head, line = b"text,label\n", rows.replace('"', "").encode(errors="replace")
    kinds: dict[str, bytes] = {
        "train.csv": rng.choice([
            head + line + b"\xff\xfe,1\n", b"\xef\xbb\xbf" + head + line, (head + line).replace(b"\n", b"\r\n"),
            head + b'"never closed,1\n' * 99, head + b"\0,1\n" + line, head + line + b"x" * 2**22 + b",1\n",
            b"text,label,label\n" + line, b"", head, head + b"a\n" * 50, line,
            head + b"=1+1,<b>\n" * 20 + b"y,\x1b[31m\n" * 20,
            head + b"".join(b"a,%d\n" % number for number in range(3000)), head + line + b"a," + b"9" * 10**5 + b"\n",
        ]),
        "train.jsonl": rng.choice([
            b'{"text": "a", "label": NaN}\n', b'{"text": ' + b"[" * 10**5 + b"\n", b'{"text": "\\ud800", "label": 1}\n',
            b'{"text": 5, "label": 1}\n', b'{"text": "a", "label": ' + b"9" * 10**5 + b"}\n", b"null\n", b"\xff\n",
            b'{"text": "a", "label": true}\n', b'{"text": "a", "label": {"_target_": "os.system"}}\n',
        ]),
        "train.csv.gz": rng.choice([gzip.compress(bytes(2**29)), gzip.compress(head + line)[:-9], b"\x1f\x8b", b"x"]),
        "train.csv.xz": rng.choice([lzma.compress(bytes(2**26)), lzma.compress(head + line)[:-9], b"\xfd7zXZ"]),
        "train.parquet": rng.choice([b"PAR1" + bytes(99) + b"PAR1", b"", pickle.dumps(Bomb())]),
        "train.tsv": b"text\tlabel\n" + line,
    }  # fmt: skip
    name = rng.choice(sorted(kinds))
    (folder / "mine" / name).write_bytes(kinds[name])
    words = [
        "task=files",
        "task.data=mine",
        "cache=own",
        "card=own.md",
        f"task.name='{rng.choice(('a', '../../x', '=1'))}'",
    ]
    ended = ran(prepare.main, *words, *rng.choice([[], ["task.tokens=bpe", "task.vocabulary=300"]]))
    return outcome(f"{name}: {kinds[name][:40]!r}", ended, *faults_in(folder))


def archives(rng: Random, folder: Path) -> Outcome:
    """A tar in place of the published one, where a task reads archives."""
    raw = folder / "data"
    raw.mkdir()
    kind = rng.choice(
        [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE]
    )
    name = rng.choice(
        ["lra_release/../../outside", "/etc/x", "lra_release/listops-1000/basic_train.tsv", "a" * 90 + "\x1b[31m"]
    )
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, rng.choice(["/etc/passwd", "../../precious/deep/thesis.txt"])
    data = bytes(2**26) if rng.random() < 0.3 else b"Source\tTarget\n1\t1\n"
    member.size = len(data) if kind == tarfile.REGTYPE else 0
    file = raw / rng.choice(["aclImdb_v1.tar.gz", "lra_release.gz", "aan.tar.gz", "cifar-10-python.tar.gz"])
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        tar.addfile(member, io.BytesIO(data))
    for other in ("aclImdb_v1.tar.gz", "cifar-10-python.tar.gz"):
        if not (raw / other).exists():
            shutil.copy(file, raw / other)
    task = rng.choice(("text", "image"))
    ended = ran(prepare.main, f"task={task}", "data_dir=data", "cache=own")
    return outcome(f"{task}: member {name[:40]!r} of kind {kind!r}", ended)


INPUTS: dict[str, Case] = {
    "any field of one record of many": records_of_a_folder,
    "lines of metrics.jsonl": evaluations,
    "arrays": array,
    "claims without predictions": claims,
    "receipts.zip made by hand": receipts,
    "texts of one's own": raw_data,
    "archives of data": archives,
}
