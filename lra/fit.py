"""The only training loop: a generator of measurements that never logs, prints or saves."""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy

from lra import dropout, ranks, streams
from lra.errors import UserError
from lra.groups import Group
from lra.model import Model
from lra.tasks import Split, Task

Probability = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["fp32", "bf16"]
OVERHEAD = {"cpu": 128, "cuda": 1 << 15}  # what a micro-batch costs besides its tokens, in tokens; cuda: an estimate
OnStep = Callable[[int, float, "Tokens"], None]
"""Called after each update with the updates done, its loss, and the tokens it read."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train; the keys of `train` in the configuration. `micro_batch` and `processes` only cut a batch."""

    steps: PositiveInt
    batch_size: PositiveInt
    micro_batch: PositiveInt
    eval_batch: PositiveInt
    eval_every: PositiveInt
    lr: PositiveFloat
    warmup: PositiveInt
    schedule: Literal["rsqrt", "constant", "cosine", "triangular"]
    stop_in_warmup: bool
    weight_decay: NonNegativeFloat
    betas: Annotated[list[Probability], Field(min_length=2, max_length=2)]
    eps: PositiveFloat
    clip_norm: PositiveFloat | None
    freeze: list[Group] | None
    layer_decay: Annotated[float, Field(gt=0, lt=1)] | None
    minutes: PositiveFloat | None
    processes: PositiveInt
    compile: bool
    selection: Literal["last", "best_val", "best_test"]

    def __post_init__(self) -> None:
        if self.warmup > self.steps and not self.stop_in_warmup:
            raise UserError(
                f"train.warmup={self.warmup} is longer than train.steps={self.steps}; "
                "if that is meant, say train.stop_in_warmup=true"
            )
        if self.micro_batch > self.batch_size:
            raise UserError(f"train.micro_batch={self.micro_batch} is larger than train.batch_size={self.batch_size}")
        if self.processes > self.batch_size:
            raise UserError(f"train.processes={self.processes} is larger than train.batch_size={self.batch_size}")

    def learning_rate(self, step: int) -> float:
        """lr * min(1, s / warmup) * the schedule; the first update has s = 0, hence 0.

        rsqrt: 1 / sqrt(max(s, warmup)). cosine: half a period from the end of the warm-up over `steps`, as Long
        Range Arena's. triangular: linear from the peak to 1/32 of it (ULMFiT, Howard and Ruder 2018, eq. 3).
        """
        past = max(0, step - self.warmup)
        factor = {
            "rsqrt": 1 / math.sqrt(max(step, self.warmup)),
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * past / self.steps)),
            "triangular": 1 - (1 - 1 / 32) * past / max(1, self.steps - self.warmup),
        }[self.schedule]
        return self.lr * min(1.0, step / self.warmup) * factor

    def depth_factor(self, name: str, depth: int) -> float:
        """What the rate of a weight of this name is multiplied by: 1 at the head, `layer_decay` less from block to
        block towards the input, and least in the embedding (ELECTRA, Clark et al. 2020, appendix B)."""
        if self.layer_decay is None or name.startswith(("head.", "final_norm.")):
            return 1.0
        block = re.match(r"blocks\.(\d+)\.", name)
        return self.layer_decay ** (depth - int(block[1]) if block else depth + 1)


