"""Load the weights of BERT into a model with post-norm blocks.

BERT's input is the normalised sum of token, position and segment embeddings, with [CLS] as the first token. Here the
embedding of [CLS] becomes the model's CLS vector, and the first segment's vector is added to every position embedding.

Source:
    Devlin et al. 2019.
"""

import json
import re
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import UserError
from lra.datasets import hub
from lra.datasets.tokenise import TOKENIZER, load, vocabulary_of
from lra.init.weights import InitialWeights
from lra.records import tensors

if TYPE_CHECKING:
    from torch import Tensor

    from lra.datasets.task import Task
    from lra.network.model import Model

CONFIG, TOKENIZER_CONFIG, VOCABULARY, CLS = "config.json", "tokenizer_config.json", "vocab.txt", "[CLS]"
HUB = "hub:"  # prefix of `init.folder` for models on the Hugging Face hub
REPOSITORY = re.compile(r"hub:([\w.-]+/)?\w[\w.-]*")
TABLES = ("word", "position", "token_type")  # BERT's embedding tables
BLOCKS = {  # options `model.*`, with the values that all BERT models have
    "norm": "post", "norm_over": None, "final_norm": False, "bias": True, "attention_bias": True,
    "positions": "learned", "cls_position": True, "embedding_norm": True,
    "feed_forward_activation": "gelu", "feed_forward_dim": None,
}  # fmt: skip
LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")  # groups: block index, part, "weight" or "bias"
PARTS = {  # name of a part of a block in BERT's files -> its name in `Block`
    "attention.self.query": "mixer.query",
    "attention.self.key": "mixer.key",
    "attention.self.value": "mixer.value",
    "attention.output.dense": "mixer.out",
    "attention.output.LayerNorm": "mixer_norm",
    "intermediate.dense": "feed_forward.0",
    "output.dense": "feed_forward.3",  # 1 and 2 are the activation and the dropout
    "output.LayerNorm": "feed_forward_norm",
}


class Bert(InitialWeights):
    """Initial weights from a BERT model.

    Args:
        folder: folder with model.safetensors, config.json and vocab.txt as transformers writes them, or hub:OWNER/NAME
            for a model on the Hugging Face hub.
        take: see `InitialWeights`.
    """

    file = "model.safetensors"
    hint = "expected a folder with the weights of a BERT in the layout of transformers, as safetensors"

    @cached_property
    def path(self) -> Path:
        if not self.folder.startswith(HUB):
            return super().path
        if not REPOSITORY.fullmatch(self.folder):
            raise UserError(f"init.folder={self.folder}: expected hub:OWNER/NAME")
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        files = [self.file, CONFIG, TOKENIZER_CONFIG, VOCABULARY]
        fetch = partial(snapshot_download, self.folder.removeprefix(HUB), allow_patterns=files)
        # Look into the client's cache first, so that a model that was fetched before needs no network.
        with suppress(LocalEntryNotFoundError):
            kept = Path(fetch(local_files_only=True)) / self.file
            if kept.is_file():  # an interrupted download leaves the folder without this file
                return kept

        def failed(reason: str) -> UserError:
            advice = f"put {', '.join(files)} into a folder and set init.folder to it"
            return UserError(f"init.folder={self.folder}: it could not be fetched ({reason}); {advice}")

        return Path(hub.from_hub(self.folder.removeprefix(HUB), fetch, failed)) / self.file

    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        self._check_shape(model)
        vocabulary = self._check_vocabulary(task)
        theirs = {}
        for name, value in tensors.read(self.path).items():
            # Names start with `bert.` in files of models with a head; in old files the norms have TensorFlow's names.
            name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
            theirs[name.replace("LayerNorm.beta", "LayerNorm.bias")] = value
        blocks = {}
        for name, value in theirs.items():
            layer = LAYER.fullmatch(name)
            if layer and layer[2] in PARTS:
                blocks[f"blocks.{layer[1]}.{PARTS[layer[2]]}.{layer[3]}"] = value
        try:
            words, positions, segments = (theirs[f"embeddings.{table}_embeddings.weight"] for table in TABLES)
            norm = {end: theirs[f"embeddings.LayerNorm.{end}"] for end in ("weight", "bias")}
        except KeyError as error:
            raise UserError(f"{self.path}: no tensor {error}; {self.hint}") from None
        positions, wanted = positions + segments[0], len(model.embedding.positions)  # type: ignore[arg-type]
        if len(positions) < wanted:
            raise UserError(
                f"{self.path}: {len(positions)} positions, but the task needs {wanted}, CLS included; shorten the texts"
            )
        return {
            "embedding.tokens.weight": words,
            "embedding.cls": words[vocabulary.index(CLS)],
            "embedding.positions": positions[:wanted],
            **{f"embedding.norm.{end}": value for end, value in norm.items()},
            **blocks,
        }

    def _check_shape(self, model: "Model") -> None:
        """Raise UserError if the settings or sizes of the model differ from those of BERT."""
        for key, theirs in BLOCKS.items():
            if (ours := getattr(model.architecture, key)) != theirs:
                raise UserError(f"init=bert: model.{key}={ours}, but BERT has {theirs}")
        config = self._json(CONFIG)
        block = model.blocks[0]
        here = {
            "hidden_size": ("model.dim", block.mixer.config.dim),
            "num_attention_heads": ("model.heads", block.mixer.config.heads),
            "intermediate_size": ("model.mlp_dim", block.feed_forward[0].out_features),
            "layer_norm_eps": ("model.norm_eps", getattr(block.mixer_norm, "eps", None)),
        }
        for key, (setting, value) in here.items():
            if config.get(key) != value:
                raise UserError(f"{self.path.with_name(CONFIG)}: {key} is {config.get(key)}, but {setting}={value}")
        if (config.get("hidden_act"), config.get("position_embedding_type", "absolute")) != ("gelu", "absolute"):
            raise UserError(f"{self.path.with_name(CONFIG)}: expected hidden_act gelu and absolute positions")

    def _check_vocabulary(self, task: "Task") -> list[str]:
        """Return BERT's vocabulary. Raises UserError if the task's tokens or lower-casing differ from BERT's."""
        path = self.path.with_name(VOCABULARY)
        vocabulary = vocabulary_of(path)
        if CLS not in vocabulary:
            raise UserError(f"{path}: no token {CLS}")
        remedy = f"use task.vocab={path} and task.tokenizer=wordpiece, or wordpiece_uncased"
        if not (task.folder / TOKENIZER).exists():
            raise UserError(f"init=bert: {task.name} has no tokenizer; {remedy}")
        tokenizer = load(task.folder / TOKENIZER)
        if tokenizer.get_vocab() != {token: row for row, token in enumerate(vocabulary)}:
            raise UserError(f"init=bert: {task.name} has other tokens than {path}; {remedy}")
        lower = json.loads(tokenizer.to_str())["normalizer"]["lowercase"]
        # The file is optional: not every saved model has one.
        tokenizer_config = self._json(TOKENIZER_CONFIG) if self.path.with_name(TOKENIZER_CONFIG).exists() else {}
        if tokenizer_config.get("do_lower_case", lower) != lower:
            raise UserError(
                f"init=bert: {task.name} has {'lower' if lower else 'mixed'}-case text, unlike this BERT; {remedy}"
            )
        return vocabulary

    def _json(self, name: str) -> dict[str, Any]:
        path: Path = self.path.with_name(name)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {error}; {self.hint}") from None
