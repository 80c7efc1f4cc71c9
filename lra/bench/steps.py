"""Training steps beside each other: ours, and the straightforward one with the same weights on the same examples."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from lra.bench import straightforward
from lra.bench.measure import Result, side_by_side
from lra.bench.profile import profile
from lra.bench.settings import BenchSettings
from lra.bench.worker import BenchPlace, OutOfMemory, Worker, Workload
from lra.core.console import Preparation
from lra.core.errors import UserError
from lra.data import Place as Data
from lra.data import Split, TaskSpec
from lra.runs.build import System, assemble
from lra.runs.device import keep_memory, reproducible
from lra.runs.initial_weights import draw_model
from lra.runs.stand_in import stand_in
from lra.training.batches import Tokens, batches, cuts
from lra.training.evaluate import evaluate
from lra.training.fit import Training
from lra.training.update import Update, update

KINDS = {"lra.attention.simple.Simple": "simple", "lra.attention.softmax.Softmax": "softmax"}
ASSUMED = {  # what the straightforward model and its update are
    "model": {
        "norm": "pre",
        "attention_bias": True,
        "bias": True,
        "feed_forward_activation": "gelu",
        "dropout_over": "values",
        "short_conv": None,
        "mixer_dropout": False,
        "embedding_dropout": False,
        "feed_forward_output_gelu": False,
        "positions": "learned",
        "position_std": 0.0,
        "cls_position": False,
        "pooling": "cls",
        "head_activation": "gelu",
        "pair_features": "concat",
    },
    "train": {"clip_norm": None},
}


def run(settings: BenchSettings, place: BenchPlace) -> Iterator[Result]:
    """Every measure of both, the straightforward one first."""
    works = {name: (build, (settings, place.device)) for name, build in SUBJECTS.items()}
    for subject, result in side_by_side(works, place, settings.rounds, settings.precision).items():
        yield {"subject": subject, **result}


def profiles(settings: BenchSettings, place: BenchPlace) -> Iterator[Result]:
    """Where the time of both goes."""
    for subject, build in SUBJECTS.items():
        with Worker(place, build, settings, place.device) as worker:
            try:
                yield {"subject": subject, "kinds": worker.ask(profile)}
            except OutOfMemory as error:
                raise UserError(f"memory_limit={place.memory_limit}: {subject} ran out of memory: {error}") from None


def prepare(settings: BenchSettings) -> tuple[str, str | None]:
    """Check that there is a straightforward step where one is measured, prepare the data; their name and digest."""
    if settings.what == "epoch" and settings.data != "real":
        raise UserError(f"data={settings.data}: what=epoch reads real examples; set data=real")
    if settings.what == "epoch" and settings.rounds > settings.train["steps"]:
        raise UserError(f"rounds={settings.rounds}: a training has train.steps={settings.train['steps']} batches")
    system = assemble(settings)
    if settings.what != "host":
        straightforward_model(settings, system.builder.facts)
    if settings.data == "random":
        return system.builder.facts.name, None
    with Preparation(system.builder.facts.name) as progress:
        task = system.builder.build(Data.of(settings, progress))
    return task.name, task.digest


def ours(settings: BenchSettings, device: str, length: int | None = None, direction: str = "train") -> Workload:
    """The step of `lra.training.update`, or its evaluation of the same examples; `length`: of random tokens."""
    reproducible()
    keep_memory()
    system, facts, split, examples = _given(settings, length)
    model = draw_model(system, facts, settings.seed).to(device)
    optimizer = Training(model, system.recipe).optimizer

    asked: deque[Update] = deque()

    def step(turn: int) -> None:
        chosen = examples[turn % len(examples)]
        recipe, precision = system.recipe, settings.precision
        asked.append(
            update(model, optimizer, split, chosen, recipe, seed=settings.seed, step=turn, precision=precision)
        )
        if len(asked) > 1:  # as in training, an accelerator has the next step by then
            asked.popleft().look()

    def read(turn: int) -> None:
        evaluate(model, split, system.recipe.micro_batch, precision=settings.precision)

    tokens = Tokens()
    for chosen in examples:
        for places, length in cuts(model, split, chosen, system.recipe.micro_batch):
            real = int(split.lengths(chosen[places]).sum())
            tokens += Tokens(real=real, computed=len(places) * facts.documents * length)
    return Workload(
        step=step if direction == "train" else read,
        device=device,
        module=model,
        distinct=len(examples),
        facts=_facts(model, split, len(examples), tokens),
    )


def textbook(settings: BenchSettings, device: str, length: int | None = None, direction: str = "train") -> Workload:
    """The straightforward step, or its forward pass."""
    system, facts, split, examples = _given(settings, length)
    recipe = system.recipe
    model = straightforward_model(settings, facts)
    model.load_state_dict(draw_model(system, facts, settings.seed).state_dict())
    model.to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate(1),
        betas=tuple(recipe.betas),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
    )

    bf16 = settings.precision == "bf16"

    def tokens_of(chosen: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(split.pad(chosen, facts.max_len)).to(device).long()

    def step(turn: int) -> float:
        chosen = examples[turn % len(examples)]
        labels = torch.from_numpy(split.targets(chosen)).to(device)
        return straightforward.update(model, optimizer, tokens_of(chosen), labels, recipe.micro_batch, bf16=bf16)

    def read(turn: int) -> None:
        model.eval()
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=bf16):
            for start in range(0, recipe.batch_size, recipe.micro_batch):
                model(tokens_of(examples[0][start : start + recipe.micro_batch])).argmax(dim=-1).cpu()

    chosen = np.concatenate(examples)
    documents = len(chosen) * facts.documents
    tokens = Tokens(real=int(split.lengths(chosen).sum()), computed=documents * facts.max_len)
    return Workload(
        step=step if direction == "train" else read,
        device=device,
        module=model,
        facts=_facts(model, split, len(examples), tokens),
    )


def straightforward_model(settings: BenchSettings, facts: TaskSpec) -> straightforward.Straightforward:
    """The straightforward form of a configuration. Raises UserError where there is none."""
    model, attention = settings.model, settings.attention
    for group, assumed in ASSUMED.items():
        _compare(group, getattr(settings, group), assumed)
    if attention["_target_"] not in KINDS:
        raise UserError(f"attention: the straightforward step knows {' and '.join(KINDS.values())} only")
    if facts.objective != "classify":
        raise UserError(f"{facts.name}: the straightforward step knows tasks that classify only")
    kind = KINDS[attention["_target_"]]
    dim, heads = model["dim"], model["heads"]
    if model["qkv_dim"] != dim:
        raise UserError(f"model.qkv_dim={model['qkv_dim']}: the straightforward step has model.dim={dim}")
    if kind == "simple":
        assumed, scale = {"scale": "valid" if model["key_mask"] else "length", "dropout_on": "state"}, facts.max_len + 1
    else:
        assumed, scale = {}, dim if attention["scale"] == "qkv_dim" else dim // heads
    _compare("attention", attention, assumed)
    mixer = straightforward.ATTENTIONS[kind]
    return straightforward.Straightforward(
        lambda: mixer(dim, heads, model["dropout"], model["out_proj"], scale**-0.5),
        vocabulary=facts.vocab_size,
        max_len=facts.max_len,
        classes=facts.classes,
        documents=facts.documents,
        dim=dim,
        depth=model["depth"],
        hidden=model["mlp_dim"],
        dropout=model["dropout"],
        extra_skip=model["extra_skip"],
        norm_eps=model["norm_eps"],
        final_norm=model["final_norm"],
        mask=model["key_mask"],
    )


def _compare(group: str, values: dict[str, Any], assumed: dict[str, Any]) -> None:
    for key, value in assumed.items():
        if values[key] != value:
            raise UserError(
                f"{group}.{key}={values[key]}: the straightforward step has {value}; use protocol=paper or strict"
            )


def _given(settings: BenchSettings, length: int | None) -> tuple[System, TaskSpec, Split, list[np.ndarray]]:
    """The system, its facts, the examples there are, and those of each step before it repeats."""
    system = assemble(settings)
    recipe = system.recipe
    if settings.data == "random":
        facts = system.builder.facts
        if length is not None:
            facts = replace(facts, max_len=length)
        return system, facts, stand_in(facts, recipe.batch_size, settings.seed), [np.arange(recipe.batch_size)]
    task = system.builder.build(Data.of(settings, lambda done, total: None))
    steps = settings.rounds if settings.what == "epoch" else 1
    examples = [chosen for _, chosen in islice(batches(len(task.train), recipe, settings.seed), steps)]
    return system, task, task.train, examples


def _facts(model: torch.nn.Module, split: Split, batches: int, tokens: Tokens) -> dict[str, Any]:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "examples": len(split), "batches": batches, "tokens": asdict(tokens)}


SUBJECTS = {"straightforward": textbook, "lra": ours}
