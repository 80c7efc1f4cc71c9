"""Self-pretraining: hidden tokens, targets, losses, weights that are handed on, and runs that share them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import TINY_MODEL, Commands, accumulate, composed, job_of, model_of, spec, stub_task, train_state
from torch.nn.functional import cross_entropy

from lra.cli import train
from lra.core import files
from lra.core.errors import UserError
from lra.core.signals import StopFlag
from lra.datasets.self_pretraining import inputs_of
from lra.datasets.splits import Pictures
from lra.init import Checkpoint
from lra.records import record
from lra.runs.build import assemble
from lra.runs.initial_weights import draw_model, pretrain, trainer_of
from lra.runs.settings import settings_of
from lra.tasks import PADDING, DataConfig, Split, Task, TaskSpec
from lra.training.batches import counts, predict, read, summed_loss
from lra.training.evaluate import evaluate
from lra.training.recipe import carried

PHASE = ("pretrain.train.warmup=2", "pretrain.train.steps=5", "pretrain.train.eval_every=3")
SMALL = ("experiment=smoke", "train.steps=4", "train.eval_every=3", "train.warmup=2", *PHASE)


def inputs(task: Task, objective: str = "masked", **changes: object) -> Task:
    options = {"values": False, "share": 0.3, "holdout": 0.2, "seed": 5}
    return inputs_of(classifying(task.train, spec(**vars_of(task))), objective, **{**options, **changes})


def classifying(train: Split, known: TaskSpec) -> Task:
    parts = {"train": train, "val": train, "test": train}
    return Task(**vars(known), **parts, baselines={}, digest="stub", folder=Path(), source="made up")


def vars_of(task: Task) -> dict[str, object]:
    return {name: getattr(task, name) for name in ("vocab_size", "max_len", "classes", "documents")}


def documents(count: int, length: int) -> Split:
    """Return `count` documents of random tokens 1 to 16."""
    rng = np.random.default_rng(3)
    return Split(
        tokens=rng.integers(1, 17, count * length).astype(np.uint8),
        offsets=np.arange(count + 1) * length,
        index=np.arange(count),
        labels=np.zeros(count, np.uint8),
    )


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_pictures_are_pretrained_with_the_ids_that_their_task_reads(objective: str) -> None:
    """Each picture has black, 0, and white, 255: the ids are 1 to 256, and the numbers 0 to 1."""
    count, pixels = 23, 49
    grey = np.random.default_rng(7).integers(0, 256, (count, pixels)).astype(np.uint8)
    grey[:, 0], grey[:, 1] = 0, 255
    pictures = Pictures(
        tokens=grey.ravel(),
        offsets=np.arange(count + 1) * pixels,
        index=np.arange(count),
        labels=np.zeros(count, np.uint8),
    )
    known = spec(vocab_size=257, max_len=pixels, fixed_length=True)
    for values in (False, True):
        task = inputs_of(classifying(pictures, known), objective, values=values, share=0.3, holdout=0.2, seed=5)
        rows = np.arange(len(task.train))
        read, expected = task.train.pad(rows, pixels), pictures.pad(task.train.index, pixels)
        hidden = read == 257
        assert hidden.any() == (objective == "masked")
        assert np.array_equal(read[~hidden], expected[~hidden])
        targets = expected.ravel()[task.train.scored(rows, pixels) + task.train.ahead].astype(int)
        assert np.array_equal(task.train.targets(rows), ((targets - 1) / 255).astype(np.float32) if values else targets)


def test_the_fraction_of_hidden_tokens() -> None:
    """Known counts: Philox gives the same bits everywhere. Each step hides other tokens, each evaluation the same."""
    known = {"values": False, "share": 0.15, "holdout": 0.1, "seed": 1}
    task = inputs_of(classifying(documents(200, 101), spec()), "masked", **known)
    examples = np.arange(len(task.train))
    counts = [len(task.train.of_step(step).predictions(examples)) for step in (0, 1)]
    assert counts == [2656, 2700]
    assert abs(sum(counts) / (2 * 180 * 101) - 0.15) < 4 * math.sqrt(0.15 * 0.85 / (2 * 180 * 101))
    assert len(task.val) == 20
    first, again = (task.train.of_step(7).pad(examples, 101) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, task.train.of_step(8).pad(examples, 101))
    assert np.array_equal(task.val.pad(np.arange(20), 101), task.val.pad(np.arange(20), 101))


def test_masked_tokens_are_the_targets() -> None:
    """Scored positions hold V, all others the document; every document has at least one scored position."""
    task = stub_task(examples=97, max_len=11)
    split = inputs(task, share=0.01).train.of_step(4)
    examples = np.arange(len(split))
    batch, plain = split.pad(examples, 11), Split.pad(split, examples, 11)
    places = split.scored(examples, 11)
    assert len(places) >= len(split)
    assert np.array_equal(np.flatnonzero(batch == 17), places)
    assert np.array_equal(split.targets(examples), plain.ravel()[places])
    assert (split.targets(examples) != PADDING).all()
    kept = np.setdiff1d(np.arange(batch.size), places)
    assert np.array_equal(batch.ravel()[kept], plain.ravel()[kept])
    cut = np.concatenate([split.targets(examples[start : start + 3]) for start in range(0, len(split), 3)])
    assert np.array_equal(cut, split.targets(examples))


def test_the_next_token_is_predicted_at_every_token_but_the_last() -> None:
    split = inputs(stub_task(examples=29), "next").train
    examples = np.arange(len(split))
    batch, places = split.pad(examples, 11), split.scored(examples, 11)
    assert np.array_equal(batch.ravel()[places + 1], split.targets(examples))
    assert len(places) == (split.lengths(examples) - 1).sum()


def test_grey_values_are_predicted_as_numbers() -> None:
    """The targets of images are grey values id - 1 from 0 to V - 2, and the loss is the mean absolute error."""
    split = inputs(stub_task(), values=True).train
    examples = np.arange(len(split))
    ids = split.tokens[split.predictions(examples)]
    assert split.targets(examples) == pytest.approx((ids - 1) / 15)
    outputs, targets = torch.tensor([[0.25], [0.5], [2.0]]), torch.tensor([0.75, 0.5, 1.0])
    assert summed_loss(outputs, targets).item() == 0.5 + 0 + 1
    assert counts(outputs, targets).tolist() == [0, 0]


def test_a_model_that_knows_nothing_has_the_loss_log_v() -> None:
    """V classes: the mask token is never the answer."""
    task = inputs(stub_task(examples=43))
    model = model_of(*TINY_MODEL, "protocol=strict", task=task)
    assert model.embedding.tokens.num_embeddings == 18
    torch.nn.init.zeros_(model.head.weight), torch.nn.init.zeros_(model.head.bias)
    score = evaluate(model, task.val, 5, precision="fp32")
    assert score.loss == pytest.approx(math.log(17), rel=1e-6)
    assert score.perplexity == pytest.approx(17, rel=1e-6)
    assert score.examples == len(task.val.predictions(np.arange(len(task.val))))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_hidden_positions_alone_give_gradient(pooling: str) -> None:
    """Compare with a plain loop: the gradient of the mean loss over hidden positions; other logits have none."""
    task = inputs(stub_task(examples=19))
    model = model_of(*TINY_MODEL, "protocol=strict", f"model.pooling={pooling}", "model.dropout=0", task=task).double()
    split, examples = task.train.of_step(2), np.arange(7)
    accumulate(model, split, examples, 3, seed=1, step=2, precision="fp32")
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    total, count = 0.0, 0
    for example in examples:
        tokens = torch.from_numpy(split.pad(np.array([example]), 11)).long()
        logits = model(tokens)[0]
        logits.retain_grad()
        row = split.index[example]
        document = split.tokens[split.offsets[row] : split.offsets[row + 1]]
        hidden = [place for place in range(len(document)) if tokens[0, place] == 17]
        loss = sum(cross_entropy(logits[place], torch.tensor(int(document[place]))) for place in hidden)
        loss.backward(retain_graph=True)
        assert (logits.grad.abs().sum(dim=1) > 0).nonzero().flatten().tolist() == hidden
        total, count = total + loss.item(), count + len(hidden)
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert torch.allclose(parameter.grad / count, gradients[name], atol=1e-12), name
    assert ("embedding.cls" in gradients) == (pooling == "cls")
    logits, _ = predict(model, read(split, examples, np.arange(7), 11), "fp32")
    assert logits.shape == (count, 17)


@pytest.mark.parametrize("pixels", ["null", "[0.5,0.25]"])
@pytest.mark.parametrize("objective", ["masked", "next"])
def test_all_pretrained_weights_but_the_head_are_loaded(tmp_path: Path, objective: str, pixels: str) -> None:
    task = replace(stub_task(), vocab_size=257)
    sizes = (*TINY_MODEL, "protocol=strict", "model.dropout=0", "model.pooling=mean", f"model.pixels={pixels}")
    model = model_of(*sizes, task=inputs(task, objective))
    weights = carried(train_state(model), 257)
    save_file(weights, tmp_path / "weights.safetensors")
    final = model_of(*sizes, task=task)
    Checkpoint(folder=str(tmp_path), take=["embedding", "mixer", "feed_forward", "norms"]).load(final, task)
    for name, value in final.state_dict().items():
        assert name.startswith("head.") or torch.equal(value, weights[name]), name


def test_pretraining_reads_no_label_and_no_other_split(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Other validation and test data and other labels leave the bytes of the weights unchanged. The second run waits
    for a process that seems to compute the same weights."""
    made = []
    for name in ("clean", "poisoned"):
        job = job_of(*SMALL, "protocol=strict", "pretrain=masked", f"cache={cache}")
        task = job.components.builder.build(DataConfig.of(job.settings))
        if name == "poisoned":
            poison = replace(task.test, tokens=np.ones_like(task.test.tokens), labels=task.test.labels[::-1])
            train = replace(task.train, labels=np.zeros_like(task.train.labels))
            task = replace(task, train=train, val=poison, test=poison)
            monkeypatch.setattr(files, "holder", lambda _: "another process")
        phase = job.components.pretraining
        elsewhere = replace(phase, settings=replace(phase.settings, out=str(tmp_path / name)))
        job = replace(job, components=replace(job.components, pretraining=elsewhere))
        model = draw_model(job.components, task, 1)
        pretrain(job, elsewhere, trainer_of(job, task, model, "cpu"), "cpu", StopFlag())
        [weights] = (tmp_path / name).rglob("weights.safetensors")
        made.append(weights.read_bytes())
    assert made[0] == made[1]
    assert capfd.readouterr().err.count("waits until these weights are computed (another process)") == 1


