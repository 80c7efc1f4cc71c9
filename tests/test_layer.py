"""`lra.attention`: a mixer as a layer of any PyTorch model."""

import copy

import pytest
import torch
from support import maker, mask_of, noise, shape
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lra
from lra.api.layer import AttentionLayer

WIDTH, HEADS, POSITIONS, DOCUMENTS = 15, 3, 13, 5


def layer_of(name: str, **changes: object) -> AttentionLayer:
    return lra.attention(name, **{"width": WIDTH, "heads": HEADS, "max_len": POSITIONS, **changes})


class Theirs(nn.Module):
    """A classifier in plain PyTorch with two layers of a mechanism."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, WIDTH)
        self.layers = nn.ModuleList([layer, copy.deepcopy(layer)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(self.norm(x), tokens != 0)
        return self.head(x.mean(dim=1))


@pytest.mark.parametrize("name", ["simple", "performer", "reformer", "sinkhorn", "luna"])
def test_a_layer_trains_in_a_plain_model_and_draws_nothing_in_evaluation(name: str) -> None:
    model = Theirs(layer_of(name, dropout=0.3)).train()
    again = copy.deepcopy(model)
    tokens, labels = torch.randint(1, 17, (DOCUMENTS, POSITIONS)), torch.arange(DOCUMENTS)
    tokens[0, 7:] = 0
    assert trained(model, tokens, labels) == trained(again, tokens, labels)
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.layers.parameters())
    model.eval()
    state, kept = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    assert torch.equal(model(tokens), model(tokens))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    again.load_state_dict(kept)
    assert torch.equal(again.eval()(tokens), model(tokens))


def trained(model: nn.Module, tokens: Tensor, labels: Tensor) -> list[float]:
    """Return the losses of two plain training steps from one seed."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_softmax_is_that_of_torch() -> None:
    """The reference is nn.MultiheadAttention with the same weights, an independent implementation."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double().eval()
    ours = layer_of("softmax").double().eval()
    parts = zip(theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True)
    names = ("query", "key", "value")
    weights = {f"mixer.{name}.{kind}": value for name, both in zip(names, parts, strict=True)
               for kind, value in zip(("weight", "bias"), both, strict=True)}  # fmt: skip
    weights |= {"mixer.out.weight": theirs.out_proj.weight, "mixer.out.bias": theirs.out_proj.bias}
    ours.load_state_dict(weights)
    x, mask = noise(2, 11, WIDTH), mask_of([11, 7], 11)
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, mask)[mask], expected[mask])
    causal = layer_of("softmax", causal=True).double().eval()
    causal.load_state_dict(weights)
    future = torch.ones(11, 11, dtype=torch.bool).triu(1)
    torch.testing.assert_close(causal(x), theirs(x, x, x, attn_mask=future)[0])


def test_a_layer_is_the_mixer_that_the_command_trains() -> None:
    torch.manual_seed(2)
    mixer = maker("performer", "protocol=strict", "attention.features=7")(shape()).eval()
    torch.manual_seed(2)
    ours = layer_of("performer", options={"features": 7}).eval()
    x = torch.randn(2, POSITIONS, WIDTH)
    assert torch.equal(ours(x), mixer(x))
    assert ours.options == {**ours.options, "features": 7, "kernel": "favor"}
    assert ours.info == mixer.info
    assert "features=7" in repr(ours)


def test_noise_is_that_of_torchs_generator() -> None:
    """A seed repeats it, two calls differ, and a checkpointed call computes the same output again."""
    layer, x = layer_of("softmax", dropout=0.5).train(), torch.randn(2, POSITIONS, WIDTH)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    gradients = []
    for call in (layer, lambda given: checkpoint(layer, given, use_reentrant=False)):
        torch.manual_seed(4)
        given = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(call(given).square().sum(), given)[0])
    assert torch.equal(*gradients)


def test_features_are_drawn_anew_every_few_training_calls() -> None:
    layer = layer_of("performer", options={"redraw_every": 2})
    x, drawn = torch.randn(1, POSITIONS, WIDTH), []
    for _ in range(4):
        layer.train()(x)
        layer.eval()(x)
        drawn.append(torch.cat([value.flatten().clone() for value in layer.buffers()]))
    same = [torch.equal(earlier, later) for earlier, later in zip(drawn, drawn[1:], strict=False)]
    assert same == [True, False, True]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_checkpointed_calls_are_repeated_with_their_own_features(every: int) -> None:
    """Gradients after all calls are those after each call, before features are drawn anew."""
    layer = layer_of("performer", options={"redraw_every": every}, dropout=0.3).train()
    plain, inputs = copy.deepcopy(layer), [torch.randn(2, POSITIONS, WIDTH, requires_grad=True) for _ in range(4)]
    torch.manual_seed(4)
    expected = [torch.autograd.grad(plain(x).square().sum(), x)[0] for x in inputs]
    torch.manual_seed(4)
    outputs = [checkpoint(layer, x, use_reentrant=False) for x in inputs]
    for x, y, gradient in zip(inputs, outputs, expected, strict=True):
        assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], gradient)


@pytest.mark.parametrize(
    ("size", "mask", "message"),
    [
        ((2, 14, WIDTH), None, r"expected x \[documents, at most 13 positions, 15\], found \[2, 14, 15\]"),
        ((2, 11, WIDTH), torch.ones(2, 11), r"expected a bool mask \[2, 11\]"),
        ((2, 11, WIDTH), torch.ones(2, 7).bool(), r"expected a bool mask \[2, 11\]"),
    ],
)
def test_inputs_of_another_form_are_refused(size: tuple[int, ...], mask: Tensor | None, message: str) -> None:
    with pytest.raises(lra.UserError, match=f"simple: {message}"):
        layer_of("simple")(torch.randn(size), mask)
