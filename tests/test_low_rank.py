"""Identities of the low-rank, synthesised and Fourier or MLP mixers: synthesizer, linformer, nystromformer, luna,
fnet, mixer."""

import cmath
import math
import re

import pytest
import torch
from support import facts, mask_of, mixer_of, model_of, noise
from torch import Tensor

from lra.attention import Mixer
from lra.attention.nystromformer import pseudo_inverse
from lra.core.errors import UserError
from lra.ops.dropout import set_keys


def heads(x: Tensor) -> Tensor:
    """[B, L, 15] -> [B, 3, L, 5]."""
    return x.view(*x.shape[:2], 3, 5).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(len(x), x.shape[2], 15)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (q @ k.transpose(-2, -1) * scale).softmax(dim=-1) @ v


def preset(mixer: Mixer, **values: Tensor) -> Mixer:
    with torch.no_grad():
        for name, value in values.items():
            mixer.get_parameter(name).copy_(value)
    return mixer


# ---------------------------------------------------------------- synthesizer


def synthesizer(*options: str, **shape: object) -> Mixer:
    return mixer_of("synthesizer", *(f"attention.{option}" for option in options), **shape)


def weights_of(mixer: Mixer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The weights [H, L, L] of one text, read off with values that are unit vectors: five keys at a time."""
    length = x.shape[1]
    weights = torch.zeros(3, length, length, dtype=torch.float64)
    for start in range(0, length, 5):
        basis = torch.eye(length, dtype=torch.float64)[:, start : start + 5]
        basis = torch.nn.functional.pad(basis, (0, 5 - basis.shape[1])).repeat(1, 3)
        mixer.value.forward = lambda x, basis=basis: basis.expand(len(x), -1, -1)
        part = heads(mixer(x, mask))[0]
        weights[:, :, start : start + 5] = part[:, :, : length - start]
    del mixer.value.forward
    return weights.detach()


def by_loops(mixer: Mixer, scores: list, x: Tensor, real: int) -> Tensor:
    """softmax over `real` keys of scores[head][i][j], times the values, for one text [L, 15]."""
    y = torch.zeros(3, len(x), 5, dtype=torch.float64)
    values = heads(mixer.value(x[None]))[0]
    for head in range(3):
        for i in range(len(x)):
            weights = [math.exp(float(scores[head][i][j])) for j in range(real)]
            y[head, i] = sum(w * values[head, j] for j, w in enumerate(weights)) / sum(weights)
    return y.transpose(0, 1).reshape(len(x), 15)


@pytest.mark.parametrize("kind", ["factorized", "random", "dense"])
@pytest.mark.parametrize("dot_product", [False, True])
@torch.no_grad()
def test_synthesizer_by_loops(kind: str, dot_product: bool) -> None:
    mixer, x = synthesizer(f"kind={kind}", "rank=2", f"dot_product={dot_product}"), noise(2, 7, 15)
    output = mixer(x, mask_of([7, 4], 7))
    for row, real in ((0, 7), (1, 4)):
        scores = [[[0.0] * 7 for _ in range(7)] for _ in range(3)]
        for head in range(3):
            for i in range(7):
                for j in range(7):
                    if kind == "factorized":
                        score = sum(mixer.rows[head, i, r] * mixer.columns[head, j, r] for r in range(2))
                    elif kind == "random":
                        score = mixer.table[head, i, j]
                    else:
                        part = slice(5 * head, 5 * head + 5)
                        hidden = (mixer.hidden.weight[part] @ x[row, i] + mixer.hidden.bias[part]).clamp(min=0)
                        score = mixer.synthesise.weight[j] @ hidden + mixer.synthesise.bias[j]
                    if dot_product:
                        q, k = (heads(project(x))[row, head] for project in (mixer.query, mixer.key))
                        score = score + q[i] @ k[j] / math.sqrt(15)  # protocol=paper: of all heads
                    scores[head][i][j] = score
        torch.testing.assert_close(output[row], by_loops(mixer, scores, x[row], real))


def test_synthesizer_with_the_scores_of_softmax_is_softmax() -> None:
    """R preset to q k^T scale, and a mixture whose table is zero."""
    softmax, x = mixer_of("softmax"), noise(1, 13, 15)
    weights = softmax.state_dict()
    q, k = heads(softmax.query(x))[0], heads(softmax.key(x))[0]
    table = synthesizer("kind=random")
    table.load_state_dict({**{name: weights[name] for name in weights if "value" in name}, "table": table.table})
    preset(table, table=q @ k.transpose(-2, -1) / math.sqrt(15))
    torch.testing.assert_close(table(x), softmax(x), rtol=1e-12, atol=1e-12)
    mixture = synthesizer("kind=factorized", "rank=2", "dot_product=true")
    mixture.load_state_dict({**weights, "rows": mixture.rows, "columns": mixture.columns * 0})
    torch.testing.assert_close(mixture(x), softmax(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["factorized", "random"])
def test_a_table_of_synthesizer_does_not_look_at_the_text(kind: str) -> None:
    mixer = synthesizer(f"kind={kind}")
    first, second = (weights_of(mixer, noise(1, 7, 15, seed=seed)) for seed in (1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first.sum(dim=-1), torch.ones(3, 7, dtype=torch.float64))
    mixed = synthesizer(f"kind={kind}", "dot_product=true")
    assert not torch.allclose(*(weights_of(mixed, noise(1, 7, 15, seed=seed)) for seed in (1, 2)))


def test_factorized_scores_have_rank_k() -> None:
    """Log-weights are scores up to one number for each row, so their rank is at most k + 1."""
    for kind, rank in (("factorized", 3), ("random", 11)):
        scores = weights_of(synthesizer(f"kind={kind}", "rank=2"), noise(1, 11, 15)).log()
        assert torch.linalg.matrix_rank(scores, atol=1e-9).tolist() == [rank] * 3


def test_a_dense_row_depends_on_its_token_alone() -> None:
    mixer, x = synthesizer("kind=dense"), noise(1, 7, 15)
    changed = x.clone()
    changed[:, 3] = noise(15, seed=1)
    same = (weights_of(mixer, x) == weights_of(mixer, changed)).all(dim=-1)
    assert same.all(dim=0).tolist() == [True, True, True, False, True, True, True]
    assert not same[:, 3].any()


def test_synthesizer_starts_near_uniform_but_not_uniform() -> None:
    for kind in ("factorized", "random", "dense"):
        mixer = synthesizer(f"kind={kind}", max_positions=211)
        keys = 1 / weights_of(mixer, noise(1, 211, 15)).square().sum(dim=-1)  # 211 where uniform, 1 where one-hot
        assert 211 / 5 < keys.mean() < 210, kind


# ---------------------------------------------------------------- linformer


def test_linformer_of_full_rank_is_softmax() -> None:
    softmax, x = mixer_of("softmax"), noise(2, 13, 15)
    for share in ("key_value", "heads", "none"):
        mixer = mixer_of("linformer", "attention.rank=13", f"attention.share={share}")
        mixer.load_state_dict(softmax.state_dict(), strict=False)
        preset(mixer, project_keys=torch.eye(13))
        if share != "key_value":
            preset(mixer, project_values=torch.eye(13))
        torch.testing.assert_close(mixer(x), softmax(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", ["key_value", "heads", "none"])
@torch.no_grad()
def test_linformer_by_loops(share: str) -> None:
    mixer = mixer_of("linformer", "attention.rank=2", f"attention.share={share}")
    x, lengths = noise(2, 7, 15), [7, 4]
    output = mixer(x, mask_of(lengths, 7))
    q, k, v = (heads(project(x)) for project in (mixer.query, mixer.key, mixer.value))
    per_head = share == "none"
    for row, real in enumerate(lengths):
        for head in range(3):
            e = mixer.project_keys[head if per_head else 0]
            f = e if share == "key_value" else mixer.project_values[head if per_head else 0]
            keys = [sum(e[j, r] * k[row, head, j] for j in range(real)) for r in range(2)]
            values = [sum(f[j, r] * v[row, head, j] for j in range(real)) for r in range(2)]
            for i in range(7):
                weights = [math.exp(float(q[row, head, i] @ key) / math.sqrt(15)) for key in keys]
                expected = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
                torch.testing.assert_close(output[row, i, 5 * head : 5 * head + 5], expected)


def test_linformer_keeps_the_size_of_keys() -> None:
    mixer = mixer_of("linformer", "attention.rank=31", max_positions=499)
    k = noise(5, 3, 499, 5)
    projected = torch.einsum("lk,bhld->bhkd", mixer.project_keys[0], k)
    assert 0.9 < projected.std() < 1.1


# ---------------------------------------------------------------- nystromformer


def nystromformer(landmarks: int, iterations: int = 6, conv_kernel: int | None = None) -> Mixer:
    kernel = "null" if conv_kernel is None else conv_kernel
    given = (f"landmarks={landmarks}", f"iterations={iterations}", f"conv_kernel={kernel}")
    return mixer_of("nystromformer", *(f"attention.{option}" for option in given))


@pytest.mark.parametrize(("iterations", "tolerance"), [(6, 1e-5), (12, 1e-13)])
def test_nystromformer_with_every_token_a_landmark_is_softmax(iterations: int, tolerance: float) -> None:
    """Keys like queries, so that the matrix to invert is well conditioned; also for a short text among long ones."""
    mixer, lengths = nystromformer(13, iterations), [13, 5, 1]
    q = 4 * noise(3, 3, 13, 5)
    v, mask = noise(3, 3, 13, 5, seed=2), mask_of(lengths, 13)
    k = q / q.norm(dim=-1, keepdim=True) * 4
    output = mixer.attend(q, k, v, mask)
    for row, real in enumerate(lengths):
        keys = k[row, :, :real], v[row, :, :real]
        expected = softmax_attention(q[row], *keys, 15**-0.5)
        assert (output - expected)[row, :, :real].abs().max() < tolerance


def test_landmarks_by_hand() -> None:
    """Of 7 real tokens, three segments hold the ranks 0-2, 3-4, 5-6; of 2, each is its own; padding in between."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0, 1, 0], [0] * 9], dtype=torch.bool)
    means = nystromformer(3)._segment_means(noise(3, 3, 9, 5), mask)
    third, half = 1 / 3, 1 / 2
    expected = torch.tensor(
        [
            [
                [third, third, 0, third, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, half, half, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, half, half],
            ],
            [[0, 1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0], [0] * 9],
            [[0] * 9] * 3,
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(means, expected)


def test_nystromformer_is_its_three_matrices() -> None:
    """With an exact pseudo-inverse, landmarks of 3, 2 and 2 tokens, and the convolution by loops."""
    mixer = nystromformer(3, iterations=16, conv_kernel=5)
    x = 3 * noise(1, 7, 15)
    q, k, v = (heads(project(x))[0] for project in (mixer.query, mixer.key, mixer.value))
    output = heads(mixer(x))[0]
    parts = (slice(0, 3), slice(3, 5), slice(5, 7))
    for head in range(3):
        lq, lk = (torch.stack([y[head, part].mean(dim=0) for part in parts]) for y in (q, k))
        first, second, third = (
            (a @ b.T / math.sqrt(15)).softmax(dim=-1) for a, b in ((q[head], lk), (lq, lk), (lq, k[head]))
        )
        expected = first @ torch.linalg.pinv(second) @ third @ v[head]
        for i in range(7):
            for offset in range(-2, 3):
                if 0 <= i + offset < 7:
                    expected[i] = expected[i] + mixer.conv.weight[head, 0, offset + 2, 0] * v[head, i + offset]
        torch.testing.assert_close(output[head], expected, rtol=1e-6, atol=1e-6)


def test_pseudo_inverse() -> None:
    matrices = (3 * noise(5, 3, 4, 4)).softmax(dim=-1)
    torch.testing.assert_close(pseudo_inverse(matrices, 40), torch.linalg.pinv(matrices), rtol=1e-7, atol=1e-7)
    blank = torch.zeros(4, 4, dtype=torch.float64)
    blank[:2, :2] = matrices[0, 0, :2, :2].softmax(dim=-1)
    torch.testing.assert_close(pseudo_inverse(blank, 40)[:2, :2], torch.linalg.inv(blank[:2, :2]))
    assert not pseudo_inverse(blank, 40)[2:].any()


def test_a_pseudo_inverse_starts_from_its_own_norms() -> None:
    """A text whose landmarks crowd on one key has columns that sum to more; it leaves the others of the batch alone."""
    flat, crowded = torch.eye(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    crowded[:, 0] = 1
    together = pseudo_inverse(torch.stack([flat, crowded]), 1)
    torch.testing.assert_close(together[0], pseudo_inverse(flat, 1), rtol=0, atol=0)
    torch.testing.assert_close(together[0], flat, rtol=0, atol=0)
    torch.testing.assert_close(pseudo_inverse(torch.stack([flat, crowded]), 6)[1], torch.linalg.pinv(crowded))


def test_nystromformer_wants_an_odd_kernel() -> None:
    with pytest.raises(UserError, match=re.escape("attention.conv_kernel=4: expected an odd number or null")):
        mixer_of("nystromformer", "attention.conv_kernel=4")


# ---------------------------------------------------------------- luna


def attend_by_loops(q: Tensor, k: Tensor, v: Tensor, real: int) -> Tensor:
    """q [n, 15], k and v [m, 15], 3 heads of 5; the first `real` keys."""
    y = torch.zeros(len(q), 15, dtype=torch.float64)
    for head in range(3):
        part = slice(5 * head, 5 * head + 5)
        for i in range(len(q)):
            weights = [math.exp(float(q[i, part] @ k[j, part]) / math.sqrt(15)) for j in range(real)]
            y[i, part] = sum(w * v[j, part] for j, w in enumerate(weights)) / sum(weights)
    return y


@pytest.mark.parametrize("share", ["key_value", "none"])
@torch.no_grad()
def test_luna_by_loops(share: str) -> None:
    first, second = (
        mixer_of("luna", "attention.memory=2", f"attention.share={share}", layer=layer, out_proj=True)
        for layer in (0, 1)
    )
    x, z, lengths = noise(2, 7, 15), noise(2, 7, 15, seed=1), [7, 4]
    mask = mask_of(lengths, 7)
    second.follow(first)
    y, y_second = first(x, mask), second(z, mask)
    for row, real in enumerate(lengths):
        p = first.memory
        for mixer, inputs, outputs in ((first, x, y), (second, z, y_second)):
            p = (p - p.mean(dim=-1, keepdim=True)) / (p.var(dim=-1, keepdim=True, correction=0) + 1e-5).sqrt()
            text = inputs[row]
            value = mixer.pack_key if share == "key_value" else mixer.pack_value
            packed = attend_by_loops(mixer.pack_query(p), mixer.pack_key(text), value(text), real)
            value = mixer.key if share == "key_value" else mixer.value
            unpacked = attend_by_loops(mixer.query(text), mixer.key(packed), value(packed), 2)
            torch.testing.assert_close(outputs[row], mixer.out(unpacked))
            p = p + packed


def test_only_the_first_layer_of_luna_has_a_memory_of_its_own() -> None:
    second = mixer_of("luna", layer=1)
    assert "memory" in mixer_of("luna").state_dict()
    assert "memory" not in second.state_dict()
    assert sum(p.numel() for p in second.parameters()) == second.shape.projections + second.extra_parameters
    with pytest.raises(RuntimeError, match="layer 1 needs the memory of the one before it"):
        second(noise(1, 7, 15))


def test_a_memory_of_luna_is_read_once() -> None:
    """No pass reads that of the pass before, whose graph it would keep alive."""
    first, second = (mixer_of("luna", layer=layer) for layer in (0, 1))
    second.follow(first)
    first(noise(1, 7, 15))
    second(noise(1, 7, 15))
    with pytest.raises(RuntimeError, match="the layer before has handed no memory on"):
        second(noise(1, 7, 15))


def test_the_memory_of_luna_goes_through_the_model() -> None:
    """Every parameter of two layers gets a gradient; that of the second reaches back to the first's by the memory."""
    sizes = [f"model.{key}" for key in ("dim=15", "qkv_dim=15", "heads=3", "mlp_dim=17", "depth=2", "dropout=0")]
    task = facts(max_len=11)
    model = model_of("attention=luna", "attention.memory=5", "variant=transformer", *sizes, task=task).double()
    tokens = torch.randint(1, 17, (2, 11), generator=torch.Generator().manual_seed(1))
    cut = model.blocks[1].mixer.register_forward_pre_hook(lambda _, inputs: (inputs[0].detach(), *inputs[1:]))
    skip = model.blocks[1].register_forward_pre_hook(lambda _, inputs: (inputs[0].detach(), *inputs[1:]))
    model(tokens)[:, 0].sum().backward()
    assert model.blocks[0].mixer.pack_query.weight.grad.abs().max() > 0  # x was cut, the memory was not
    cut.remove()
    skip.remove()
    model.zero_grad()
    model(tokens)[:, 0].sum().backward()
    for name, parameter in model.blocks.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_the_two_attentions_of_luna_drop_independently() -> None:
    mixer = mixer_of("luna", "attention.memory=7", dropout=0.5).train()
    set_keys(mixer, seed=1, step=0, rows=range(1))
    first, second = (dropout(torch.ones(1, 3, 7, 7)) for dropout in (mixer.pack_dropout, mixer.dropout))
    assert not torch.equal(first, second)


# ---------------------------------------------------------------- fnet


def test_fnet_by_sums() -> None:
    x = noise(2, 5, 3)
    output = mixer_of("fnet", dim=3, qkv_dim=3)(x)
    for row in range(2):
        for n in range(5):
            for m in range(3):
                total = sum(
                    float(x[row, i, j]) * cmath.exp(-2j * cmath.pi * (n * i / 5 + m * j / 3))
                    for i in range(5)
                    for j in range(3)
                )
                assert math.isclose(output[row, n, m], total.real, abs_tol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 11, 13])
def test_fnet_is_fft2(length: int) -> None:
    x = noise(2, length, 15)
    torch.testing.assert_close(mixer_of("fnet")(x), torch.fft.fft2(x).real, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- mixer


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_mixer_by_loops(bias: bool) -> None:
    """On texts shorter than the longest, padded or not."""
    mixer, x, lengths = mixer_of("mixer", "attention.hidden=2", bias=bias), noise(2, 7, 15), [7, 4]
    output = mixer(x, mask_of(lengths, 7))
    for row, real in enumerate(lengths):
        for channel in range(15):
            hidden = []
            for r in range(2):
                total = sum(float(mixer.hidden.weight[r, j] * x[row, j, channel]) for j in range(real))
                total += float(mixer.hidden.bias[r]) if bias else 0.0
                hidden.append(total * (1 + math.erf(total / math.sqrt(2))) / 2)
            for i in range(7):
                expected = sum(float(mixer.out.weight[i, r]) * hidden[r] for r in range(2))
                expected += float(mixer.out.bias[i]) if bias else 0.0
                assert math.isclose(output[row, i, channel], expected, abs_tol=1e-12)
