"""task=files: the same rows are the same task in any format, and errors name file and line."""

import csv
import gzip
import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Commands, composed, data_config

from lra.cli import prepare, train
from lra.config import configure
from lra.core.errors import UserError
from lra.datasets import hub
from lra.datasets.tables import Columns, examples
from lra.datasets.tokenise import text_of
from lra.tasks import Task
from lra.tasks.files import Files

Rows = list[dict[str, Any]]
LABELS = ("sour", "sweet", "bitter")
ROWS = [{"text": f'no. {number}, "quoted"; ünïcode', "label": LABELS[number % 3]} for number in range(61)]
PAIRS = [{"text": f"left {number}", "text2": f"right {number}", "label": number % 2} for number in range(41)]
IDS = [{"input_ids": [number % 7, 500, *[3] * (number % 4)], "label": number % 2} for number in range(41)]
VALUES = configure.plain(composed("task=files", "task.data=anywhere"))["task"]


def written(path: Path, rows: Rows) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in rows) + "\n"
        path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="") as file:
            lines = [names, *(row.values() for row in rows)]
            csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t").writerows(lines)
            file.write("\n\n")
    return path


def builder(data: object, **changes: object) -> Files:
    return configure.build({**VALUES, "data": data, **changes}, "task")()


def task_of(folder: Path, data: object, **changes: object) -> Task:
    return builder(data if isinstance(data, dict) else str(data), **changes).build(data_config(folder / "cache"))


def texts(task: Task, split: str) -> list[str]:
    part = getattr(task, split)
    return [text_of(part.document(row)).decode() for row in range(len(part))]


@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl.xz", ".json", ".parquet"])
def test_the_format_changes_nothing(end: str, tmp_path: Path) -> None:
    first, other = (task_of(tmp_path, written(tmp_path / f"fruit{kind}", ROWS)) for kind in (".jsonl", end))
    assert first.digest == other.digest
    assert first.name == other.name == "fruit (1000 bytes)"
    every = sorted(text for split in ("train", "val", "test") for text in texts(first, split))
    assert every == sorted(row["text"] for row in ROWS)
    assert other.source["labels"] == sorted(LABELS)


def test_the_shares_are_of_each_class_and_disjoint(tmp_path: Path) -> None:
    task = task_of(tmp_path, written(tmp_path / "fruit.jsonl", ROWS), val=0.2, test=0.3)
    counts = {split: Counter(getattr(task, split).labels.tolist()) for split in ("train", "val", "test")}
    rows = Counter(sorted(LABELS).index(row["label"]) for row in ROWS)
    for label, number in rows.items():
        tested = int(0.3 * number)
        assert counts["test"][label] == tested
        assert counts["val"][label] == int(0.2 * (number - tested))
        assert sum(count[label] for count in counts.values()) == number
    assert task.source["parts of train"] == {"val": 0.2, "test": 0.3}


SPLIT = {"train": ROWS[:31], "validation": ROWS[31:43], "test": ROWS[43:]}


def as_files(folder: Path) -> str:
    for name, rows in zip(("train.csv", "dev.tsv", "Test.jsonl"), SPLIT.values(), strict=True):
        written(folder / name, rows)
    return str(folder)


def as_shards(folder: Path) -> str:
    for split, rows in SPLIT.items():
        for number, part in enumerate((rows[:5], rows[5:])):
            written(folder / "data" / f"{split}-0000{number}-of-00002.parquet", part)
    return str(folder)


def as_folders(folder: Path) -> str:
    for split, rows in SPLIT.items():
        written(folder / split / "a.jsonl", rows[:5])
        written(folder / split / "b.csv", rows[5:])
    return str(folder)


def with_class_label() -> Any:
    """The splits as `datasets` holds them, with numbers for the names of labels."""
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS)})
    return datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows, features=features) for split, rows in SPLIT.items()}
    )


def as_saved(folder: Path) -> str:
    with_class_label().save_to_disk(folder, num_shards=dict.fromkeys(SPLIT, 2))
    return str(folder)


def as_parquet_of_datasets(folder: Path) -> str:
    folder.mkdir()
    for split, rows in with_class_label().items():
        rows.to_parquet(folder / f"{split}.parquet")
    return str(folder)


def as_hub(folder: Path) -> str:
    return f"hf:{as_shards(folder)}"


