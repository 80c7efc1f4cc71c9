"""The only training loop: a generator of measurements that never logs, prints or saves."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lra import dropout, ranks
from lra.batches import Tokens, batches, cuts, predict
from lra.errors import UserError
from lra.model import Model
from lra.recipe import Precision, Recipe
from lra.tasks import Split, Task

OnStep = Callable[[int, float, Tokens], None]
"""Called after each update with the updates done, its loss, and the tokens it read."""
OnPart = Callable[[int, int], None]
"""Called before each part of an evaluation with the examples that this rank has done, and all that it will do. It may
raise: nothing of the training has changed since the last update."""
OnCut = Callable[[], None]
"""Called before each micro-batch where there is one rank, since the others may have fewer. It may raise, likewise: what
a step has added up so far is dropped when the step begins again."""


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
        self.losses: list[float] = []  # of every step
        self.measured = 0  # the step of the last measurement; these two are since then
        self.tokens = Tokens()
        self.seconds = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """By name: the weights and buffers, what the optimiser keeps of each parameter, and the losses."""
        weights = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        kept = {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return {**weights, **kept, "losses": torch.tensor(self.losses, dtype=torch.float64)}

    def state(self) -> dict[str, Any]:
        """The rest, as JSON values."""
        return {"step": self.step, "measured": self.measured, "tokens": asdict(self.tokens), "seconds": self.seconds}

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
        self.losses = tensors["losses"].tolist()
        self.step, self.measured, self.seconds = state["step"], state["measured"], state["seconds"]
        self.tokens = Tokens(**state["tokens"])

    def due(self, recipe: Recipe) -> bool:
        """Whether this step is to be measured, and has not been."""
        return self.step > self.measured and (self.step % recipe.eval_every == 0 or self.step == recipe.steps)


def fit(
    training: Training,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    precision: Precision,
    on_step: OnStep,
    on_part: OnPart = lambda *_: None,
    on_cut: OnCut = lambda: None,
) -> Iterator[Measurement]:
    """Train on from `training.step`, yielding a measurement every `eval_every` steps and after the last.

    `on_step` is called after each step, and after its measurement if there is one; `on_part` within evaluations, and
    `on_cut` within steps. Raises `Diverged` before the update that a non-finite loss or gradient would have made.
    """
    if training.due(recipe):  # it stopped in that evaluation
        yield _measured(training, task, recipe, precision, on_part)
        on_step(training.step, training.losses[-1], Tokens())
    clock = time.perf_counter()
    for step, examples in batches(len(task.train), recipe, seed, training.step):
        loss, seen = update(
            training.model,
            training.optimizer,
            task.train,
            examples,
            recipe,
            seed=seed,
            step=step,
            precision=precision,
            on_cut=on_cut,
        )
        training.step = step + 1
        training.losses.append(loss)
        training.tokens += seen
        training.seconds += time.perf_counter() - clock
        if training.due(recipe):
            yield _measured(training, task, recipe, precision, on_part)
        clock = time.perf_counter()
        on_step(training.step, loss, seen)


def _measured(training: Training, task: Task, recipe: Recipe, precision: Precision, on_part: OnPart) -> Measurement:
    """Evaluate, and count anew from here."""
    clock = time.perf_counter()
    score = evaluate(training.model, task.val, recipe.eval_batch, precision=precision, on_part=on_part)
    losses = training.losses[training.measured :]
    now = Measurement(
        step=training.step,
        epoch=training.step * recipe.batch_size / len(task.train),
        lr=recipe.learning_rate(training.step - 1),
        train_loss=math.fsum(losses) / len(losses),
        val=score,
        train_seconds=training.seconds,
        eval_seconds=time.perf_counter() - clock,
        tokens=training.tokens,
    )
    training.measured, training.tokens, training.seconds = training.step, Tokens(), 0.0
    return now


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
    on_cut: OnCut = lambda: None,
) -> tuple[float, Tokens]:
    """One training step on `examples`; returns its loss and the tokens read. Raises `Diverged`."""
    model.train()
    model.redraw(seed, step)
    optimizer.zero_grad(set_to_none=True)
    loss, seen = accumulate(
        model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision, on_cut=on_cut
    )
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


def accumulate(
    model: Model,
    split: Split,
    examples: np.ndarray,
    micro_batch: int,
    *,
    seed: int,
    step: int,
    precision: Precision,
    on_cut: OnCut = lambda: None,
) -> tuple[float, Tokens]:
    """Add the gradient of the mean loss over `examples` to the parameters; returns that loss and the tokens read.

    The sum over a micro-batch is divided by the size of the whole batch, and dropout is keyed by example and does not
    move with padding: the gradient does not depend on `micro_batch`, nor on how many ranks share the batch.
    """
    device = next(model.parameters()).device
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), Tokens()
    for places, length in cuts(model, split, examples, micro_batch):
        if ranks.count() == 1:
            on_cut()
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
    """Where the numbers of a step went wrong; every rank gives the same."""
    broken, largest = _activations(model, split, examples, size, seed=seed, step=step, precision=precision)
    broken, largest = ranks.first(broken), ranks.first(largest)
    if broken is not None:
        return broken
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, gradient in gradients.items():
        if not gradient.isfinite().all():
            return f"the gradient of {name} is not finite; {largest}"
    norms = {name: gradient.double().norm().item() for name, gradient in gradients.items()}
    name = max(norms, key=norms.__getitem__)
    return f"every gradient is finite, the largest is that of {name} with a norm of {norms[name]:.3g}; {largest}"


@torch.no_grad()
def _activations(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> tuple[str | None, str | None]:
    """The first part of a batch with a loss that is not finite, and the first values there that are not, if there are
    any; and the largest values of the batch.

    Only what a module returns is seen: a block, its mixer and its feed-forward net as wholes, since what these compute
    in one piece has no modules inside.
    """
    sizes: dict[str, float] = {}
    largest, where = -1.0, None

    def note(name: str) -> Callable:
        def hook(_module: torch.nn.Module, _inputs: tuple, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            if isinstance(values, Tensor):
                sizes[name] = values.abs().max().item()

        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        for number, (places, length) in enumerate(cuts(model, split, examples, size)):
            rows = (places[:, None] * split.documents + np.arange(split.documents)).flatten()
            dropout.set_keys(model, seed=seed, step=step, rows=rows.tolist())
            sizes.clear()
            logits, labels = predict(model, split, examples[places], length, precision)
            broken = [name for name, value in sizes.items() if not math.isfinite(value)]
            name = broken[0] if broken else max(sizes, key=sizes.__getitem__)
            told = f"in micro-batch {number}, {name} gives values up to {sizes[name]:.3g}"
            if not cross_entropy(logits, labels).isfinite():
                return told, None
            if sizes[name] > largest:
                largest, where = sizes[name], told
    finally:
        for hook in hooks:
            hook.remove()
    return None, where


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
def evaluate(
    model: Model,
    split: Split,
    batch: int,
    *,
    precision: Precision,
    keep: Predictions | None = None,
    on_part: OnPart = lambda *_: None,
) -> Score:
    """Score every example of the split; nothing is drawn, and the counts are integers. `keep` takes the predictions
    of a classification."""
    model.eval()
    correct, predictions, losses = 0, 0, []
    parts = list(cuts(model, split, np.arange(len(split)), batch))
    done, total, shared = 0, sum(len(places) for places, _ in parts), ranks.fewest(len(parts))
    for number, (places, length) in enumerate(parts):
        if number < shared:  # ranks may agree in there, which takes all of them
            on_part(done, total)
        done += len(places)
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
