"""`lra.data` and the exports: rows, batches, workers, Arrow, and files that are read back."""

import pickle
import re
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from support import Commands
from torch.utils.data import DataLoader

import lra
from lra.cli import prepare
from lra.core.paths import CHECKOUT

SMOKE = "size=smoke"
OF_EACH_KIND = [("listops", SMOKE), ("pathfinder_short", SMOKE), ("mqar", SMOKE), ("compress", SMOKE)]


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_CACHE", str(cache))
    monkeypatch.delenv("LRA_DATA", raising=False)


def pairs(folder: Path) -> Path:
    """Files of matching: 7 pairs of texts of 1 to 9 letters in each split."""
    rng = np.random.default_rng(1)
    (folder / "tsv_data").mkdir(parents=True)
    for part in ("train", "eval", "test"):
        texts = ["".join(rng.choice([*"abcxyz'\" "], rng.integers(1, 9))) for _ in range(14)]
        lines = [f"{n % 2}.0\tA{n}\tB{n}\t{texts[n]}\t{texts[n + 7]}\n" for n in range(7)]
        (folder / "tsv_data" / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("words", OF_EACH_KIND)
def test_rows_are_those_that_a_run_trains_on(words: tuple[str, ...]) -> None:
    data = lra.data(*words)
    for rows in (data.train, data.val, data.test):
        split = rows.split
        for place_ in (0, 3, len(rows) - 1):
            row, examples = rows[place_], np.array([place_])
            length = int(split.lengths(examples)[0, 0])
            assert row["tokens"].dtype == torch.int64
            assert row["tokens"].tolist() == split.pad(examples, length)[0].tolist()
            assert int(row["tokens"].max()) < data.spec.vocab_size and int(row["tokens"].min()) > data.spec.pad_id
            if data.spec.objective == "classify":
                assert row["label"] == split.labels[place_] < data.spec.classes == len(data.classes)
            else:
                assert np.flatnonzero(row["mask"]).tolist() == split.scored(examples, length).tolist()
                assert row["targets"][row["mask"]].tolist() == split.targets(examples).tolist()
        assert [row["tokens"].tolist() for row in (rows[-1], rows[0])] == [
            rows[len(rows) - 1]["tokens"].tolist(),
            next(iter(rows))["tokens"].tolist(),
        ]
        with pytest.raises(IndexError):
            rows[len(rows)]


def test_pairs_have_two_documents_of_their_own_lengths(tmp_path: Path) -> None:
    data = lra.data("matching", f"data_dir={pairs(tmp_path)}")
    lines = (tmp_path / "tsv_data" / "new_aan_pairs.test.tsv").read_text().splitlines()
    for row, line in zip(data.test, lines, strict=True):
        label, _, _, *texts = line.split("\t")
        assert (data.decode(row), row["label"]) == (texts, int(float(label)))
    batch = data.collate([data.test[0], data.test[1]])
    for part in ("1", "2"):
        lengths = [len(data.test[n][f"tokens_{part}"]) for n in (0, 1)]
        assert batch[f"tokens_{part}"].shape == (2, max(lengths)) == batch[f"mask_{part}"].shape
        assert batch[f"mask_{part}"].sum(dim=1).tolist() == lengths
        assert data.decode({"tokens": batch[f"tokens_{part}"][1]}) == lines[1].split("\t")[2 + int(part)]


def test_rows_with_targets_and_without_masks_form_a_batch() -> None:
    """Rows of `to_datasets()` lack `mask`."""
    rows = [{"tokens": torch.arange(1, n), "targets": torch.arange(n - 1)} for n in (3, 5)]
    batch = lra.data("parity", SMOKE).collate(rows)
    assert batch["mask"].sum(dim=1).tolist() == [2, 4]
    assert batch["targets"].tolist() == [[0, 1, -100, -100], [0, 1, 2, 3]]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_load_the_same(start: str) -> None:
    data = lra.data("listops", SMOKE)
    assert len(pickle.dumps(data.train)) < 1_000  # the maps stay in their files
    options = {"batch_size": 20, "collate_fn": data.collate}
    loader = DataLoader(data.val, num_workers=1, multiprocessing_context=start, **options)
    for batch, expected in zip(loader, DataLoader(data.val, **options), strict=True):
        assert all(torch.equal(batch[key], expected[key]) for key in expected)


@pytest.mark.parametrize("words", OF_EACH_KIND)
def test_arrow_has_the_same_rows_and_names_the_classes(words: tuple[str, ...]) -> None:
    data = lra.data(*words)
    found = data.to_datasets()
    assert found.num_rows == {"train": len(data.train), "validation": len(data.val), "test": len(data.test)}
    for expected, row in zip(data.val, found["validation"], strict=True):
        assert row == {key: np.asarray(expected[key]).tolist() for key in row}
    if data.classes:
        assert found["test"].features["label"].names == data.classes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("listop",), "task=listop: no such option; did you mean 'listops'?"),
        (("listops", "taks.seed=3"), "taks.seed: unknown key"),
        (("listops", "task.train_size=0"), "task.train_size=0"),
        (("matching",), "new_aan_pairs|tsv_data"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(lra.UserError, match=message) as error:
        lra.data(*words, f"data_dir={tmp_path}")
    assert "\n" not in error.value.args[0]


# ---------------------------------------------------------------- exports


def test_listops_is_exported_as_lra_files_and_read_back(cli: Commands) -> None:
    assert cli(prepare.main, "task=listops", SMOKE, "task.train_size=1000", "export=there")[0] == 0
    data = lra.data("listops", SMOKE, "task.train_size=1000")
    assert {path.name for path in Path("there").iterdir()} == {
        "README.md", "basic_train.tsv", "basic_val.tsv", "basic_test.tsv",
    }  # fmt: skip
    header, *lines = Path("there/basic_train.tsv").read_bytes().decode().removesuffix("\r\n").split("\r\n")
    assert header == "Source\tTarget" and len(lines) == 1000
    for row, line in zip(data.train, lines, strict=True):  # tokens by the rule of lra_benchmarks/listops
        source, target = line.split("\t")
        assert re.sub(r"[()]", "", source).split() == data.decode(row).split()
        assert int(target) == row["label"]
    again = lra.data("listops_files", "task.folder=there", "task.max_length=60")
    assert again.digest == data.digest
    card = Path("there/README.md").read_text()
    assert all(text in card for text in (data.digest, "licence: ", "source: generated", "task.train_size=1000"))


def test_matching_is_exported_as_lra_files_and_read_back(cli: Commands, tmp_path: Path) -> None:
    raw = pairs(tmp_path / "raw")
    assert cli(prepare.main, "task=matching", f"data_dir={raw}", "export=there")[0] == 0
    first, again = (lra.data("matching", f"data_dir={folder}") for folder in (raw, "there"))
    for before, after in ((first.train, again.train), (first.val, again.val), (first.test, again.test)):
        assert [first.decode(row) for row in before] == [again.decode(row) for row in after]
        assert [row["label"] for row in before] == [row["label"] for row in after]


def test_other_tasks_are_exported_as_parquet(cli: Commands) -> None:
    assert cli(prepare.main, "task=pathfinder_short", SMOKE, "export=there")[0] == 0
    data = lra.data("pathfinder_short", SMOKE)
    found = datasets.load_dataset("parquet", data_dir="there", cache_dir="cache")
    assert found["train"].features["label"].names == data.classes
    for rows, name in ((data.train, "train"), (data.val, "validation"), (data.test, "test")):
        assert found[name]["label"] == [row["label"] for row in rows]
        assert found[name]["tokens"] == [row["tokens"].tolist() for row in rows]


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_the_trainer_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two examples of docs/api.md, on small data."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    text = (CHECKOUT / "docs" / "api.md").read_text()
    examples = [block for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "Classifier" in block]
    assert len(examples) == 2
    names: dict[str, object] = {"lra": lra}
    for example in examples:
        exec(example.replace('lra.data("listops")', 'lra.data("listops", "size=smoke")'), names)
    assert 0 <= names["trainer"].evaluate()["eval_accuracy"] <= 100
