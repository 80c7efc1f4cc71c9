"""AG News from its official files, from a part of them and from the hub; two tokenisers; refused files."""

import csv
import hashlib
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import built_under_one_name, data_config, examples_of, refuses

from lra.datasets import hub
from lra.datasets.groups import limited
from lra.datasets.tokenise import load
from lra.tasks import DataConfig, Task, ag_news
from lra.tasks.ag_news import AgNews

SIZES = {"train": 211, "test": 53}
HEAD, TAIL = 53, 37
Items = list[tuple[int, str, str]]
"""Class index (1 to 4), title, description."""


def items(count: int, seed: int) -> Items:
    """Made-up news of which a few words give the class away; some are longer than HEAD + TAIL tokens."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("aeioustrn", k=rng.randint(2, 8))) for _ in range(60)]
    subjects = ["minister", "goal", "shares", "software"]
    rows = []
    for number in range(count):
        label = rng.randrange(4)
        body = rng.choices(words, k=rng.randint(1, 30)) + [subjects[label]] * rng.randint(1, 3)
        rng.shuffle(body)
        rows.append((label + 1, f'No. {number}, "{rng.choice(words)}"', "\\" + " ".join(body) + r"\n #36;5 — ok"))
    return rows


ITEMS = {split: items(size, seed) for seed, (split, size) in enumerate(SIZES.items())}


def text(row: tuple[int, str, str]) -> str:
    return f"{row[1]} {row[2]}"


def as_csv(rows: Items) -> bytes:
    quoted = [",".join('"' + str(field).replace('"', '""') + '"' for field in row) for row in rows]
    return ("\n".join(quoted) + "\n").encode()


def as_json_lines(rows: Items) -> bytes:
    return "".join(json.dumps({"label": row[0] - 1, "text": text(row)}) + "\n" for row in rows).encode()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


def csv_files(folder: Path) -> None:
    for split, rows in ITEMS.items():
        write(folder / "ag_news_csv" / f"{split}.csv", as_csv(rows))


def partial_files(folder: Path, seed: int = 0) -> None:
    rows = random.Random(seed).sample(ITEMS["train"], k=SIZES["train"])
    write(folder / "ag_news_partial" / "train.partial.jsonl.xz", as_json_lines(rows))
    write(folder / "ag_news_partial" / "test.csv.xz", as_csv(ITEMS["test"]))


def rows_of_hub(config: DataConfig, dataset: str, counts: dict[str, int], **_: str) -> dict[str, list[dict]]:
    return {split: [{"text": text(row), "label": row[0] - 1} for row in ITEMS[split]] for split in counts}


def news(**changes: object) -> AgNews:
    options = {"tokenizer": "bpe", "vocab": None, "vocabulary": 307, "head": HEAD, "tail": TAIL, "limit": None}
    return AgNews(**{**options, **changes})


def built(folder: Path, make: Callable[[Path], None] = csv_files, **changes: object) -> Task:
    make(folder / "data")
    return news(**changes).build(data_config(folder / "cache", folder / "data"))


# ---------------------------------------------------------------- reading


def test_quotes_and_backslashes_by_hand(tmp_path: Path) -> None:
    line = rb'"3","Say ""hi"", \now","\\""Sven ...\\"" #36;5, \$3"'
    path = write(tmp_path / "a.csv", line)
    assert ag_news._of_file(path) == [(r'Say "hi", \now \\"Sven ...\\" #36;5, \$3', 2)]


def test_rows_are_tokenised_in_the_official_order(tmp_path: Path) -> None:
    """First seven tenths train, the rest validates; BPE is undone by its decoder, cut rows are head and tail."""
    task = built(tmp_path)
    assert [len(task.train), len(task.val), len(task.test)] == [147, 64, 53]
    tokenizer = load(task.folder / "tokenizer.json")
    expected = {"train": ITEMS["train"][:147], "val": ITEMS["train"][147:], "test": ITEMS["test"]}
    cut = 0
    for split, rows in expected.items():
        for row, (ids, label) in zip(rows, examples_of(getattr(task, split)), strict=True):
            assert label == row[0] - 1
            assert news().encode(text(row), task.folder / "tokenizer.json").tolist() == ids
            if len(ids) < HEAD + TAIL:
                assert tokenizer.decode(ids) == text(row)
            else:
                cut += 1
                whole = tokenizer.encode(text(row)).ids
                assert ids == whole[:HEAD] + whole[-TAIL:]
    assert 20 < cut < 200
    assert (task.vocab_size, task.max_len, task.classes) == (307, HEAD + TAIL, 4)


def test_the_hub_gives_the_same_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, count in SIZES.items():
        monkeypatch.setitem(ag_news.ROWS, split, count)
    first = built(tmp_path / "one")
    monkeypatch.setattr(hub, "rows", rows_of_hub)
    second = news().build(data_config(tmp_path / "two"))
    assert first.digest == second.digest
    assert first.source["order"] == second.source["order"] == "official"
    assert first.name == second.name == "ag_news (BPE 307, length 53+37)"


def test_rows_of_a_partial_file_are_ordered_by_their_hash(tmp_path: Path) -> None:
    first, second = (
        built(tmp_path / str(seed), lambda folder, seed=seed: partial_files(folder, seed)) for seed in (1, 2)
    )
    assert first.digest == second.digest
    assert first.source["order"].startswith("by SHA-256")
    official = built(tmp_path / "official")
    assert first.digest != official.digest
    assert sorted(np.concatenate([first.train.labels, first.val.labels]).tolist()) == sorted(
        np.concatenate([official.train.labels, official.val.labels]).tolist()
    )
    np.testing.assert_array_equal(first.test.labels, official.test.labels)


def test_baselines(tmp_path: Path) -> None:
    """The subjects give the class away, so a bag of words finds it; the majority class is counted by hand."""
    task = built(tmp_path)
    train = [row[0] for row in ITEMS["train"][:147]]
    most = max(sorted(set(train)), key=train.count)
    hits = sum(row[0] == most for row in ITEMS["test"])
    assert task.baselines["majority class"] == pytest.approx(100 * hits / 53)
    assert task.baselines["bag of words"] > 95


# ---------------------------------------------------------------- tokenisers


def pieces() -> bytes:
    letters = [chr(code) for code in range(33, 127)]
    return "\n".join(["[PAD]", "[UNK]", "goal", "shares", *letters, *(f"##{letter}" for letter in letters)]).encode()


def test_auto_uses_word_pieces_in_the_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    vocab = write(tmp_path / "data/bert-base-cased/vocab.txt", pieces())
    size = len(pieces().split())
    task = built(tmp_path, tokenizer="auto")
    assert task.vocab_size == size
    assert f"{size} word pieces" in task.name
    assert task.source["tokenizer"]["kind"] == "WordPiece"
    assert any(2 in ids for ids, _ in examples_of(task.test))
    tokenizer = load(task.folder / "tokenizer.json")
    assert tokenizer.encode("goal").ids == [2]
    assert tokenizer.encode("Goal").tokens == ["G", "##o", "##a", "##l"]
    assert "BPE" not in capsys.readouterr().err
    named = news(tokenizer="auto", vocab=str(vocab)).build(data_config(tmp_path / "named", tmp_path / "data"))
    assert named.digest == task.digest
    assert news(tokenizer="auto", vocab=str(vocab)).spec.vocab_size == size


def test_the_bpe_is_trained_on_the_training_split_only(tmp_path: Path) -> None:
    first = built(tmp_path / "one")
    changed = {split: list(rows) for split, rows in ITEMS.items()}
    changed["test"][3] = (1, "zebra zebra", "zebra " * 99)
    changed["train"][200] = (1, "quagga quagga", "quagga " * 99)
    for split, rows in changed.items():
        write(tmp_path / f"two/data/ag_news_csv/{split}.csv", as_csv(rows))
    second = news().build(data_config(tmp_path / "two", tmp_path / "two/data"))
    assert second.source["tokenizer"] == first.source["tokenizer"]
    assert second.digest != first.digest


# ---------------------------------------------------------------- refusals

GOOD = b'"3","Title","Some words"\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'"3","Title"\n', "expected class index, title, description"),
        (b'"5","Title","words"\n', "no class 4, expected 4 classes"),
        (b'"","Title","words"\n', "expected class index"),
        (b'"2","Title \xe9","words"\n', "can't decode byte 0xe9"),
        (b'"2","Title","words\n', "unexpected end of data"),
        (b'"2",""," "\n', "an empty text"),
    ],
)
def test_a_bad_row_is_refused_and_nothing_is_cached(tmp_path: Path, line: bytes, message: str) -> None:
    write(tmp_path / "data/ag_news_csv/train.csv", GOOD)
    write(tmp_path / "data/ag_news_csv/test.csv", GOOD + line)
    refuses(news(), data_config(tmp_path / "cache", tmp_path / "data"), f"test.csv:2: .*{message}")


# ---------------------------------------------------------------- real data


@pytest.mark.parametrize("limit", [1_009, pytest.param(None, marks=pytest.mark.slow)])
def test_real_rows_go_through_the_saved_tokenizer(real_data: Path, tmp_path: Path, limit: int | None) -> None:
    folder = real_data / "ag_news_partial"
    with lzma.open(folder / "train.partial.jsonl.xz", "rt", encoding="utf-8") as file:
        train = [(row["text"], row["label"]) for row in map(json.loads, file)]
    with lzma.open(folder / "test.csv.xz", "rt", encoding="utf-8", newline="") as file:
        test = [(f"{title} {description}", int(label) - 1) for label, title, description in csv.reader(file)]
    train.sort(key=lambda row: hashlib.sha256(row[0].encode()).hexdigest())
    vocabulary = 1_009 if limit else 8_000
    builder = news(vocabulary=vocabulary, head=128, tail=384, limit=limit)
    task = built_under_one_name(builder, data_config(tmp_path / "cache", real_data))
    assert task.name == f"ag_news (18.6k train, BPE{' 1009, limit 1009' if limit else ''})"
    tokenizer = load(task.folder / "tokenizer.json")
    rng = random.Random(1)
    for split, rows in {"train": train[:13_030], "val": train[13_030:], "test": test}.items():
        examples, rows = getattr(task, split), [rows[row] for row in limited(len(rows), limit, split)]
        assert len(examples) == len(rows)
        for number in [0, len(rows) - 1, *rng.sample(range(len(rows)), 200)]:
            ids = tokenizer.encode(rows[number][0]).ids
            assert examples.document(number).tolist() == (ids if len(ids) <= 512 else ids[:128] + ids[-384:])
            assert examples.labels[number] == rows[number][1]
    if limit is None:
        assert task.baselines["majority class"] == 25.0
        assert 87.5 < task.baselines["bag of words"] < 90
