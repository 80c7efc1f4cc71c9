"""Contributions to the CLS are exact, and the page says what they are."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Commands, facts, mixer_of, model_of, stub_task

from lra.attention import merge_heads
from lra.cli import explain as explain_command
from lra.cli import train
from lra.core.errors import UserError
from lra.tools.explain import attributions, pieces, summed

TINY = ("model.dim=6", "model.heads=3", "model.depth=3", "model.mlp_dim=10", "model.dropout=0.3")
SYSTEMS = ["simple", "simple_res", "simple_resl", "transformer"]
RUN = ("experiment=smoke", "task=listops", "train.steps=4", "train.eval_every=4", "train.warmup=2")


def tiny(*overrides: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(3)
    model = model_of(*TINY, *overrides, task=facts(**changes)).double()
    if model.embedding.cls is not None:
        torch.nn.init.normal_(model.embedding.cls)
    return model


def tokens(documents: int) -> torch.Tensor:
    rows = torch.randint(1, 17, (documents, 11), generator=torch.Generator().manual_seed(5))
    return rows * (torch.arange(11) < torch.tensor([8, 5])[:documents, None])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("protocol", ["paper", "strict"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("documents", [1, 2])
def test_parts_sum_to_what_the_mixers_add(system: str, protocol: str, norm: str, documents: int) -> None:
    """By hooks of our own; the logits are those of the model."""
    model = tiny(f"system={system}", f"protocol={protocol}", f"model.norm={norm}", documents=documents)
    outputs = []
    for block in model.blocks:
        block.mixer.register_forward_hook(lambda _, inputs, output: outputs.append(output[:, 0]))
    by_document, logits = attributions(model, tokens(documents))
    assert (len(by_document), {len(blocks) for blocks in by_document}) == (documents, {3})
    for place, blocks in enumerate(by_document):
        for reading, output in zip(blocks, outputs, strict=True):
            assert reading.parts.shape == (3, 12, 6)
            gap = reading.parts.sum(dim=(0, 1)) + reading.bias - output[place]
            assert gap.abs().max() <= 1e-10
            assert reading.gap == pytest.approx((gap.norm() / output[place].norm()).item())
            assert reading.shares.sum().item() == pytest.approx(1, abs=1e-10)
            assert (reading.bias.abs().sum() > 0) == (system in ("simple_resl", "transformer"))
    with torch.no_grad():
        torch.testing.assert_close(logits, model(tokens(documents))[0])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_a_part_is_what_one_value_of_one_head_gives(system: str, protocol: str) -> None:
    """The first mixer, run with all values zero but those of one token and head."""
    model = tiny(
        f"system={system}", f"protocol={protocol}", *(("attention.form=textbook",) if "simple" in system else ())
    )
    seen = []
    mixer = model.blocks[0].mixer
    hook = mixer.register_forward_hook(lambda _, inputs, output: seen.append(inputs[:2]))
    [[reading, *_]], _ = attributions(model, tokens(1))
    hook.remove()
    for head in range(3):
        for token in range(12):
            chosen = torch.zeros(12, 6, dtype=torch.float64)
            chosen[token, 2 * head : 2 * head + 2] = 1
            hook = mixer.value.register_forward_hook(lambda _, inputs, output, chosen=chosen: output * chosen)
            with torch.no_grad():
                alone = mixer(*seen[0])[0, 0] - reading.bias
            hook.remove()
            torch.testing.assert_close(alone, reading.parts[head, token], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attention", ["simple", "softmax"])
@pytest.mark.parametrize("scale", ["protocol=paper", "protocol=strict"])
def test_weights_times_values_are_the_attention(attention: str, scale: str) -> None:
    """With a mask and without; q may be the first positions only."""
    mixer = mixer_of(attention, scale, max_positions=13)
    q, k, v = torch.randn(3, 2, 3, 13, 5, dtype=torch.float64)
    for mask in (None, torch.arange(13) < torch.tensor([[7], [13]])):
        torch.testing.assert_close(mixer.weights(q, k, mask) @ v, mixer.attend(q, k, v, mask))
        torch.testing.assert_close(mixer.weights(q[:, :, :1], k, mask), mixer.weights(q, k, mask)[:, :, :1])
    assert merge_heads(mixer.attend(q, k, v, None)).shape == (2, 13, 15)


def test_what_cannot_be_explained() -> None:
    for overrides, message in (
        (("attention=performer",), "Performer has no weights between tokens"),
        (("attention=fnet", "variant=transformer"), "FNet has no weights between tokens"),
        (("attention=simple", "model.pooling=mean"), "the run pools by mean"),
    ):
        with pytest.raises(UserError, match=message):
            attributions(tiny(*overrides), tokens(1))


def test_pieces_are_words_of_bytes_tokens_and_padding(tmp_path: Path) -> None:
    """Together they are the text; their lengths are those of the positions."""
    text = "Good  café.\nBad".encode()
    ids = np.frombuffer(text, np.uint8).astype(np.uint16) + 1
    task = stub_task(vocab_size=257)
    assert pieces(task, ids, 20) == [
        ("[CLS]", 1), ("Good  ", 6), ("café.\n", 7), ("Bad", 3), (" [padding, 4 times]", 4),
    ]  # fmt: skip
    assert "".join(name for name, _ in pieces(task, ids, 16)[1:]) == text.decode()
    assert [name for name, _ in pieces(stub_task(), np.array([11, 3, 15]), 3)] == ["[CLS]", "[MIN ", "2 ", "] "]
    values = torch.arange(42.0).reshape(2, 21)
    together = summed(values, pieces(task, ids, 20))
    assert together.shape == (2, 5)
    assert together[1].tolist() == [21, sum(range(22, 28)), sum(range(28, 35)), 35 + 36 + 37, 38 + 39 + 40 + 41]


def test_the_page_of_two_runs(cli: Commands) -> None:
    for system in ("simple", "transformer"):
        assert cli(train.main, *RUN, f"system={system}", "checkpoint.keep=true", "out=runs")[0] == 0
    folders = [f"runs/listops/paper/{cell}/seed1" for cell in ("simple/simple", "softmax/transformer")]
    code, _, err = cli(explain_command.main, f"run={folders[0]}", f"beside={folders[1]}", "example=3")
    assert (code, err) == (0, "wrote explain.html\n")
    page = Path("explain.html").read_text()
    [gap] = re.findall(r"largest relative gap (\S+)\)", page)
    assert float(gap) < 1e-10
    titles = re.findall(r"<h3>(.*?) \(total (.*?)\)</h3>", page)
    assert len(titles) == 2 * 2 * (2 + 1)  # blocks, runs, heads and their sum
    for title, total in titles:
        assert ("all heads" in title or "attention" in title) <= (total == "1.0000"), title
    strips = re.findall(r"<p class=strip>(.*?)</p>", page)
    texts = {re.sub("<.*?>", "", strip) for strip in strips}
    [text] = texts
    assert text.startswith("[CLS][SM 7 [MAX 2 ")
    assert "[padding, " in text


def test_mistakes_end_in_one_line(cli: Commands) -> None:
    assert cli(train.main, *RUN, "attention=simple", "out=runs")[0] == 0
    folder = "runs/listops/paper/simple/simple/seed1"
    for arguments, message in (
        ((), "run: no value"),
        (("run=nowhere",), "error: nowhere: no record.json there; expected the folder of a run"),
        ((f"run={folder}",), "checkpoint.keep=true"),
        ((f"run={folder}", "exampel=1"), "exampel"),
    ):
        code, _, err = cli(explain_command.main, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert cli(train.main, *RUN, "attention=simple", "out=kept", "checkpoint.keep=true")[0] == 0
    code, _, err = cli(explain_command.main, f"run={folder.replace('runs', 'kept')}", "example=70")
    assert (code, "test has examples 0 to 69" in err) == (2, True)
    weights = Path(folder.replace("runs", "kept")) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    code, _, err = cli(explain_command.main, f"run={weights.parent}")
    assert (code, err.count("\n"), f"{weights}: its SHA-256 is" in err) == (2, 1, True)
