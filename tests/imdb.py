"""IMDB reviews for tests: few of them, written as every source has them, and read by plain Python."""

import io
import json
import lzma
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

from lra.tasks import Place, Split
from lra.tasks.text import Text

PER_CLASS = 13
Reviews = dict[str, list[tuple[int, str]]]


def place(cache: Path, data_dir: Path | None) -> Place:
    return Place(cache=cache, data_dir=data_dir, workers=1, progress=lambda done, total: None)


def imdb(**changes: Any) -> Text:
    return Text(**{"max_length": 37, "validation": "test", "limit": None, **changes})


def few() -> Reviews:
    """13 of each class and split, in no order; some equal, one with both labels, some longer than 37 bytes."""
    words = {0: "awful <br /><br />", 1: "splendid, très"}
    splits: Reviews = {}
    for split in ("train", "test"):
        rows = [
            (label, f"{number % 9} {split}: {words[label]}" * (1 + number % 3))
            for number in range(12)
            for label in (1, 0)
        ]
        splits[split] = [(1, "as it is"), *rows, (0, "as it is")]
    return splits


def by_file(reviews: Reviews) -> list[tuple[str, bytes]]:
    """Members of the archive, as the original names them."""
    seen: Counter[tuple[str, int]] = Counter()
    files = []
    for split, rows in reviews.items():
        for label, review in rows:
            files.append((f"aclImdb/{split}/{('neg', 'pos')[label]}/{seen[split, label]}_7.txt", review.encode()))
            seen[split, label] += 1
    return files


def write_archive(folder: Path, members: list[tuple[str, bytes]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "aclImdb_v1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def as_archive(folder: Path, reviews: Reviews) -> None:
    beside = [("aclImdb/README", b"a note"), ("aclImdb/train/unsup/0_0.txt", b"no label"), ("aclImdb/imdb.vocab", b"a")]
    write_archive(folder, [*beside, *by_file(reviews)])


def as_folder(folder: Path, reviews: Reviews) -> None:
    for name, data in [("aclImdb/train/unsup/0_0.txt", b"no label"), *by_file(reviews)]:
        path = folder / "imdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def as_json_lines(folder: Path, reviews: Reviews) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in reviews.items():
        lines = [
            json.dumps({"id": number, "label": label, "text": review}) for number, (label, review) in enumerate(rows)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def as_compressed_json_lines(folder: Path, reviews: Reviews) -> None:
    as_json_lines(folder / "imdb", reviews)
    for split in reviews:
        path = folder / "imdb" / f"{split}.jsonl"
        (folder / "imdb" / f"{split}.jsonl.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()


def as_parquet(folder: Path, reviews: Reviews) -> None:
    """As the hub has them, in two parts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "imdb" / "plain_text").mkdir(parents=True)
    for split, rows in reviews.items():
        for part, piece in enumerate((rows[:7], rows[7:])):
            table = pa.table({"text": [review for _, review in piece], "label": [label for label, _ in piece]})
            pq.write_table(table, folder / "imdb" / "plain_text" / f"{split}-0000{part}-of-00002.parquet")


LAYOUTS = [as_archive, as_folder, as_json_lines, as_compressed_json_lines, as_parquet]


def expected(rows: list[tuple[int, str]], length: int) -> list[tuple[list[int], int]]:
    """Ids and labels by plain Python: sorted by bytes, then label; cut at the right; byte + 1."""
    pairs = sorted((review.encode(), label) for label, review in rows)
    return [([byte + 1 for byte in review[:length]], label) for review, label in pairs]


def stored(split: Split) -> list[tuple[list[int], int]]:
    return [(split.document(row).tolist(), int(split.labels[row])) for row in range(len(split))]


def files_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix not in (".lock", ".stamp")]
