"""Convert texts to token ids and back. Id 0 is padding; a byte has the id byte + 1."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from lra.core.errors import UserError
from lra.datasets import readers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_VOCABULARY = 257  # 256 bytes and padding
MAX_VOCABULARY = 2**16  # ids are stored as uint16
BpeVocabulary = Annotated[int, Field(ge=BYTE_VOCABULARY, le=MAX_VOCABULARY)]
"""Number of tokens of a byte-level BPE: padding, every byte, and merges."""

PAD, UNKNOWN = "[PAD]", "[UNK]"
BATCH = 1_000  # number of texts encoded at once; limited, since encodings also hold the strings of tokens in memory
TOKENIZER = "tokenizer.json"  # name of the tokenizer's file, next to the cached splits of a task with subwords


def byte_ids(text: bytes, length: int | None) -> np.ndarray:
    """Return the ids [L] uint16 of the first `length` bytes of a text, or of all its bytes if `length` is None."""
    return np.frombuffer(text[:length], dtype=np.uint8).astype(np.uint16) + 1


def text_of(ids: np.ndarray) -> bytes:
    """Return the bytes of token ids: the inverse of `byte_ids`."""
    return (np.asarray(ids) - 1).astype(np.uint8).tobytes()


def picture_of(ids: np.ndarray) -> np.ndarray:
    """Return the grey values [side, side] uint8 of a square picture from its token ids, which are value + 1."""
    return (ids - 1).astype(np.uint8).reshape(math.isqrt(len(ids)), -1)


def head_and_tail(ids: np.ndarray, head: int, tail: int) -> np.ndarray:
    """Return the first `head` and the last `tail` ids of a document, or all if it has at most `head + tail` ids."""
    return ids if len(ids) <= head + tail else np.concatenate([ids[:head], ids[len(ids) - tail :]])


def train_bpe(texts: Iterable[str], vocabulary: int, path: Path) -> "Tokenizer":
    """Return a byte-level BPE tokenizer that is trained on texts, and save it as `path`; training is deterministic.

    The tokenizer has at most `vocabulary` tokens, padding included. The text "[PAD]" in a document is encoded as
    ordinary characters, never as padding.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # every byte, so that no text is unknown
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    # Remove [PAD] from the added tokens, because these are recognised in texts.
    tokenizer = Tokenizer.from_str(json.dumps({**json.loads(trained.to_str()), "added_tokens": []}))
    tokenizer.save(str(path))
    return tokenizer


def vocabulary_of(path: Path) -> list[str]:
    """Return the tokens of a BERT vocabulary file, which has one distinct token per line and [PAD] in the first line.

    Raises:
        UserError: the file is not a BERT vocabulary.
    """
    with readers.opened(path, "rt", encoding="utf-8", newline="\n") as file:
        tokens = file.read().removesuffix("\n").split("\n")
    if tokens[0] != PAD or not len(tokens) == len({*tokens}) <= MAX_VOCABULARY or UNKNOWN not in tokens:
        expected = f"at most {MAX_VOCABULARY:,} different tokens, {PAD} first, and {UNKNOWN}"
        raise UserError(f"{path}: expected a BERT vocabulary: {expected}")
    return tokens


def word_piece(vocabulary: Path, *, lower_case: bool) -> "Tokenizer":
    """Return BERT's WordPiece tokenizer with the tokens of a vocabulary file."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    rows = {token: row for row, token in enumerate(vocabulary_of(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(rows, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)  # `lowercase` also strips accents
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def load(path: Path) -> "Tokenizer":
    """Return the tokenizer that was saved as the JSON file `path`.

    Raises:
        UserError: the file is not a tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: not a tokenizer: {error}; delete {path.parent} and prepare again") from None


def encode(tokenizer: "Tokenizer", texts: list[str]) -> Iterator[np.ndarray]:
    """Yield the token ids [L] uint16 of each text, without special tokens."""
    for start in range(0, len(texts), BATCH):
        for item in tokenizer.encode_batch(texts[start : start + BATCH], add_special_tokens=False):
            yield np.array(item.ids, dtype=np.uint16)