LAYOUTS = [as_files, as_shards, as_folders, as_saved, as_parquet_of_datasets, as_hub]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_layout_of_splits_is_the_same_task(layout: Any, tmp_path: Path) -> None:
    task = task_of(tmp_path, layout(tmp_path / "fruit"))
    assert task.name == "fruit (1000 bytes)"
    assert [texts(task, split) for split in ("train", "val", "test")] == [
        [row["text"] for row in rows] for rows in SPLIT.values()
    ]
    assert (task.source["parts of train"], task.source["labels"]) == ({}, sorted(LABELS))
    assert task.train.labels.tolist() == [sorted(LABELS).index(row["label"]) for row in SPLIT["train"]]


def test_the_hub_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    as_saved(tmp_path / "saved")
    asked = []

    def load_dataset(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        return datasets.load_from_disk(tmp_path / "saved")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "_ask", lambda: None)
    for _ in range(2):
        assert task_of(tmp_path, "hf:owner/fruit:ripe").name == "fruit:ripe (1000 bytes)"
        hub.files.cache_clear()
    assert asked == [("owner/fruit", "ripe")]
    with pytest.raises(UserError, match=r"^task.data=hf:owner/other: "):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {}["no such data set"])
        task_of(tmp_path, "hf:owner/other")


def hidden_labels(folder: Path) -> str:
    """A data set as stanfordnlp/sst2: the labels of test are -1 under the names of classes."""
    import datasets

    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS)})
    for split, rows in SPLIT.items():
        labels = [-1 if split == "test" else LABELS.index(row["label"]) for row in rows]
        table = datasets.Dataset.from_dict({"sentence": [row["text"] for row in rows], "label": labels}, features)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return f"hf:{folder}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_split_with_hidden_labels_is_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    task = task_of(tmp_path, hidden_labels(tmp_path / "sst2"), text="sentence", test=0.2)
    assert task.source["parts of train"] == {"test": 0.2}
    read = {text for split in ("train", "test") for text in texts(task, split)}
    assert read == {row["text"] for row in SPLIT["train"]}
    assert "sst2: test is not read, since its labels are hidden" in capfd.readouterr().err


def test_rows_without_a_label_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    task_of(tmp_path, written(tmp_path / "fruit.jsonl", [*ROWS, *({"text": f"{n}", "label": None} for n in range(3))]))
    assert "fruit: 3 rows of train are not read, since they have no label" in capfd.readouterr().err.splitlines()


