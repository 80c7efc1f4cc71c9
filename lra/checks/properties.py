"""Test properties of mixers: the function of each check raises CheckFailed if the property does not hold.

A check that does not apply to the mixer, such as `order` for a mixer whose `commutes` is False, leaves `subject.case`
empty and counts as skipped.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from lra.checks.subject import SEED, CheckFailed, Subject, cast, trained, values, where
from lra.mixers.base import Attention, Mixer
from lra.ops.dropout import Keyed
from lra.records import tensors

SPREADS = (0.0, 10.0)  # scale factors: `finite` multiplies standard normal inputs by 0 and by 10
REGISTERS = ("_parameters", "_buffers", "_modules")  # attributes in which torch registers tensors and modules
# Step sizes of finite differences: a small step crosses few kinks; a large step is needed for mixers that compute in
# float32, because rounding would hide the difference of a small step.
STEPS = (1e-6, 1e-4)
INPUT = "the input"  # name of the input in messages


def registered(subject: Subject) -> None:
    """Check that all tensors and modules in the mixer's attributes are registered by torch."""
    subject.case = "when it is made"
    for module in subject.mixer().modules():
        attributes = {} if isinstance(module, Keyed) else vars(module)
        for name, value in attributes.items():
            hidden = "" if name in REGISTERS else _hidden(value)
            if hidden:
                instead = "nn.ModuleList or nn.ModuleDict" if hidden == "module" else "nn.Parameter or register_buffer"
                message = f"self.{name} holds a {hidden} that training, saving and .to(device) ignore"
                raise CheckFailed(message, f"use {instead}")


def _hidden(value: object) -> str:
    """Return `tensor` or `module` if a value is or contains one; otherwise an empty string."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, dict):
        value = list(value.values())
    return next(filter(None, map(_hidden, value)), "") if isinstance(value, list | tuple | set) else ""


@torch.no_grad()
def loaded(subject: Subject) -> None:
    """Compare the outputs of two mixers, the second of which has loaded the saved weights of the first."""
    for x in subject.inputs(1):
        source, target = subject.mixer(), subject.mixer(seed=SEED + 1)
        target.load_state_dict(tensors.decode(tensors.encode(source.state_dict()))[0])
        hint = "a tensor that the constructor draws is neither a parameter nor a buffer"
        subject.compare(source(x.clone()), target(x.clone()), "with the saved weights, another mixer's outputs", hint)


@torch.no_grad()
def shape(subject: Subject) -> None:
    """Call `Mixer.mix`, which raises UserError for a wrong shape or type of outputs, with and without autocast."""
    for documents in (1, 2):
        for x in subject.inputs(documents):
            for dtype, autocast in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    cast(subject.mixer(), dtype).mix(x.to(dtype), None, None)


@torch.no_grad()
def device(subject: Subject) -> None:
    """Run the mixer on the meta device, which needs no accelerator.

    A mixer that reads the values of tensors cannot run on the meta device, so it passes unchecked.
    """
    hint = "give device=x.device where a tensor is made"
    for causal in {False, subject.kind.can_be_causal}:
        mixer = subject.mixer(causal=causal, dropout=0.0).to("meta")
        for x in subject.inputs(1):
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device="meta") if subject.masks else None
            try:
                y = mixer(x.to("meta"), mask)
            except (RuntimeError, NotImplementedError) as error:
                if "on device" not in str(error):  # the mixer reads values, which meta tensors do not have
                    return
                raise CheckFailed(
                    f"an operation mixes tensors on the CPU and on the device of x{where(error)}", hint
                ) from error
            if not y.is_meta:
                raise CheckFailed("outputs are on the CPU, not on the device of x", hint)


@torch.no_grad()
def finite(subject: Subject) -> None:
    """Check that weights are finite and that outputs are finite for zeros, for large inputs and for padding alone."""
    infinite = [name for name, weight in subject.mixer().named_parameters() if not weight.isfinite().all()]
    if infinite:
        subject.case = "when it is made"
        raise CheckFailed(f"NaN or infinity in {', '.join(infinite)}", "torch.empty without an initialisation")
    for x in subject.inputs(2):
        for spread in SPREADS:
            mixer, given = cast(subject.mixer(), torch.float32), (spread * x).float()
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    _check_finite(mixer(given.clone()), f"for inputs as large as {given.abs().max():.2g}")
        if subject.masks:
            nothing = torch.zeros(x.shape[:2], dtype=torch.bool)
            _check_finite(subject.mixer()(x.clone(), nothing), "if all positions are padding")


def _check_finite(y: Tensor, when: str) -> None:
    if not y.isfinite().all():
        cause = "a softmax over a row that is -inf everywhere, or a division by zero" if "padding" in when else ""
        raise CheckFailed(f"outputs contain NaN or infinity {when}", cause)


@torch.no_grad()
def unchanged(subject: Subject) -> None:
    """Compare the input before and after a call."""
    for x in subject.inputs(1):
        given = x.clone()
        subject.mixer()(given)
        if not torch.equal(given, x):
            raise CheckFailed("the call changes x", "an operation in place, as x += ... or x.mul_(...)")


def _forms(subject: Subject) -> dict[str, Callable[[], Mixer]]:
    """Return {phrase for messages: constructor} for evaluation mode, and for training mode with two documents."""
    return {"in evaluation": subject.mixer, "in training": lambda: trained(subject.mixer(), [0, 1])}


def _after_seed(seed: int, mixer: Mixer, x: Tensor) -> Tensor:
    """Return the output of a mixer after seeding torch's global generator, whose state `run_checks` restores."""
    torch.default_generator.manual_seed(seed)
    return mixer(x.clone())


