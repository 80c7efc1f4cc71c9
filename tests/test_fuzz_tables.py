"""Random tables: what `lra` reads is what pyarrow reads, or it refuses the file with its name and a line."""

import os
import random
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pyarrow.csv as pc
import pytest

from lra.core.errors import UserError
from lra.datasets.tables import Columns, examples

SECONDS = float(os.environ.get("LRA_FUZZ_SECONDS", "60"))
WORDS = ["film", "電影", "हिन्दी", "القراءة", "ไทย", "Ελλάδα", "é", "e\u0301", "😀", "NA", "null", "1.0", "007", "a,b"]
SPOILERS = ['"', '""', "\n", "\r", "\r\n", "\x00", "\ufeff", " ", "\u2028", "\x0b", "\\", "'", "#", "\ud7ff"]
Rows = list[tuple[str, str]]


def cell(draw: random.Random) -> str:
    pieces = draw.choices(WORDS, k=draw.randint(0, 3)) + draw.choices(SPOILERS, k=draw.choice([0, 0, 0, 1, 2]))
    draw.shuffle(pieces)
    return "".join(pieces)


def table(draw: random.Random, gap: str) -> str:
    """Rows of two columns, quoted by the rules or not, with faults in some of them."""
    end = draw.choice(["\n", "\r\n"])
    lines = [gap.join(("text", "label"))]
    for _ in range(draw.randint(1, 8)):
        quoted = draw.random() < 0.7
        cells = [cell(draw) or draw.choice(["x", "x", "x", ""]), draw.choice("0101010 ").strip()]
        lines.append(gap.join('"{}"'.format(text.replace('"', '""')) if quoted else text for text in cells))
    for fault in ("", lines[0], gap.join(("Label", "TEXT")), gap, "one cell", gap.join("abc")):
        if draw.random() < 0.1:
            lines.insert(draw.randint(1, len(lines)), fault)
    return draw.choice(["", "", "\ufeff"]) + end.join(lines) + draw.choice(["", end])


def read(path: Path, quotes: str) -> Rows:
    columns = Columns(text="text", text2="text2", label="label", quotes=quotes or None)
    return [(str(example.texts[0]), str(example.label)) for example in examples(path, columns)]


def reference(path: Path, gap: str, quotes: str) -> Rows:
    """Rows by pyarrow, without blank lines; labels as `lra` strips them."""
    options = pc.ParseOptions(delimiter=gap, quote_char=False if quotes == "none" else '"', newlines_in_values=True)
    names = ["text", "label"]
    kinds = pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    found = pc.read_csv(path, pc.ReadOptions(use_threads=False), options, kinds)
    return [(row["text"], row["label"].strip()) for row in found.to_pylist()]


@pytest.mark.fuzz
def test_random_tables(tmp_path: Path) -> None:
    start, seed, same, refused = monotonic(), 0, 0, 0
    while monotonic() - start < SECONDS:
        seed += 1
        draw = random.Random(seed)
        gap, quotes = draw.choice(",\t"), draw.choice(["", "doubled", "none"])
        path = tmp_path / ("x.csv" if gap == "," else "x.tsv")
        content = table(draw, gap).encode(draw.choice(["utf-8"] * 30 + ["utf-16"]))
        place = draw.randint(0, len(content))
        path.write_bytes(content[:place] + draw.choice([b""] * 30 + [b"\xff", b"\xe9"]) + content[place:])
        try:
            ours = read(path, quotes)
        except UserError as error:
            assert str(error).startswith(f"{path}:"), f"seed {seed}: {error}"
            refused += 1
            continue
        assert ours == reference(path, gap, quotes), f"seed {seed}: {path.read_bytes()!r}"
        same += 1
    print(f"{same + refused:,} tables: {same:,} equal, {refused:,} refused")
    assert min(same, refused) > seed / 50, "both happen often"