def test_a_diverging_pretraining_is_named_in_the_record(cli: Commands) -> None:
    code, _, err = cli(train.main, *SMALL, "pretrain=masked", "pretrain.train.lr=1e30", "out=runs", "cache=own")
    assert code == 1
    assert "diverged: in its pretraining, the loss of step 2 is nan" in err
    assert record.read(next(Path("runs").rglob(record.NAME)))["status"] == "diverged"


def test_runs_with_one_pretraining_share_its_weights_and_record_it(cli: Commands) -> None:
    """Seeds of the head and rates of the training share the weights of one pretraining; another mask does not."""
    share = ("pretrain=masked", "pretrain.seed=7", "protocol=strict", "checkpoint.keep=true", "cache=own")
    runs = {"one": ("seed=1",), "two": ("seed=2", "train.lr=0.01"), "other": ("seed=1", "pretrain.mask=0.4")}
    records, lines = {}, {}
    for name, overrides in runs.items():
        code, _, err = cli(train.main, *SMALL, *share, *overrides, f"out={name}")
        assert code == 0, err
        [path] = Path(name).rglob(record.NAME)
        records[name] = record.read(path)
        lines[name] = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
    digests = {name: made["pretrain"]["digest"] for name, made in records.items()}
    assert digests["one"] == digests["two"] != digests["other"]
    assert records["one"]["pretrain"] == records["two"]["pretrain"]
    assert len(list(Path("own/pretrained").rglob(record.NAME))) == 2
    assert [(line.get("phase"), line["step"]) for line in lines["one"]] == [
        ("pretrain", 3), ("pretrain", 5), (None, 3), (None, 4)
    ]  # fmt: skip
    assert lines["one"][:2] == lines["two"][:2]
    told = records["one"]["pretrain"]
    assert told["tokens"]["computed"] == sum(line["tokens"] for line in lines["one"][:2])
    assert records["one"]["seconds"]["pretrain"] == pytest.approx(sum(line["seconds"] for line in lines["one"][:2]))
    assert told["validation"]["best"]["loss"] == min(line["val_loss"] for line in lines["one"][:2])
    kept = next(Path("one").rglob(record.NAME)).parent
    code, said, err = cli(train.main, f"rerun={kept}", "out=again", "cache=own")
    assert (code, "equal to the last bit" in said) == (0, True), err
    assert len(list(Path("own/pretrained_again").rglob(record.NAME))) == 1, "a rerun repeats the pretraining"
    shared = next(
        path for path in Path("own/pretrained").rglob("weights.safetensors") if digests["one"][:12] in str(path)
    )
    before, after = load_file(shared), load_file(next(Path("one").rglob("weights.safetensors")))
    assert before.keys() == {name for name in after if not name.startswith("head.")}
    save_file({name: value + 1 for name, value in before.items()}, shared)
    code, _, err = cli(train.main, *SMALL, *share, "seed=3", "out=three")
    assert (code, "these are not the weights of that run" in err) == (2, True)