@torch.no_grad()
def state(subject: Subject) -> None:
    """Compare the outputs for the same input before and after a call with another input."""
    for x in subject.inputs(2):
        for form, fresh in _forms(subject).items():
            mixer = fresh()
            first = _after_seed(SEED, mixer, x)
            mixer(values(*x.shape, seed=SEED + 1))
            second = _after_seed(SEED, mixer, x)
            hint = "a call changes an attribute or a buffer"
            subject.compare(first, second, f"{form}, two outputs of one mixer for the same input", hint)


@torch.no_grad()
def noise(subject: Subject) -> None:
    """Compare the outputs of two calls with the same input after different seeds of torch's global generator."""
    for x in subject.inputs(2):
        for form, fresh in _forms(subject).items():
            first, second = (_after_seed(seed, fresh(), x) for seed in (SEED, SEED + 1))
            hint = "draw with lra.ops.dropout.Dropout, or define draw(self, rng)"
            subject.compare(first, second, f"{form}, outputs for the same input", hint)


@torch.no_grad()
def rows(subject: Subject) -> None:
    """Compare the outputs of a document alone and in a batch of two."""
    for x in subject.inputs(2):
        mixer = subject.mixer()
        alone, in_batch = mixer(x[:1].clone()), mixer(x.clone())[:1]
        what = "the outputs of a document alone and in a batch of two"
        subject.compare(alone, in_batch, what, "a sum, mean or norm over the first axis")


@torch.no_grad()
def cuts(subject: Subject) -> None:
    """Compare the training outputs of a document in a batch of three with those in a micro-batch of one document."""
    for x in subject.inputs(3):
        whole, cut = (trained(subject.mixer(), documents) for documents in ([0, 1, 2], [2]))
        what = "the outputs of the last document in the whole batch and alone in a micro-batch"
        subject.compare(whole(x.clone())[2:], cut(x[2:].clone()), what)


@torch.no_grad()
def padding(subject: Subject) -> None:
    """Compare outputs at the real positions of a padded document with those for three other inputs.

    The other inputs have other values at padding, no padding, or neither padding nor mask.
    """
    for x in subject.inputs(1, min_length=2) if subject.masks else ():
        real = x.shape[1] // 2
        subject.case += f", {x.shape[1] - real} of them padding"
        mask = (torch.arange(x.shape[1]) < real)[None]
        padded = subject.mixer()(x.clone(), mask)[:, :real]
        others = {
            "with other numbers in padding": subject.mixer()(torch.where(mask[..., None], x, 3 - x), mask)[:, :real],
            "without the padding": subject.mixer()(x[:, :real].clone(), mask[:, :real]),
            "without padding and mask": subject.mixer()(x[:, :real].clone()),
        }
        for case, other in others.items():
            hint = "a key_mask that is not used, or a length that counts padding"
            subject.compare(other, padded, f"{case}, the outputs of real positions", hint)


