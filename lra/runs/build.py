"""What a configuration describes: a task, a model and a recipe that fit together, and what one run is given of it."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.config import configure
from lra.config.cell import Cell
from lra.config.settings import Settings
from lra.core.errors import UserError
from lra.core.subprocesses import results_from_child
from lra.data import Place, TaskBuilder, TaskSpec
from lra.init import Start
from lra.model.architecture import Architecture
from lra.records.names import seed_folder
from lra.training.pretrain import Pretrain, carried
from lra.training.recipe import Recipe

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.model.model import Model
    from lra.ops.backend import Scan
    from lra.ops.mixer import Mixer

PRETRAINED = "pretrained"  # the folder in the cache where weights of pretraining lie


@dataclass(frozen=True, kw_only=True)
class System:
    """What a configuration describes, checked but not yet at work. `full_pattern`: as of its mixers, at this length.
    `row`: how tables name an attention that is not ours; `pretraining`: what comes before the training. `scan`: the
    recurrence of the mixers, where several backends can compute it."""

    builder: TaskBuilder
    model: "Callable[[TaskSpec], Model]"
    recipe: Recipe
    start: Start | None
    parameters: int
    full_pattern: bool
    row: dict[str, str] | None
    scan: "Scan | None"
    pretraining: "PretrainingPhase | None" = None

    def backend(self, device: str) -> dict[str, str]:
        """What a record says of the backend there. Raises UserError where the one that is wanted cannot compute."""
        return {} if self.scan is None else {"backend": self.scan.told(device)}


@dataclass(frozen=True, kw_only=True)
class PretrainingPhase:
    """A pretraining: its own settings and system. `settings` say all that decides its weights, and nothing of what is
    trained after it."""

    options: Pretrain
    settings: Settings
    system: System


def assemble(settings: Settings) -> System:
    """Resolve the task, the attention, the model and the recipe, and check that they fit together."""
    import torch

    from lra.ops.backend import scan_of

    with configure.blamed("task", settings.packages):
        builder = configure.build(settings.task, "task", settings.packages, kind=TaskBuilder)()
    builder = builder.at(Place.of(settings))
    designed = architecture(settings.attention, settings.model, settings.packages)
    configure.check(Recipe, settings.train, "train.")
    recipe = Recipe(**settings.train)
    if settings.model["norm_over"] == "batch" and (recipe.micro_batch != recipe.batch_size or recipe.processes > 1):
        raise UserError(
            f"train.micro_batch={recipe.micro_batch}, train.processes={recipe.processes}: model.norm_over=batch takes "
            f"the moments of a whole batch; use train.micro_batch={recipe.batch_size} and train.processes=1"
        )
    if recipe.goal is not None and builder.facts.metric != "accuracy":
        raise UserError(
            f"train.goal={recipe.goal:g} is an accuracy, but {builder.facts.name} is measured by perplexity"
        )
    start = settings.start
    if start is not None and not isinstance(start, Start):
        raise UserError(f"init._target_={settings.init['_target_']}: expected a subclass of lra.init.Start")

    model = _treated(designed, recipe)
    try:
        with torch.device("meta"), configure.blamed("attention", settings.packages):
            made = model(builder.facts)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UserError(f"task, model, attention: no machine has room for such sizes ({error})") from None
    system = System(
        builder=builder,
        model=model,
        recipe=recipe,
        start=start,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        full_pattern=made.blocks[0].mixer.full_pattern,
        row=_row(made.blocks[0].mixer),
        scan=scan_of(made.blocks[0].mixer),
    )
    return system if settings.pretrain is None else replace(system, pretraining=_pretraining(settings, system, made))


def _treated(designed: "Callable[[TaskSpec], Model]", recipe: Recipe) -> "Callable[[TaskSpec], Model]":
    """The same model, with the weights frozen and in the groups that the recipe names."""

    def model(facts: TaskSpec) -> "Model":
        made = designed(facts)
        made.freeze(recipe.freeze or ())
        made.group_by_parameter(recipe.groups or ())
        return made

    return model


def _pretraining(settings: Settings, system: System, final: "Model") -> PretrainingPhase:
    """The pretraining that the settings describe. Raises UserError where `final` could not take all of its weights."""
    import torch

    configure.check(Pretrain, settings.pretrain, "pretrain.")
    options = Pretrain(**settings.pretrain)
    if settings.init is not None:
        raise UserError("pretrain, init: both would say what the model starts from; use init=scratch or pretrain=none")
    for key in ("goal", "progress"):
        if options.train.get(key) is not None:
            raise UserError(
                f"pretrain.train.{key}={options.train[key]}: counts right answers, and a pretraining is measured by "
                f"its loss; use pretrain.train.{key}=null, and pretrain.train.patience where it shall end early"
            )
    train = {**settings.train, **options.train}
    configure.check(Recipe, train, "pretrain.train.")
    try:
        recipe = Recipe(**train)
    except UserError as error:
        raise UserError(_of_pretraining(str(error), options.train)) from None
    pooling = "cls" if settings.model["pooling"] == "cls" else "mean"  # nothing is pooled, but the CLS is there
    model = {**settings.model, "pooling": pooling, "pair_features": "concat"}
    pretrained = _treated(architecture(settings.attention, model, settings.packages), recipe)
    with torch.device("meta"), configure.blamed("attention", settings.packages):
        made = pretrained(options.facts(system.builder.facts))
    _check_weights(made, final, options, system.builder.facts.vocab_size)
    phase_settings = replace(
        settings,
        out=str(Path(settings.cache).expanduser() / PRETRAINED),
        seed=settings.seed if options.seed is None else options.seed,
        model=model,
        train=train,
        pretrain={key: value for key, value in settings.pretrain.items() if key not in ("seed", "train")},
        probe=None,
    )
    return PretrainingPhase(
        options=options, settings=phase_settings, system=replace(system, model=pretrained, recipe=recipe)
    )


def _of_pretraining(message: str, train: Mapping[str, Any]) -> str:
    """A message about a recipe, with the names of what a pretraining states itself in `train`, and of what to say."""

    def named(key: re.Match[str]) -> str:
        say, name = key[1] or "", key[2]
        return f"{say}{'pretrain.' * bool(say or name in train)}train.{name}"

    return re.sub(r"(say )?\btrain\.(\w+)", named, message)


def _check_weights(made: "Model", final: "Model", options: Pretrain, vocab_size: int) -> None:
    """Raises UserError where a model would not have the weights of `made`: a causal form may have others."""
    there, wanted = (
        {name: list(value.shape) for name, value in carried(model.state_dict(), vocab_size).items()}
        for model in (made, final)
    )
    for name, shape in wanted.items():
        if there.get(name) != shape:
            raise UserError(
                f"pretrain.objective={options.objective}: {name} is {shape} in training, and "
                f"{there.get(name, 'not there')} in pretraining; use pretrain=masked or pretrain=none"
            )
    for name, parameter in final.named_parameters():
        if not parameter.requires_grad and name not in wanted:
            raise UserError(f"train.freeze: {name} would stay as it was drawn, since no pretraining leaves it")


def _row(mixer: "Mixer") -> dict[str, str] | None:
    """Name and complexity from the card of a mixer; None where it is ours, since those of ours lie with the report."""
    if type(mixer).__module__.split(".")[0] == "lra":
        return None
    return {"name": mixer.card.name or type(mixer).__name__, "complexity": f"O({mixer.card.time})"}


def check_memory(system: System) -> None:
    """Raises UserError where the weights, their gradients and the two means of Adam are more than the machine has."""
    needed, there = 16 * system.parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UserError(
            f"model.dim, model.depth, task.max_length: a model of {system.parameters:,} parameters takes "
            f"{needed / 2**30:,.0f} GiB in training, and this machine has {there / 2**30:,.0f} GiB"
        )


def check_attention(settings: Settings, system: System) -> None:
    """Raises UserError where an attention that is not ours breaks a law of mixers, or cannot compute here.

    On a CPU a child tries it: what kills its process would end the whole sweep without a word.
    """
    if system.row is None:
        return
    from lra.runs.device import device_of

    device = device_of(settings.device)
    if device != "cpu":
        _try_laws(system, device)
        return
    try:
        for refusal in results_from_child(_send_refusal, system):
            raise UserError(refusal)
    except ChildProcessError as killed:
        raise UserError(
            f"{system.row['name']} cannot compute: its first pass ended its process with {killed}; lra-check tries it "
            "law by law"
        ) from None


def _send_refusal(send: Callable[[str], None], system: System) -> None:
    try:
        _try_laws(system, "cpu")
    except UserError as refusal:
        send(str(refusal))


def _try_laws(system: System, device: str) -> None:
    import torch

    from lra.laws import before_a_run

    with torch.random.fork_rng(devices=[]):
        model = system.model(system.builder.facts)
    before_a_run(model.blocks[0].mixer, masked=model.masks_padding, device=device)


def architecture(
    attention: dict[str, Any], model: dict[str, Any], packages: list[str]
) -> "Callable[[TaskSpec], Model]":
    """The model that these two parts of a configuration describe, for any task."""
    from lra.model.model import Model
    from lra.ops.mixer import Mixer

    mixer = configure.build(attention, "attention", packages, supplied=1, kind=Mixer)
    configure.check(Architecture, model, "model.")
    return lambda facts: Model(mixer, facts, Architecture(**model))


# What one run is given: settings, the system that they describe, and where it lives.


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run. `title`: what people read in front of its lines; `number`: of the job in its sweep."""

    settings: Settings
    system: System
    cell: Cell
    title: str
    number: int = 0

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return run_folder(self.settings, self.cell)

    @property
    def labels(self) -> dict[str, Any]:
        """What a record says of the run before it is trained."""
        facts = self.system.builder.facts
        return {
            "task": facts.name,
            "task_version": facts.version,
            "attention": self.cell.attention,
            "variant": self.cell.variant,
            "protocol": self.cell.protocol,
            "settings": self.cell.settings,
            "seed": self.settings.seed,
            "selection": self.system.recipe.selection,
            "metric": facts.metric,
            **({"row": self.system.row} if self.system.row else {}),
        }


def run_folder(settings: Settings, cell: Cell) -> Path:
    """The folder of the run with these settings."""
    return Path(settings.out) / cell.folder / seed_folder(settings.seed)
