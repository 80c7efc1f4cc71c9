"""`lra.model`: the model of a finished run answers as it did in its test."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support import Commands

import lra
from lra.cli import train
from lra.datasets.task import DataConfig, Task
from lra.records.names import PREDICTIONS, WEIGHTS
from lra.runs.build import assemble
from lra.tasks._listops_trees import WORDS

TINY = ("experiment=smoke", "train.steps=6", "train.eval_every=2", "train.warmup=2", "train.batch_size=5")
SIZES = ("train.micro_batch=5", "model.dropout=0.1", "out=o")
LISTOPS = ("task=listops_short", "task.train_size=40", "task.val_size=5", "task.test_size=30")
COLOURS = ("red", "green", "blue")


def trained(cli: Commands, *words: str) -> tuple[Path, Task]:
    """Train a run and return its folder and its data."""
    assert cli(train.main, *TINY, *SIZES, *words)[0] == 0
    run = lra.compose(*TINY, *SIZES, *words)
    return run.folder, assemble(run.settings).builder.build(DataConfig.of(run.settings))


def numbers(model: object, examples: list) -> list[int]:
    return [model.classes.index(found.label) for found in model.predict(examples)]


def write_texts(folder: str, columns: str, row: str) -> None:
    Path(folder).mkdir()
    for split, count in (("train", 60), ("test", 25)):
        rows = (row.format(n=number, split=split, label=COLOURS[number % 3]) for number in range(count))
        Path(folder, f"{split}.csv").write_text("\n".join([columns, *rows]) + "\n")


def test_words_of_listops(cli: Commands) -> None:
    """The run tests the weights of its last step; examples are texts or token ids."""
    folder, task = trained(cli, *LISTOPS, "attention=softmax", "train.selection=last")
    model, (predicted, _) = lra.model(folder), np.load(folder / PREDICTIONS)
    documents = [task.test.document(number) for number in range(30)]
    texts = [" ".join(WORDS[token - 1] for token in document) for document in documents]
    assert numbers(model, texts) == numbers(model, documents) == predicted.tolist()
    assert numbers(model, texts[0]) == numbers(model, texts[:1])
    for found in model.predict(texts[:3], batch=1):
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.probability == max(found.probabilities.values()) == found.probabilities[found.label]
    assert model.predict([]) == []
    assert not model.module.training
    for examples, message in (
        (["[MAX 2 banana ]"], "banana.*expected the words"),
        (" ", "expected the words"),
        ([[]], "expected 1 to 50 token ids from 1 to 16"),
        ([[1, 99]], "from 1 to 16"),
        ([[1] * 500], "expected 1 to 50"),
        ([[0.5]], "token ids"),
    ):
        with pytest.raises(lra.UserError, match=message):
            model.predict(examples)


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_texts_with_the_names_of_their_classes(cli: Commands, tokens: str) -> None:
    """The data may be gone by then."""
    row = "text {n} of the {split} is {label} {label},{label}"
    write_texts("own", "text,label", row)
    sizes = ("task.vocabulary=300",) if tokens == "bpe" else ("task.max_length=23",)
    folder, _ = trained(cli, "task=files", "task.data=own", f"task.tokens={tokens}", "attention=linear", *sizes)
    Path("own").rename("gone")
    model = lra.model(folder)
    assert model.classes == sorted(COLOURS)
    texts = [row.partition(",")[0].format(n=n, split="test", label=COLOURS[n % 3]) for n in range(25)]
    assert numbers(model, texts) == np.load(folder / PREDICTIONS)[0].tolist()
    with pytest.raises(lra.UserError, match="'': expected a text of at least one token"):
        model.predict([""])


def test_folders_without_the_weights_of_a_run_are_refused(cli: Commands) -> None:
    with pytest.raises(lra.UserError, match="nowhere: no record.json there"):
        lra.model("nowhere")
    folder, _ = trained(cli, *LISTOPS, "attention=fnet", "checkpoint.keep=false")
    with pytest.raises(lra.UserError, match=r"no weights\.safetensors there; train the run with checkpoint\.keep=true"):
        lra.model(folder)
    folder, _ = trained(cli, *LISTOPS, "attention=fnet", "seed=2")
    weights = load_file(folder / WEIGHTS)
    save_file({name: value + 1 for name, value in weights.items()}, folder / WEIGHTS)
    with pytest.raises(lra.UserError, match="these are not the weights of that run"):
        lra.model(folder)
