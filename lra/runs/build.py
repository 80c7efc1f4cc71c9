"""Build a task, a model and a recipe from a checked configuration."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lra.config import configure
from lra.config.cell import Cell
from lra.config.values import parsed
from lra.core.errors import UserError
from lra.core.paths import expanded
from lra.datasets.builder import TaskBuilder
from lra.datasets.task import DataConfig, TaskSpec
from lra.network.architecture import Architecture
from lra.records.names import seed_folder
from lra.runs.settings import Settings
from lra.training.recipe import Pretrain, Recipe, carried

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.mixers._backend import Scan
    from lra.mixers.base import Mixer
    from lra.network.model import Model

Value = TypeVar("Value")
PRETRAINED = "pretrained"  # the folder of pretrained weights in the cache


@dataclass(frozen=True, kw_only=True)
class System:
    """Objects of a configuration, checked and not yet trained.

    Attributes:
        full_pattern: True if the mixers compute full attention at this length.
        row: name and complexity of an attention from outside lra, for tables.
        scan: recurrence of the mixers, if several backends can compute it.
    """

    builder: TaskBuilder
    model: "Callable[[TaskSpec], Model]"
    recipe: Recipe
    parameters: int
    full_pattern: bool
    row: dict[str, str] | None
    scan: "Scan | None"
    pretraining: "PretrainingPhase | None" = None

    def backend(self, device: str) -> dict[str, str]:
        """Return the backend for the record. Raises UserError if the one that is asked for cannot compute there."""
        return {} if self.scan is None else {"backend": self.scan.describe(device)}


@dataclass(frozen=True, kw_only=True)
class PretrainingPhase:
    """A pretraining. `settings` determines its weights and nothing of the training after it."""

    options: Pretrain
    settings: Settings
    system: System


def assemble(settings: Settings) -> System:
    """Resolve the task, the attention, the model and the recipe, and check that they fit together."""
    from lra.mixers._backend import scan_of

    with configure.blamed("task", settings.task):
        builder = configure.build(settings.task, "task", kind=TaskBuilder)()
    builder = builder.at(DataConfig.of(settings))
    designed = architecture(settings.attention, settings.model)
    recipe = settings.train
    if settings.model.norm_over == "batch" and recipe.micro_batch != recipe.batch_size:
        raise UserError(
            f"train.micro_batch={recipe.micro_batch}: model.norm_over=batch takes the moments of a whole batch; use "
            f"train.micro_batch={recipe.batch_size}"
        )
    _ = settings.start  # options that are wrong, or a missing file, end the command here
    model = _treated(designed, recipe)
    with configure.blamed("attention", settings.attention):
        made = without_memory(lambda: model(builder.spec))
    system = System(
        builder=builder,
        model=model,
        recipe=recipe,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        full_pattern=made.blocks[0].mixer.full_pattern,
        row=_row(made.blocks[0].mixer),
        scan=scan_of(made.blocks[0].mixer),
    )
    if settings.pretrain is None:
        return system
    return replace(system, pretraining=_pretraining(settings, settings.pretrain, system, made))


def without_memory(compute: Callable[[], Value]) -> Value:
    """Compute on the meta device, or on the CPU if that fails, as it does for a constructor that reads values."""
    import torch

    try:
        with torch.device("meta"):
            return compute()
    except UserError:
        raise
    except Exception:
        with torch.random.fork_rng(devices=[]):
            return compute()


def _treated(designed: "Callable[[TaskSpec], Model]", recipe: Recipe) -> "Callable[[TaskSpec], Model]":
    """Freeze and group the weights of a model as the recipe says."""

    def model(spec: TaskSpec) -> "Model":
        made = designed(spec)
        made.freeze(recipe.freeze or ())
        made.group_by_parameter(recipe.groups or ())
        return made

    return model


def _pretraining(settings: Settings, options: Pretrain, system: System, final: "Model") -> PretrainingPhase:
    """Assemble the pretraining. Raises UserError if `final` could not take all of its weights."""
    if settings.init is not None:
        raise UserError("pretrain, init: both would say what the model starts from; use init=scratch or pretrain=none")
    recipe = parsed(Recipe, {**asdict(settings.train), **options.train}, "pretrain.train.")
    # Nothing is pooled, but the CLS is there.
    model = replace(
        settings.model, pooling="cls" if settings.model.pooling == "cls" else "mean", pair_features="concat"
    )
    pretrained = _treated(architecture(settings.attention, model), recipe)
    with configure.blamed("attention", settings.attention):
        made = without_memory(lambda: pretrained(options.spec(system.builder.spec)))
    _check_weights(made, final, options, system.builder.spec.vocab_size)
    phase_settings = replace(
        settings,
        out=str(expanded(settings.cache, "cache") / PRETRAINED),
        seed=settings.seed if options.seed is None else options.seed,
        model=model,
        train=recipe,
        pretrain=replace(options, seed=None, train={}),
        probe=None,
    )
    return PretrainingPhase(
        options=options, settings=phase_settings, system=replace(system, model=pretrained, recipe=recipe)
    )


def _check_weights(made: "Model", final: "Model", options: Pretrain, vocab_size: int) -> None:
    """Raise UserError if `final` has weights that `made` lacks, as a causal form may."""
    pretrained, wanted = (carried(model.state_dict(), vocab_size) for model in (made, final))
    for name, value in wanted.items():
        if name not in pretrained or pretrained[name].shape != value.shape:
            raise UserError(
                f"pretrain.objective={options.objective}: a pretraining leaves no {name} of shape {list(value.shape)}; "
                "use pretrain=masked or pretrain=none"
            )
    for name, parameter in final.named_parameters():
        if not parameter.requires_grad and name not in wanted:
            raise UserError(f"train.freeze: {name} would stay as it was drawn, since no pretraining leaves it")


def _row(mixer: "Mixer") -> dict[str, str] | None:
    """Return name and complexity from the description of a mixer from outside lra; the report knows the others."""
    if type(mixer).__module__.split(".")[0] == "lra":
        return None
    return {"name": mixer.info.name or type(mixer).__name__, "complexity": f"O({mixer.info.complexity})"}


def check_attention(settings: Settings, system: System) -> None:
    """Raise UserError if an attention from outside lra fails a correctness check or cannot compute here."""
    if system.row is None:
        return
    import torch

    from lra.checks import check_before_run
    from lra.runs.device import device_of

    with torch.random.fork_rng(devices=[]):
        model = system.model(system.builder.spec)
    check_before_run(model.blocks[0].mixer, masked=model.masks_padding, device=device_of(settings.device))


def architecture(attention: dict[str, Any], model: Architecture) -> "Callable[[TaskSpec], Model]":
    """Build the model of a configuration, for the spec of any task."""
    from lra.mixers.base import Mixer
    from lra.network.model import Model

    mixer = configure.build(attention, "attention", supplied=1, kind=Mixer)
    return lambda spec: Model(mixer, spec, model)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run.

    Args:
        title: prefix of its messages.
        number: of the job in its sweep.
        search: True if it is a trial of a search, which prints its validation.
    """

    settings: Settings
    system: System
    cell: Cell
    title: str
    number: int = 0
    search: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return run_folder(self.settings, self.cell)

    @property
    def labels(self) -> dict[str, Any]:
        """Part of the record that is known before training."""
        spec = self.system.builder.spec
        return {
            "task": spec.name,
            "task_version": spec.version,
            "attention": self.cell.attention,
            "variant": self.cell.variant,
            "protocol": self.cell.protocol,
            "settings": self.cell.settings,
            "seed": self.settings.seed,
            "selection": self.settings.train.selection,
            "metric": spec.metric,
            **({"row": self.system.row} if self.system.row else {}),
        }


def run_folder(settings: Settings, cell: Cell) -> Path:
    """Return the folder of the run with these settings."""
    return Path(settings.out) / cell.folder / seed_folder(settings.seed)