@dataclass(frozen=True, kw_only=True)
class Score:
    """An evaluation of every prediction of a split: one per example, or one per token. `loss` is their mean."""

    correct: int
    examples: int
    loss: float

    @property
    def perplexity(self) -> float:
        """e to the mean loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * self.correct / self.examples

    def better_than(self, other: "Score | None", metric: str) -> bool:
        """By `Facts.metric`; the first of equals stays the best, and a loss that is not finite is the worst."""
        if other is None:
            return True
        if metric == "accuracy":
            return self.accuracy > other.accuracy
        own, best = (score.loss if math.isfinite(score.loss) else math.inf for score in (self, other))
        return own < best


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens of documents: `real` ones, and those `computed`, padding included."""

    real: int = 0
    computed: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(real=self.real + other.real, computed=self.computed + other.computed)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What `fit` yields: the state after `step` updates. Seconds count training or evaluation only, since the last."""

    step: int
    epoch: float
    lr: float
    train_loss: float
    val: Score
    train_seconds: float
    eval_seconds: float
    tokens: Tokens


class Diverged(Exception):
    """The loss or the gradient of a step was not finite; the weights are those before it."""


class Training:
    """A model in training: everything that changes from step to step, and nothing else."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model
        if recipe.compile:
            compile_blocks(model)
        self.optimizer = adamw(model, recipe)
        self.step = 0
        self.losses: list[float] = []  # these three since the last measurement
        self.tokens = Tokens()
        self.seconds = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """By name: the weights and buffers, and what the optimiser keeps of each parameter."""
        weights = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        kept = {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return weights | kept

    def state(self) -> dict[str, Any]:
        """The rest, as JSON values."""
        return {"step": self.step, "losses": self.losses, "tokens": asdict(self.tokens), "seconds": self.seconds}

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from what `tensors` and `state` gave. Raises KeyError, ValueError or RuntimeError where they are of
        another model."""
        weights, kept = {}, {}
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        held = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        places = {names[parameter]: place for place, parameter in enumerate(held)}
        for path, value in tensors.items():
            part, _, name = path.partition("/")
            if part == "model":
                weights[name] = value
            elif part == "optimizer":
                parameter, key = name.rsplit("/", 1)
                if value.dim() and value.shape != shapes[parameter]:
                    raise ValueError(f"{path} is {list(value.shape)}, expected {list(shapes[parameter])}")
                kept.setdefault(places[parameter], {})[key] = value.clone()  # aligned as it was
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": kept})
        self.step, self.losses, self.seconds = state["step"], list(state["losses"]), state["seconds"]
        self.tokens = Tokens(**state["tokens"])


def fit(
    training: Training,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    precision: Precision,
    on_step: OnStep,
) -> Iterator[Measurement]:
    """Train on from `training.step`, yielding a measurement every `eval_every` steps and after the last.

    `on_step` is called after each step, and after its measurement if there is one. Raises `Diverged` before the
    update that a non-finite loss or gradient would have made.
    """
    clock = time.perf_counter()
    for step, examples in batches(len(task.train), recipe, seed, training.step):
        loss, seen = update(
            training.model, training.optimizer, task.train, examples, recipe, seed=seed, step=step, precision=precision
        )
        training.step = step + 1
        training.losses.append(loss)
        training.tokens += seen
        trained = time.perf_counter()
        training.seconds += trained - clock
        if training.step % recipe.eval_every == 0 or training.step == recipe.steps:
            score = evaluate(training.model, task.val, recipe.eval_batch, precision=precision)
            now = Measurement(
                step=training.step,
                epoch=training.step * recipe.batch_size / len(task.train),
                lr=recipe.learning_rate(step),
                train_loss=math.fsum(training.losses) / len(training.losses),
                val=score,
                train_seconds=training.seconds,
                eval_seconds=time.perf_counter() - trained,
                tokens=training.tokens,
            )
            training.losses, training.tokens, training.seconds = [], Tokens(), 0.0
            yield now
        clock = time.perf_counter()
        on_step(training.step, loss, seen)


def compile_blocks(model: Model) -> None:
    """torch.compile each block. Noise is drawn outside of what is compiled; lengths that vary share one graph."""
    torch._dynamo.config.recompile_limit = 64  # each block in training and evaluation, and for all tokens and the CLS
    try:
        torch.compile(torch.neg)(next(model.parameters()).detach())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"train.compile=true: torch.compile does not work here ({reason}); it needs a C++ compiler, and "
            "on an accelerator Triton; or use train.compile=false"
        ) from None
    for module in model.modules():
        if isinstance(module, dropout.Dropout):
            module.draw = torch.compiler.disable(module.draw)
    for block in model.blocks:
        block.compile()


def adamw(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """The optimiser of every run, of what is not frozen, in groups of one `factor` of the learning rate that `update`
    sets."""
    groups: dict[float, list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[recipe.depth_factor(name, len(model.blocks))].append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters, "factor": factor} for factor, parameters in groups.items()],
        lr=0.0,
        betas=tuple(recipe.betas),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    split: Split,
    examples: np.ndarray,
    recipe: Recipe,
    *,
    seed: int,
    step: int,
    precision: Precision,
) -> tuple[float, Tokens]:
    """One training step on `examples`; returns its loss and the tokens read. Raises `Diverged`."""
    model.train()
    model.redraw(seed, step)
    optimizer.zero_grad(set_to_none=True)
    loss, seen = accumulate(model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision)
    lr = recipe.learning_rate(step)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not math.isfinite(loss + norm.item()):
        cause = _cause(model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision)
        raise Diverged(f"the loss of step {step} is {loss}, its gradient {norm:.3g} (learning rate {lr:.3g}); {cause}")
    if recipe.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), recipe.clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    optimizer.step()
    return loss, seen


def batches(size: int, recipe: Recipe, seed: int, start: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """The steps from `start` on and their examples [batch_size]: one permutation per epoch, read without a gap.

    A function of (seed, size, batch_size) alone, so every model of a seed sees the same data.
    """
    epoch, order = -1, np.empty(0, dtype=np.int64)
    for step in range(start, recipe.steps):
        places = np.arange(step * recipe.batch_size, (step + 1) * recipe.batch_size)
        batch = np.empty(recipe.batch_size, dtype=np.int64)
        for number in np.unique(places // size):
            if number != epoch:
                epoch, order = number, streams.generator(seed, "order", int(number)).permutation(size)
            here = places // size == number
            batch[here] = order[places[here] % size]
        yield step, batch


def accumulate(
    model: Model,
    split: Split,
    examples: np.ndarray,
    micro_batch: int,
    *,
    seed: int,
    step: int,
    precision: Precision,
) -> tuple[float, Tokens]:
    """Add the gradient of the mean loss over `examples` to the parameters; returns that loss and the tokens read.

    The sum over a micro-batch is divided by the size of the whole batch, and dropout is keyed by example and does not
    move with padding: the gradient does not depend on `micro_batch`, nor on how many ranks share the batch.
    """
    device = next(model.parameters()).device
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), Tokens()
    for places, length in cuts(model, split, examples, micro_batch):
        rows = (places[:, None] * split.documents + np.arange(split.documents)).flatten()
        dropout.set_keys(model, seed=seed, step=step, rows=rows.tolist())
        logits, labels = predict(model, split, examples[places], length, precision)
        loss = cross_entropy(logits, labels, reduction="sum") / (len(labels) // len(places) * len(examples))
        loss.backward()
        total += loss.detach()
        tokens += Tokens(real=int(split.lengths(examples[places]).sum()), computed=len(rows) * length)
    ranks.add_gradients(model.parameters())
    loss, real, computed = ranks.summed(total.item(), tokens.real, tokens.computed)
    return loss, Tokens(real=int(real), computed=int(computed))


def _cause(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> str:
    """Where the numbers of a step went wrong."""
    found = ranks.first(_activation(model, split, examples, size, seed=seed, step=step, precision=precision))
    if found is not None:
        return found
    named = ((name, parameter.grad) for name, parameter in model.named_parameters())
    name = next(name for name, grad in named if grad is not None and not grad.isfinite().all())
    return f"the gradient of {name} is not finite"


@torch.no_grad()
def _activation(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> str | None:
    """The first part of a batch with a loss that is not finite, and the largest activation there."""
    largest: dict[str, float] = {}

    def note(name: str) -> Callable:
        def hook(_module: torch.nn.Module, _inputs: tuple, output: Any) -> None:
            if isinstance(output, Tensor):
                largest[name] = output.abs().max().item()

        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        for number, (places, length) in enumerate(cuts(model, split, examples, size)):
            rows = (places[:, None] * split.documents + np.arange(split.documents)).flatten()
            dropout.set_keys(model, seed=seed, step=step, rows=rows.tolist())
            logits, labels = predict(model, split, examples[places], length, precision)
            if not cross_entropy(logits, labels).isfinite():
                broken = [name for name, value in largest.items() if not math.isfinite(value)]
                name = broken[0] if broken else max(largest, key=largest.__getitem__)
                return f"in micro-batch {number}, {name} gives values up to {largest[name]:.3g}"
    finally:
        for hook in hooks:
            hook.remove()
    return None


class Predictions:
    """The class of every example of a split [n], and the probability that the model gives it [n]."""

    def __init__(self, examples: int) -> None:
        self.classes, self.confidence = np.zeros(examples, dtype=np.int64), np.zeros(examples)

    def add(self, places: np.ndarray, logits: Tensor) -> None:
        """What a part of the split gave."""
        best = logits.double().softmax(dim=-1).max(dim=-1)
        self.classes[places], self.confidence[places] = best.indices.cpu().numpy(), best.values.cpu().numpy()

    def meet(self) -> None:
        """Take over what the other ranks have."""
        ranks.add_up(torch.from_numpy(self.classes))
        ranks.add_up(torch.from_numpy(self.confidence))


@torch.inference_mode()
def evaluate(model: Model, split: Split, batch: int, *, precision: Precision, keep: Predictions | None = None) -> Score:
    """Score every example of the split; nothing is drawn, and the counts are integers. `keep` takes the predictions
    of a classification."""
    model.eval()
    correct, predictions, losses = 0, 0, []
    for places, length in cuts(model, split, np.arange(len(split)), batch):
        logits, labels = predict(model, split, places, length, precision)
        if keep is not None:
            keep.add(places, logits)
        correct += int((logits.argmax(dim=-1) == labels).sum())
        predictions += len(labels)
        losses.append(cross_entropy(logits, labels, reduction="sum").item())
    if keep is not None:
        keep.meet()
    correct, predictions, loss = ranks.summed(correct, predictions, math.fsum(losses))
    return Score(correct=int(correct), examples=int(predictions), loss=loss / predictions)


def cuts(model: Model, split: Split, examples: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Cut this rank's share of a batch: the places [m] of each part in the batch, and the length that its documents
    are padded to.

    Where padding takes part in the model a part is the next `size` examples at `max_len`. Where it is masked, examples
    are sorted by length, each part is padded to its own longest document, none has more tokens, padding included, than
    `size` examples of `max_len`, and the parts are those that cost least.
    """
    if not model.key_mask:
        places = ranks.share(np.arange(len(examples)))
        for start in range(0, len(places), size):
            yield places[start : start + size], model.max_len
        return
    lengths = split.lengths(examples).max(axis=1).clip(min=1)
    order = ranks.share(np.argsort(-lengths, kind="stable"))
    overhead = OVERHEAD[next(model.parameters()).device.type]
    for part in cheapest(lengths[order], size * model.max_len, overhead):
        yield order[part], int(lengths[order[part.start]])


def cheapest(lengths: np.ndarray, most: int, overhead: int) -> list[slice]:
    """Cut documents [n], the longest first, where the sum of what parts cost is least.

    A part costs its tokens, padding included, which are at most `most` unless it is one document, and `overhead`.
    """
    costs, starts, first = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=int), 0  # of the first ones
    for stop in range(1, len(lengths) + 1):
        while first < stop - 1 and (stop - first) * lengths[first] > most:
            first += 1
        tokens = np.arange(stop - first, 0, -1) * lengths[first:stop]
        total = costs[first:stop] + tokens + overhead
        starts[stop] = first + total.argmin()
        costs[stop] = total.min()
    parts, stop = [], len(lengths)
    while stop:
        parts.append(slice(starts[stop], stop))
        stop = starts[stop]
    return parts[::-1]


def predict(
    model: Model, split: Split, examples: np.ndarray, length: int, precision: Precision
) -> tuple[Tensor, Tensor]:
    """Logits [m, classes] in fp32 or higher, and targets [m], m predictions of n examples."""
    device = next(model.parameters()).device
    tokens = torch.from_numpy(split.pad(examples, length)).to(device).long()
    labels = torch.from_numpy(split.targets(examples)).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(tokens).flatten(0, -2)
    return logits.float() if logits.dtype == torch.bfloat16 else logits, labels.flatten()