@pytest.mark.parametrize(
    ("task", "mask", "loss", "rate", "warmup"),
    [
        ("listops", 0.1, "cross_entropy", 1e-3, 2000),
        ("text", 0.15, "cross_entropy", 5e-4, 5000),
        ("matching", 0.15, "cross_entropy", 5e-3, 2000),
        ("image", 0.5, "absolute", 1e-3, 2500),
        ("pathfinder", 0.5, "cross_entropy", 1e-3, 2500),
        ("pathx", 0.5, "cross_entropy", 5e-4, 5000),
    ],
)
def test_masked_pretraining_is_as_published(task: str, mask: float, loss: str, rate: float, warmup: int) -> None:
    """Shares, losses and rates: Amos et al. 2024; warm-up, and the loss of Pathfinder: its code."""
    phase = composed(f"task={task}", "protocol=strict", "pretrain=masked")["pretrain"]
    assert (phase["mask"], phase["loss"]) == (mask, loss)
    assert (phase["train"]["lr"], phase["train"]["warmup"]) == (rate, warmup)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("pretrain=next", "attention=fnet", "model.key_mask=false"), "no causal form"),
        (("pretrain=masked", "pretrain.mask=null"), "pretrain.mask=None: expected a fraction of the tokens"),
        (("pretrain=masked", "train.freeze=[head]"), "train.freeze: head.0.weight would keep its random values, since"),
        (("pretrain=masked", "init=checkpoint", "init.folder=x"), "both set the initial weights"),
        (("pretrain=masked", "task=mqar"), "predicts at positions; expected a task that classifies"),
    ],
)
def test_an_impossible_pretraining_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        assemble(settings_of(composed(*SMALL, "protocol=strict", *overrides)))


def test_language_models_hand_their_blocks_to_classifiers(tmp_path: Path) -> None:
    """Books, then text, by init=checkpoint: all blocks are loaded, though vocabulary, context and head differ."""
    shared = ("attention=softmax", "protocol=strict", "task=text", *TINY_MODEL)
    books = spec(vocab_size=19, classes=19, max_len=7, objective="next_token", causal=True)
    source, target = model_of(*shared, task=books), model_of(*shared, task=spec())
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    report = Checkpoint(folder=str(tmp_path), take=["mixer", "feed_forward", "norms"]).load(target, spec())
    for name, value in source.state_dict().items():
        if name.startswith(("blocks.", "final_norm.")):
            assert torch.equal(target.state_dict()[name], value), name
    assert set(report["left"]) == {"not in init.take"}
