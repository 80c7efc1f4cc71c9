"""task=files: the same rows are the same task in any format, and what is wrong with one is said by file and line."""

import csv
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Commands, composed

from lra.cli import prepare, train
from lra.config import configure
from lra.core.errors import UserError
from lra.data import tables
from lra.data.tokenise import text_of
from lra.tasks import Place, Task, no_op_progress
from lra.tasks.files import Files

Rows = list[dict[str, Any]]
LABELS = ("sour", "sweet", "bitter")
ROWS = [{"text": f'no. {number}, "quoted"; ünïcode', "label": LABELS[number % 3]} for number in range(61)]
PAIRS = [{"text": f"left {number}", "text2": f"right {number}", "label": number % 2} for number in range(41)]


def written(path: Path, rows: Rows) -> Path:
    names = list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in rows) + "\n"
        path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".tsv":
        with open(path, "w", newline="") as file:
            csv.writer(file, delimiter="\t").writerows([names, *(row.values() for row in rows)])
            file.write("\n\n")
    else:
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    return path


def builder(data: object, **changes: object) -> Files:
    values = configure.plain(composed("task=files", "task.data=anywhere"))["task"]
    build = configure.build({**values, "data": data, **changes}, "task", [])
    return build()


def task_of(folder: Path, data: object, **changes: object) -> Task:
    place = Place(cache=folder / "cache", data_dir=None, workers=1, progress=no_op_progress)
    return builder(data, **changes).build(place)


def texts(task: Task, split: str) -> list[str]:
    part = getattr(task, split)
    return [text_of(part.document(row)).decode() for row in range(len(part))]


@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl.xz", ".parquet"])
def test_the_format_changes_nothing(end: str, tmp_path: Path) -> None:
    tasks = [task_of(tmp_path, str(written(tmp_path / f"fruit{kind}", ROWS))) for kind in (".jsonl", end)]
    first, other = tasks
    assert first.digest == other.digest
    assert first.name == other.name == "fruit (1000 bytes)"
    assert sorted(text for split in ("train", "val", "test") for text in texts(first, split)) == sorted(
        row["text"] for row in ROWS
    )
    assert other.source["labels"] == sorted(LABELS)


def test_the_shares_are_of_each_class_and_disjoint(tmp_path: Path) -> None:
    task = task_of(tmp_path, str(written(tmp_path / "fruit.jsonl", ROWS)), val=0.2, test=0.3)
    counts = {split: Counter(getattr(task, split).labels.tolist()) for split in ("train", "val", "test")}
    rows = Counter(sorted(LABELS).index(row["label"]) for row in ROWS)
    for label, number in rows.items():
        tested = int(0.3 * number)
        assert counts["test"][label] == tested
        assert counts["val"][label] == int(0.2 * (number - tested))
        assert sum(count[label] for count in counts.values()) == number
    assert task.source["parts of train"] == {"val": 0.2, "test": 0.3}


def test_files_of_a_folder_are_the_splits(tmp_path: Path) -> None:
    for name, rows in (("train.csv", ROWS[:31]), ("dev.tsv", ROWS[31:43]), ("test.jsonl", ROWS[43:])):
        written(tmp_path / "fruit" / name, rows)
    task = task_of(tmp_path, str(tmp_path / "fruit"), limit=None)
    assert [texts(task, split) for split in ("train", "val", "test")] == [
        [row["text"] for row in rows] for rows in (ROWS[:31], ROWS[31:43], ROWS[43:])
    ]
    assert task.source["parts of train"] == {}


def test_a_quoted_cell_may_have_line_ends(tmp_path: Path) -> None:
    rows = [{"text": f"one\ntwo, {number}\n", "label": number % 2} for number in range(29)]
    examples = list(tables.examples(written(tmp_path / "lines.csv", rows), None))
    assert [example.texts[0] for example in examples] == [row["text"].replace("\r", "") for row in rows]
    assert [example.where for example in examples[:2]] == [f"{tmp_path}/lines.csv:2", f"{tmp_path}/lines.csv:5"]


