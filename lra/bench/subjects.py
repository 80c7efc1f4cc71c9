"""Build the steps that `lra-bench` compares: training steps of models, and forward and backward passes of layers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count

import numpy as np
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lra.bench.settings import BenchSettings
from lra.bench.straightforward import Straightforward, expect, straightforward_attention, update
from lra.checks.subject import config_of
from lra.config import configure
from lra.core.errors import UserError
from lra.ops.dropout import set_keys
from lra.runs.build import assemble
from lra.runs.describe import random_split
from lra.runs.initial_weights import draw_model
from lra.training.batches import micro_batches
from lra.training.optimizer import compile_blocks, make_optimizer
from lra.training.optimizer import update as update_weights
from lra.training.trainer import compute_gradient

STRAIGHTFORWARD = "straightforward"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An attention or model to measure; `plain` is True for the implementation in plain PyTorch."""

    title: str
    plain: bool
    settings: BenchSettings


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step to measure: function, module, length of a document, and number of tokens in all documents of the step."""

    run: Callable[[], object]
    module: torch.nn.Module
    length: int
    tokens: int


def subjects_of(settings: BenchSettings) -> list[Subject]:
    """Return the subjects, named `[straightforward:]NAME key=value ...`; for `what=step`, straightforward and lra."""
    if settings.what == "step":
        return [Subject(title=title, plain=title != "lra", settings=settings) for title in (STRAIGHTFORWARD, "lra")]
    hydra, named = HydraConfig.get(), []
    # The loader of this command also knows --config-dir, unlike a new composition.
    loader = GlobalHydra.instance().config_loader()
    for title in settings.subjects:
        first, *overrides = title.split() or [""]
        kind, _, name = first.rpartition(":")
        if kind not in ("", STRAIGHTFORWARD):
            raise UserError(f"subjects: {title!r}: expected an attention, or {STRAIGHTFORWARD}:simple or :softmax")
        words = [*hydra.overrides.task, f"attention={name}", *overrides]
        composed = configure.part(BenchSettings, loader.load_sweep_config(OmegaConf.create({"hydra": hydra}), words))
        named.append(Subject(title=title, plain=bool(kind), settings=composed))
    return named


def layer_step(subject: Subject, length: int, device: str) -> Step:
    """Return the forward and backward pass of one layer on `batch` documents of `length` positions."""
    settings = subject.settings
    model, batch = asdict(settings.model), settings.batch
    torch.manual_seed(settings.seed)
    if subject.plain:
        module: torch.nn.Module = straightforward_attention(settings.attention, model, length)
    else:
        module = configure.build(settings.attention, "attention", supplied=1)(config_of(model, length))
    module.to(device).train()
    x = torch.randn(batch, length, model["dim"], device=device, requires_grad=True)
    weights = torch.randn_like(x)

    def run() -> None:
        x.grad = None
        module.zero_grad()
        # Dropout of lra needs keys; the straightforward layer has no module that takes them.
        set_keys(module, seed=settings.seed, step=0, documents=range(batch))
        with torch.autocast(device, torch.bfloat16, enabled=settings.precision == "bf16"):
            y = module(x)
        y.backward(weights.to(y.dtype))

    return Step(run=run, module=module, length=length, tokens=batch * length)


def model_step(subject: Subject, length: int | None, device: str) -> Step:
    """Return the training step of a model on random documents of `length` tokens (if None, the task's `max_len`)."""
    settings = subject.settings
    system = assemble(settings)  # type: ignore[arg-type]
    recipe, spec, seed = system.recipe, system.builder.spec, settings.seed
    if length is not None:
        spec = replace(spec, max_len=length)
    batch = recipe.batch_size if length is None else settings.batch
    recipe = replace(recipe, batch_size=batch, micro_batch=min(batch, recipe.micro_batch))
    split, examples = random_split(spec, batch, seed), np.arange(batch)
    model = draw_model(system, spec, seed).to(device)
    size = {"length": spec.max_len, "tokens": batch * spec.documents * spec.max_len}
    if not subject.plain:
        if recipe.compile:
            compile_blocks(model)
        ours, turn = make_optimizer(model, recipe), count()

        def run() -> object:
            step, precision = next(turn), settings.precision
            parts = micro_batches(model, split, examples, recipe.micro_batch, precision)
            totals = compute_gradient(model, split, examples, parts, seed=seed, step=step, precision=precision)
            return update_weights(model, ours, totals, recipe, step=step).read()

        return Step(run=run, module=model, **size)
    expect("train", asdict(recipe), {"clip_norm": None})  # the straightforward step does not clip gradients
    # The reference gets the same weights, so that both compute the same numbers at the first step.
    plain = Straightforward(settings.attention, asdict(settings.model), spec).to(device)
    plain.load_state_dict(model.state_dict())  # raises if the two models differ
    optimizer = torch.optim.AdamW(
        plain.parameters(),
        lr=recipe.learning_rate(1),
        betas=tuple(recipe.betas),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
    )

    def run_plain() -> float:
        read = torch.from_numpy(split.pad(examples, spec.max_len)).to(device).long()
        labels = torch.from_numpy(split.targets(examples)).to(device)
        return update(plain, optimizer, read, labels, recipe.micro_batch, bf16=settings.precision == "bf16")

    return Step(run=run_plain, module=plain, **size)