@pytest.mark.parametrize("name", ["a.json", "A.JSON", "a.json.gz", "a.jsonl"])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\n  "])
def test_an_array_is_known_by_its_content(name: str, mark: str, tmp_path: Path) -> None:
    data = (mark + json.dumps(ROWS, indent=1)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert len(list(examples(tmp_path / name, Columns(text="text", text2="text2", label="label")))) == len(ROWS)


@pytest.mark.parametrize(
    ("quotes", "content", "first"),
    [
        ("none", '"Well" he said\t1\nno\t0\n', '"Well" he said'),
        ("none", '"a\t1\nb"\t0\n', '"a'),
        ("doubled", '"a\tb\nc"\t1\nno\t0\n', "a\tb\nc"),
        ("escaped", '"he said \\"no\\""\t1\nno\t0\n', 'he said "no"'),
    ],
)
def test_quotes_are_read_as_they_are_named(quotes: str, content: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text(f"text\tlabel\n{content}")
    columns = Columns(text="text", text2="text2", label="label", quotes=quotes)
    read = [(example.texts[0], example.label) for example in examples(tmp_path / "x.tsv", columns)]
    assert read[0] == (first, "1")
    assert len(read) == 2


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    """Rows padded with 499 to the longest give the same task."""
    plain = task_of(tmp_path, written(tmp_path / "ids.jsonl", IDS), text="input_ids", tokens="ids")
    assert (plain.name, plain.vocab_size) == ("ids (1000 token ids)", 502)
    kept = [(plain.train.document(row) - 1).tolist() for row in range(len(plain.train))]
    assert all(ids in [row["input_ids"] for row in IDS] for ids in kept)
    longest = max(len(row["input_ids"]) for row in IDS)
    padded = [row["input_ids"] + [499] * (longest - len(row["input_ids"])) for row in IDS]
    rows = [{"input_ids": ids, "label": row["label"]} for ids, row in zip(padded, IDS, strict=True)]
    equal = task_of(tmp_path, written(tmp_path / "ids.parquet", rows), text="input_ids", tokens="ids", padding=499)
    assert equal.digest == plain.digest
    files = builder("ids.jsonl", tokens="ids")
    assert files.stored_ids(np.array([0, 500])).tolist() == [1, 501]
    with pytest.raises(UserError, match="trained on token ids"):
        files.encode("a text", tmp_path)


def test_a_quoted_cell_may_have_line_ends(tmp_path: Path) -> None:
    rows = [{"text": f"one\ntwo, {number}\n", "label": number % 2} for number in range(29)]
    columns = Columns(text="text", text2="text2", label="label")
    read = list(examples(written(tmp_path / "lines.csv", rows), columns))
    assert [example.texts[0] for example in read] == [row["text"] for row in rows]
    assert read[1].where == f"{tmp_path}/lines.csv:5"


def test_the_encodings_of_an_accented_letter_are_one_label(tmp_path: Path) -> None:
    rows = [{"text": "good", "label": label} for label in ("caf\u00e9", "cafe\u0301", "Caf\u00e9")]
    path = written(tmp_path / "x.jsonl", rows)
    first, second, capital = (row.label for row in examples(path, Columns(text="text", text2="text2", label="label")))
    assert first == second != capital


@pytest.mark.parametrize("tokens", ["bytes", "bpe", "ids"])
def test_baselines_read_what_the_model_reads(tokens: str, tmp_path: Path) -> None:
    """Only the last token decides, so a baseline of texts that are cut before it is at 50 %."""
    draw = random.Random(5)
    rows = [{"text": [*draw.choices(range(10, 90), k=80), 1 + n % 2], "label": n % 2} for n in range(200)]
    if tokens != "ids":
        rows = [{**row, "text": " ".join(f"w{number:02}" for number in row["text"])} for row in rows]
    path = written(tmp_path / "x.jsonl", rows)
    cut, whole = (task_of(tmp_path, path, tokens=tokens, vocabulary=400, max_length=most) for most in (64, 999))
    assert cut.baselines["bag of words"] < 80 < whole.baselines["bag of words"]


def test_pairs_with_and_without_a_header_are_one_task(tmp_path: Path) -> None:
    rows = [("a", "b", 1), ("b", "c", 0), ("c", "a", 1), ("a", "c", 0)] * 7
    plain = [{"one": left, "two": right, "label": label} for left, right, label in rows]
    headless = tmp_path / "headless.tsv"
    headless.write_text("\n".join(f"{label}\t{left}\t{right}" for left, right, label in rows))
    tasks = [
        task_of(tmp_path, written(tmp_path / "plain.csv", plain), text="one", text2="two"),
        task_of(tmp_path, headless, columns=["label", "text", "text2"]),
    ]
    assert len({task.digest for task in tasks}) == 1
    assert tasks[0].documents == 2
    assert {"majority class", "cosine of bag of words"} <= tasks[0].baselines.keys()


def test_a_bpe_is_trained_on_train(tmp_path: Path) -> None:
    task = task_of(tmp_path, written(tmp_path / "fruit.jsonl", ROWS), tokens="bpe", vocabulary=300, max_length=7)
    assert task.name == "fruit (7 tokens of a BPE of 300)"
    assert task.train.tokens.max() < task.vocab_size == 300
    assert task.train.lengths(np.arange(len(task.train))).max() == 7
    assert (task.folder / "tokenizer.json").is_file()


BAD = {
    "no label column": ("x.csv", "text,lable\na,1\n", "x.csv:2: no column 'label', found text, lable"),
    "a cell too few": ("x.csv", "text,label\na,1\nb\n", "x.csv:3: expected 2 columns: text, label"),
    "an open quote": ("x.csv", 'text,label\na,1\n"b,0\nc,1\n', "x.csv:3: not CSV"),
    "an empty text": ("x.csv", "text,label\na,1\n  ,0\n", "x.csv:3: text: an empty text, expected words"),
    "an empty label": ("x.csv", "text,label\na,1\nb,\n", "x.csv:3: label is '', expected a text or a whole number"),
    "not UTF-8": ("x.csv", b"text,label\na,1\n\xff,0\n", "x.csv:3: not UTF-8; convert the file"),
    "UTF-16": ("x.csv", "text,label\na,1\n".encode("utf-16"), "x.csv:1: not UTF-8; convert the file"),
    "semicolons": (
        "x.csv",
        "text;label\na;1\n",
        "x.csv:2: no column 'text', found text;label; ",
    ),
    "numbers as labels": (
        "x.csv",
        "text,label\n" + "".join(f"{n},{n / 50}\n" for n in range(50)),
        "task.test=0.1: leaves no example of x.csv for test: 50 rows have 50 different labels",
    ),
    "not JSON": ("x.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "x.jsonl:2: not JSON"),
    "no text": ("x.jsonl", '{"label": 1}\n', "x.jsonl:1: no column 'text'"),
    "half a character": ("x.jsonl", '{"text": "\\ud800", "label": 1}\n', "x.jsonl:1: text: text is not Unicode"),
    "an id below 0": ("x.jsonl", '{"text": [3, -1], "label": 1}\n', "x.jsonl:1: text is [3, -1], expected a list of"),
    "nothing": ("x.csv", "text,label\n", "x.csv: no rows, expected examples with text and label"),
    "one class": ("x.csv", "text,label\na,1\nb,1\n", "x.csv: every label is 1, expected at least two different ones"),
    "another end": ("x.txt", "a", "x.txt: expected a file that ends in .csv, .tsv, .jsonl, .json, .parquet"),
    "a tab in a quoted cell": ("x.tsv", 'text\tlabel\na\t1\n"b\tc"\t0\n', "x.tsv:3: a quoted cell has a tab"),
    "text that begins with a quotation": ("x.tsv", 'text\tlabel\na\t1\n"b" c\t0\n', "x.tsv:3: not CSV: "),
    "a blank before a quote mark": ("x.csv", 'label, text\na, "b"\nc, d\n', "x.csv:2: a blank before a quote mark"),
    "joined files": ("x.csv", "text,label\na,1\nb,0\ntext,label\nc,1\n", "x.csv:4: the header again; remove this line"),
    "a pointer": ("x.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "x.csv: a Git LFS pointer"),
    "no parquet": ("x.parquet", "a", "x.parquet: not readable"),
    "a truncated file": ("x.jsonl.xz", lzma.compress(b'{"text": "a", "label": 1}\n')[:-9], "x.jsonl.xz: not readable"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_is_named_by_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, content, message = BAD[name]
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        task_of(tmp_path, file, tokens="ids" if name == "an id below 0" else "bytes")
    assert str(error.value).startswith(message)
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_columns_of_other_names(end: str, tmp_path: Path) -> None:
    plain = task_of(tmp_path, written(tmp_path / "plain.csv", ROWS))
    renamed = [{"Review": row["text"], "KIND": row["label"], "text": "other", "id": 1} for row in ROWS]
    path = written(tmp_path / f"renamed{end}", renamed)
    assert task_of(tmp_path, path, text="Review", label="KIND").digest == plain.digest


def test_splits_that_do_not_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = str(written(Path("fruit/train.jsonl"), ROWS))
    other = written(Path("other.jsonl"), [{"text": "a", "label": "salty"}])
    with pytest.raises(UserError, match=r"^other.jsonl:1: label 'salty' of test does not occur in train"):
        task_of(tmp_path, {"train": train, "test": str(other)})
    with pytest.raises(UserError, match=r"^task.data: absent: no such file or folder"):
        task_of(tmp_path, "absent")
    written(Path("fruit/train.csv"), ROWS)
    with pytest.raises(UserError, match=r"^fruit: train.csv and train.jsonl are all for train; keep one of them"):
        task_of(tmp_path, "fruit")
    with pytest.raises(UserError, match=r"^task.val=0.01: leaves no example of fruit/train.jsonl for val"):
        task_of(tmp_path, train, val=0.01)


def test_users_files_train_without_code(cli: Commands) -> None:
    written(Path("pairs.csv"), PAIRS)
    code, out, _ = cli(prepare.main, "task=files", "task.data=pairs.csv")
    assert code == 0
    assert out.startswith("## pairs (1000 bytes)")
    words = ("task=files", "task.data=pairs.csv", "experiment=smoke", "attention=simple", "protocol=strict")
    assert cli(train.main, *words)[0] == 0
    [record] = [json.loads(path.read_text()) for path in Path("runs").rglob("record.json")]
    assert record["task"] == "pairs (200 bytes, limit 200)"
    assert record["diagnostics"]["class"].keys() == {"0", "1"}