def test_pairs_by_text_and_by_id_are_one_task(tmp_path: Path) -> None:
    library = [{"id": name, "text": name * 2} for name in ("a", "b", "c")]
    rows = [("a", "b", 1), ("b", "c", 0), ("c", "a", 1), ("a", "c", 0)] * 7
    ids = [{"text": left, "text2": right, "label": label} for left, right, label in rows]
    plain = [{"text": 2 * left, "text2": 2 * right, "label": label} for left, right, label in rows]
    headless = tmp_path / "headless.tsv"
    headless.write_text("\n".join(f"{label}\t{left}\t{right}" for left, right, label in rows))
    by_id = {"columns": ["label", "text", "text2"], "documents": str(written(tmp_path / "library.jsonl", library))}
    tasks = [
        task_of(tmp_path, str(written(tmp_path / "plain.csv", plain))),
        task_of(tmp_path, str(written(tmp_path / "ids.jsonl", ids)), documents=by_id["documents"]),
        task_of(tmp_path, str(headless), **by_id),
    ]
    assert len({task.digest for task in tasks}) == 1
    assert tasks[0].documents == 2
    assert {"majority class", "cosine of bag of words", "convolution"} <= tasks[0].baselines.keys()


def test_a_bpe_is_trained_on_train(tmp_path: Path) -> None:
    task = task_of(tmp_path, str(written(tmp_path / "fruit.jsonl", ROWS)), tokens="bpe", vocabulary=300, max_length=7)
    assert task.name == "fruit (7 tokens of a BPE of 300)"
    assert task.train.tokens.max() < task.vocab_size == 300
    assert task.train.lengths(np.arange(len(task.train))).max() == 7
    assert (task.folder / "tokenizer.json").is_file()


@pytest.mark.parametrize("places", [1, 2], ids=["a text", "a pair"])
def test_the_convolution_finds_what_stands_anywhere(places: int, tmp_path: Path) -> None:
    """Whether a text has a group of letters, or both texts of a pair have it, at changing places."""
    rows = []
    for number in range(307):
        hit = number % 2
        words = [
            "a" * (number % 13) + "xyz"[:: 1 if hit or place else -1] + "b" * (number % 7) for place in range(places)
        ]
        rows.append(dict(zip(("text", "text2"), words, strict=False)) | {"label": hit})
    task = task_of(tmp_path, str(written(tmp_path / "letters.jsonl", rows)))
    assert task.baselines["majority class"] < 60
    assert task.baselines["convolution"] > 95


def test_groups_have_the_names_of_the_labels(tmp_path: Path) -> None:
    path = str(written(tmp_path / "fruit.jsonl", ROWS))
    place = Place(cache=tmp_path / "cache", data_dir=None, workers=1, progress=no_op_progress)
    files = builder(path).at(place)
    groups = files.groups(files.build(place).test)
    assert groups["class"].keys() == set(LABELS)
    assert "length" in groups