@torch.no_grad()
def causality(subject: Subject) -> None:
    """For each position, compare the outputs before it for two inputs that are equal only before it."""
    mixer = subject.mixer(causal=subject.kind.can_be_causal, dropout=0.0)
    for x in subject.inputs(1, min_length=2) if mixer.causal else ():
        before = mixer(x.clone())
        for later in range(x.shape[1] - 1, 0, -1):  # the smallest change first, to report the smallest failure
            after = mixer(torch.cat([x[:, :later], 3 - x[:, later:]], dim=1))
            what = f"for inputs that differ from position {later} on, the outputs of earlier positions"
            hint = "outputs must not read later positions if self.causal is True"
            subject.compare(before[:, :later], after[:, :later], what, hint)


@torch.no_grad()
def order(subject: Subject) -> None:
    """Compare permuted outputs with the outputs for permuted inputs."""
    mixer = subject.mixer()
    for x in subject.inputs(2, min_length=2) if mixer.commutes else ():
        permutation = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(SEED))
        what = "commutes = True, but the permuted outputs and the outputs for permuted inputs"
        subject.compare(mixer(x.clone())[:, permutation], mixer(x[:, permutation]), what)


def graph(subject: Subject) -> None:
    """Check that a gradient reaches the input, and every weight on which the outputs depend."""
    *_, x = subject.inputs(2)  # the longest input, since a short one may not use every weight
    mixer = trained(subject.mixer(), [0, 1])
    given = x.clone().requires_grad_()
    y = mixer(given)
    wanted = {INPUT: given, **dict(mixer.named_parameters())}
    gradients: list[Tensor | None] = [None] * len(wanted)
    if y.requires_grad:
        gradients = torch.autograd.grad((y * values(*y.shape, seed=2)).sum(), list(wanted.values()), allow_unused=True)
    lost = [name for name, gradient in zip(wanted, gradients, strict=True) if gradient is None]
    cut = [name for name in lost if name == INPUT or _matters(subject, x, y.detach(), name)]
    if cut:
        raise CheckFailed(f"no gradient reaches {', '.join(cut)}", "detach, .data, no_grad or numpy")
    unread = [part[0] for part in ("query", "key", "value") if f"{part}.weight" in lost]
    if isinstance(mixer, Attention) and unread:
        subject.note = f"attend ignores {' and '.join(unread)}: subclass Mixer, which has no projections"


def recomputed(subject: Subject) -> None:
    """Compare gradients in training, noise included, with and without activation checkpointing."""
    for x in subject.inputs(2):
        gradients = []
        for call in (
            lambda mixer, given: mixer(given),
            lambda mixer, given: checkpoint(mixer, given, use_reentrant=False),
        ):
            mixer, given = trained(subject.mixer(), [0, 1]), x.clone().requires_grad_()
            wanted = [given, *mixer.parameters()]
            weighted = call(mixer, given) * values(*x.shape, seed=2)
            found = torch.autograd.grad(weighted.sum(), wanted, allow_unused=True)
            gradients.append([gradient for gradient in found if gradient is not None])
        for once, again in zip(*gradients, strict=True):
            subject.compare(once, again, "gradients", "a call changes an attribute or a buffer")


@torch.no_grad()
def _matters(subject: Subject, x: Tensor, y: Tensor, name: str) -> bool:
    """Return True if the outputs `y` for the input `x` change when the weight `name` changes."""
    mixer = trained(subject.mixer(), [0, 1])
    weight = mixer.get_parameter(name)
    # Add random numbers, because one number added to all values may cancel, for example in a softmax.
    weight.add_(values(*weight.shape, seed=2))
    return subject.difference(y, mixer(x.clone())) > 0


def differences(subject: Subject) -> None:
    """Compare the gradients of the input and of each weight with finite differences."""
    for x in subject.inputs(2):
        mixer = subject.mixer()
        for name, value in {INPUT: x, **dict(mixer.named_parameters())}.items():
            call = _output_by(mixer, x, name)
            given = value.detach().clone().requires_grad_()
            tolerances = {"atol": 1e-3, "rtol": 5e-3, "nondet_tol": 1e-5}
            options = {"fast_mode": True, "check_undefined_grad": False, "raise_exception": False}
            if not any(gradcheck(call, given, eps=step, **tolerances, **options) for step in STEPS):
                raise CheckFailed(f"gradients of {name} differ from finite differences")


def _output_by(mixer: Mixer, x: Tensor, name: str) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the outputs from the value of `name`, which is a weight or `INPUT`."""
    if name == INPUT:
        return lambda value: mixer(value.clone())
    return lambda value: functional_call(mixer, {name: value}, (x.clone(),))
