"""Tokenisers: lossless, without padding ids, the same bytes from the same texts in every process."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lra.core.errors import UserError
from lra.datasets.tokenise import byte_ids, encode, text_of, train_bpe, vocabulary_of, word_piece

TEXTS = ["The cat sat on the mat.\n\nThe hat, the cat - and THE END\u2026 ", "A naïve café, 2nd ed. [PAD] \t\\n x"] * 5
PIECES = ["[PAD]", "[UNK]", "the", "cat", "##s", "un", "##believ", "##able", "##a", "a", "c", "b", ".", "[", "]"]


def pieces_file(folder: Path, tokens: list[str]) -> Path:
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


# ---------------------------------------------------------------- bytes


def test_bytes_are_kept_and_cut() -> None:
    every = bytes(range(256))
    assert byte_ids(every, 1_000).tolist() == list(range(1, 257))
    assert text_of(byte_ids(every, 1_000)) == every
    assert text_of(byte_ids(every, 7)) == every[:7]


# ---------------------------------------------------------------- byte-level BPE


def test_bpe_loses_nothing_and_never_pads(tmp_path: Path) -> None:
    tokenizer = train_bpe(TEXTS, 283, tmp_path / "tokenizer.json")
    hard = [*TEXTS, "", "[PAD]", " [PAD][PAD]\n", "\x00\x7f", "日本語 \U0001f600", "[UNK] ##s <|endoftext|>"]
    for text, ids in zip(hard, encode(tokenizer, hard), strict=True):
        assert tokenizer.decode(ids) == text
        assert not (ids == 0).any()
        assert ids.max(initial=1) < 283
    assert tokenizer.get_vocab_size() == 283
    assert tokenizer.token_to_id("[PAD]") == 0


def test_bpe_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the hash seed and however many threads."""
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(400)]
    texts = [" ".join(rng.choices(words, k=300)) for _ in range(40)]
    program = (
        "import json, sys; from pathlib import Path; from lra.datasets.tokenise import train_bpe;"
        "train_bpe(json.load(sys.stdin), 599, Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", program, str(tmp_path / "other.json")]
    subprocess.run(command, input=json.dumps(texts), text=True, env=environment, check=True)
    train_bpe(texts, 599, tmp_path / "here.json")
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "other.json").read_bytes()


# ---------------------------------------------------------------- word pieces


def test_word_pieces_are_the_longest_from_the_left(tmp_path: Path) -> None:
    tokenizer = word_piece(pieces_file(tmp_path, PIECES), lower_case=False)
    text = "the cats cat cata unbelievable unbelievables b ab ca The . ca [ a ]"
    pieces = "the cat ##s cat cat ##a un ##believ ##able un ##believ ##able ##s b [UNK] c ##a [UNK] . c ##a [ a ]"
    assert next(encode(tokenizer, [text])).tolist() == [PIECES.index(piece) for piece in pieces.split()]


def test_word_pieces_may_ignore_case(tmp_path: Path) -> None:
    path = pieces_file(tmp_path, PIECES)
    kept, lowered = (next(encode(word_piece(path, lower_case=lower), ["The"])).tolist() for lower in (False, True))
    assert (kept, lowered) == ([1], [2])


@pytest.mark.parametrize(
    "data",
    [
        b"the\n[PAD]\n[UNK]\n",
        b"[PAD]\nthe\n",
        b"",
        b"[PAD]\n[UNK]\nthe\na\nthe\n",
        b"[PAD]\n[UNK]\n\xff\n",
        b"[PAD]\n[UNK]\n" + b"\n".join(b"%d" % n for n in range(70_000)),
    ],
    ids=["pad", "unknown", "empty", "twice", "not UTF-8", "long"],
)
def test_a_bad_vocabulary_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(UserError, match="vocab.txt:.*(expected a BERT vocabulary|not UTF-8)"):
        vocabulary_of(tmp_path / "vocab.txt")