BAD = {
    "no label column": ("x.csv", "text,lable\na,1\n", "x.csv:2: no column 'label'; did you mean 'lable'?"),
    "two columns of a name": ("x.csv", "text,text,label\na,b,1\n", "x.csv:1: two columns 'text'"),
    "a cell too few": ("x.csv", "text,label\na,1\nb\n", "x.csv:3: 1 columns, expected 2: text, label"),
    "a cell too many": ("x.csv", "text,label\na,1\nb,c,0\n", "x.csv:3: 3 columns, expected 2"),
    "an open quote": ("x.csv", 'text,label\na,1\n"b,0\nc,1\n', "x.csv:3: not CSV"),
    "text behind a quote": ("x.csv", 'text,label\n"a"b,1\n', "x.csv:2: not CSV"),
    "an empty text": ("x.csv", "text,label\na,1\n  ,0\n", "x.csv:3: text: an empty text, expected words"),
    "an empty label": ("x.csv", "text,label\na,1\nb,\n", "x.csv:3: label is '', expected a text or a whole number"),
    "not UTF-8": ("x.csv", b"text,label\na,1\n\xff,0\n", "x.csv:3: byte 0xff at column 1, expected UTF-8"),
    "no tab": ("x.tsv", "text\tlabel\na 1\n", "x.tsv:2: 1 columns, expected 2"),
    "not JSON": ("x.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "x.jsonl:2: not JSON"),
    "a list": ("x.jsonl", '["a", 1]\n', "x.jsonl:1: ['a', 1], expected an object"),
    "no text": ("x.jsonl", '{"label": 1}\n', "x.jsonl:1: no column 'text'"),
    "no label": ("x.jsonl", '{"text": "a"}\n', "x.jsonl:1: no column 'label'"),
    "a text that is a number": ("x.jsonl", '{"text": 5, "label": 1}\n', "x.jsonl:1: text is 5, expected a text"),
    "a label that is a list": ("x.jsonl", '{"text": "a", "label": [1]}\n', "x.jsonl:1: label is [1], expected a text"),
    "a label with a point": ("x.jsonl", '{"text": "a", "label": 0.5}\n', "x.jsonl:1: label is 0.5, expected a text"),
    "half a character": ("x.jsonl", '{"text": "\\ud800", "label": 1}\n', "x.jsonl:1: text: text is not Unicode"),
    "a second text at times": (
        "x.jsonl",
        '{"text": "a", "label": 1}\n{"text": "a", "text2": "b", "label": 0}\n',
        "x.jsonl:2: text2 is in some rows only",
    ),
    "no second text at times": (
        "x.jsonl",
        '{"text": "a", "text2": "b", "label": 1}\n{"text": "a", "label": 0}\n',
        "x.jsonl:2: text2 is in some rows only",
    ),
    "nothing": ("x.csv", "text,label\n", "x.csv: no rows, expected examples with text and label"),
    "labels in two spellings": (
        "x.csv",
        "text,label\na,1\nb,0\nc,1.0\n",
        "x.csv:4: label '1.0' is '1' of an earlier row",
    ),
    "labels in two cases": ("x.csv", "text,label\na,Pos\nb,neg\nc,pos\n", "x.csv:4: label 'pos' is 'Pos' of an"),
    "swapped columns": ("x.csv", "text,label\na," + 5_000 * "9" + "\n", "x.csv:2: a label of 5,000 characters; is"),
    "one class": ("x.csv", "text,label\na,1\nb,1\n", "x.csv: every label is '1', expected at least two different ones"),
    "another end": ("x.txt", "a", "x.txt: expected a file that ends in .csv, .tsv, .jsonl, .parquet"),
    "no parquet": ("x.parquet", "a", "x.parquet: not readable"),
    "a truncated file": ("x.jsonl.xz", lzma.compress(b'{"text": "a", "label": 1}\n')[:-9], "x.jsonl.xz: damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_is_named_by_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, content, message = BAD[name]
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        task_of(tmp_path, file)
    assert str(error.value).startswith(message)
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize(("end", "gap", "quote"), [(".csv", ",", ""), (".csv", ",", '"'), (".tsv", "\t", "")])
def test_a_mark_at_the_beginning_is_no_text(end: str, gap: str, quote: str, tmp_path: Path) -> None:
    lines = [f"{quote}{number % 2}{quote}{gap}text {number}\n" for number in range(29)]
    rows = [("marked", "\ufeff", None), ("plain", "", None), ("headless", "\ufeff", ["label", "text"])]
    digests = set()
    for name, mark, columns in rows:
        path = tmp_path / f"{name}{end}"
        head = "" if columns else f"label{gap}text\n"
        path.write_text(mark + head + "".join(lines))
        task = task_of(tmp_path, str(path), columns=columns)
        assert (task.classes, len(task.train) + len(task.val) + len(task.test)) == (2, 29)
        digests.add(task.digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["text", "label"], "x.csv:1: a header"),
        (["text", "text", "label"], "task.columns: two columns 'text'"),
        (["text", "other"], "x.csv:1: no column 'label'"),
        ({"label": "lable"}, "x.csv:2: no column 'lable'"),
        (["label", "text", "label"], "task.columns: two columns 'label'"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    columns: list[str] | dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("Text, LABEL\na,1\nb,0\n")
    with pytest.raises(UserError) as error:
        task_of(tmp_path, "x.csv", columns=columns)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_columns_of_other_names(end: str, tmp_path: Path) -> None:
    plain = task_of(tmp_path, str(written(tmp_path / "plain.csv", ROWS)))
    renamed = [{"Review": row["text"], "LABEL": row["label"], "text": "other"} for row in ROWS]
    path = written(tmp_path / f"renamed{end}", renamed)
    assert task_of(tmp_path, str(path), columns={"text": "review"}).digest == plain.digest


@pytest.mark.parametrize("name", ["Test.CSV", "TEST.csv"])
def test_a_split_is_found_in_any_case(name: str, tmp_path: Path) -> None:
    written(tmp_path / "fruit" / "train.jsonl", ROWS[:31])
    written(tmp_path / "fruit" / "t.csv", ROWS[31:]).rename(tmp_path / "fruit" / name)
    assert texts(task_of(tmp_path, str(tmp_path / "fruit")), "test") == [row["text"] for row in ROWS[31:]]


@pytest.mark.parametrize("name", ["test.json", "test.csv.zip", "test-00000-of-00001.csv", "Dev_2.txt"])
def test_files_that_look_like_a_split_are_not_passed_over(name: str, tmp_path: Path) -> None:
    written(tmp_path / "fruit" / "train.csv", ROWS)
    (tmp_path / "fruit" / "testimonials.csv").touch()
    assert len(task_of(tmp_path, str(tmp_path / "fruit")).test)
    (tmp_path / "fruit" / name).touch()
    with pytest.raises(UserError, match=f"{name} looks like data for"):
        task_of(tmp_path, str(tmp_path / "fruit"))


def test_classes_without_a_score_are_said(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    rare = [{"text": f"salt {number}", "label": "salty"} for number in range(3)]
    task_of(tmp_path, str(written(tmp_path / "fruit.jsonl", ROWS + rare)), val=0.34)
    said = [line for line in capfd.readouterr().err.splitlines() if "classes have no example" in line]
    assert said == ["fruit: 1 of 4 classes have no example in test: 'salty'"]


@pytest.mark.parametrize("data", [".", "./", "../fruit", "inner/..", "~/fruit"])
def test_a_folder_gives_its_name_however_it_is_written(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "fruit" / "train.jsonl", ROWS)
    (tmp_path / "fruit" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "fruit")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert task_of(tmp_path, data).name == "fruit (1000 bytes)"


def test_splits_and_documents_that_do_not_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = str(written(Path("fruit/train.jsonl"), ROWS))
    other = written(Path("other.jsonl"), [{"text": "a", "label": "salty"}])
    with pytest.raises(UserError, match=r"^other.jsonl:1: label 'salty' of test does not occur in train"):
        task_of(tmp_path, {"train": train, "test": str(other)})
    with pytest.raises(UserError, match=r"fruit/train.jsonl:1: .* is no id of library.jsonl"):
        task_of(tmp_path, train, documents=str(written(Path("library.jsonl"), [{"id": "a", "text": "b"}])))
    with pytest.raises(UserError, match=r"^nameless.jsonl:1: no column 'id'"):
        task_of(tmp_path, train, documents=str(written(Path("nameless.jsonl"), [{"text": "b"}])))
    with pytest.raises(UserError, match=r"^task.data: absent: no such file or folder$"):
        task_of(tmp_path, "absent")
    with pytest.raises(UserError, match=r"^task.documents: absent: no such file or folder$"):
        task_of(tmp_path, train, documents="absent")
    written(Path("fruit/train.csv"), ROWS)
    with pytest.raises(UserError, match=r"^fruit: train.csv and train.jsonl are both for train; keep one of them"):
        task_of(tmp_path, "fruit")
    with pytest.raises(UserError, match=r"^task.val=0.01: leaves no example of fruit/train.jsonl for val"):
        task_of(tmp_path, train, val=0.01)


def test_it_trains_without_code(cli: Commands) -> None:
    written(Path("pairs.csv"), PAIRS)
    code, out, _ = cli(prepare.main, "task=files", "task.data=pairs.csv")
    assert code == 0
    assert out.startswith("## pairs (1000 bytes)")
    words = ("task=files", "task.data=pairs.csv", "experiment=smoke", "attention=simple", "protocol=strict")
    assert cli(train.main, *words)[0] == 0
    [record] = [json.loads(path.read_text()) for path in Path("runs").rglob("record.json")]
    assert record["task"] == "pairs (200 bytes, limit 200)"
    assert record["diagnostics"]["class"].keys() == {"0", "1"}
