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
from lra.runs.loggers import loggers_of
from lra.runs.settings import Settings
from lra.training.recipe import Pretrain, Recipe, carried

if TYPE_CHECKING:  # torch takes seconds to import, and --help and --cfg do not need it
    from lra.mixers._backend import Scan
    from lra.network.model import Model

Value = TypeVar("Value")
PRETRAINED = "pretrained"  # name of the cache folder that holds pretrained weights


@dataclass(frozen=True, kw_only=True)
class Components:
    """The task, model and recipe of a configuration, checked and not yet trained."""

    builder: TaskBuilder
    model: "Callable[[TaskSpec], Model]"
    recipe: Recipe
    parameters: int  # number of parameters of the model
    full_pattern: bool  # True for sparse or low-rank mixers that compute full attention at the task's maximum length
    row: dict[str, str] | None  # name and complexity for tables; None for the attentions of lra
    scan: "Scan | None"  # recurrence of the mixers if several backends can compute it
    pretraining: "PretrainingPhase | None" = None

    def backend(self, device: str) -> dict[str, str]:
        """Return {"backend": description}, or {} if `scan` is None. Raises UserError if `device` lacks the backend."""
        return {} if self.scan is None else {"backend": self.scan.describe(device)}


@dataclass(frozen=True, kw_only=True)
class PretrainingPhase:
    """Self-pretraining before a run; `settings` configures the pretraining, not the run."""

    options: Pretrain
    settings: Settings
    components: Components


def assemble(settings: Settings) -> Components:
    """Return the task, model and recipe of a configuration, after checking that they fit together."""
    from lra.mixers._backend import scan_of

    with configure.blamed("task", settings.task):  # an error in a user's task becomes a UserError with file and line
        builder = configure.build(settings.task, "task", kind=TaskBuilder)()
    builder, recipe = builder.at(DataConfig.of(settings)), settings.train
    model = architecture(settings.attention, settings.model, recipe)
    if settings.model.norm_over == "batch" and recipe.micro_batch != recipe.batch_size:
        raise UserError(
            f"train.micro_batch={recipe.micro_batch}: model.norm_over=batch takes the moments of a whole batch; use "
            f"train.micro_batch={recipe.batch_size}"
        )
    _ = settings.start, loggers_of(settings)  # may raise UserError: wrong options, or a missing file
    # Build the model once before any data are read: constructors of mixers check their options, and the names of frozen
    # and grouped weights are known only then.
    with configure.blamed("attention", settings.attention):
        made = without_memory(lambda: model(builder.spec))
    mixer, row = made.blocks[0].mixer, None
    if type(mixer).__module__.split(".")[0] != "lra":  # reports have names for lra's mixers only
        row = {"name": mixer.info.name or type(mixer).__name__, "complexity": f"O({mixer.info.complexity})"}
    components = Components(
        builder=builder,
        model=model,
        recipe=recipe,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        full_pattern=mixer.full_pattern,
        row=row,
        scan=scan_of(mixer),
    )
    if settings.pretrain is None:
        return components
    return replace(components, pretraining=_pretraining(settings, settings.pretrain, components, made))


def without_memory(compute: Callable[[], Value]) -> Value:
    """Return `compute()`, run on the meta device without memory for tensors, or on the CPU if that fails.

    The meta device fails for a mixer whose constructor reads the values of tensors.
    """
    import torch

    try:
        with torch.device("meta"):
            return compute()
    except UserError:  # a mistake would be the same on the CPU
        raise
    except Exception:
        with torch.random.fork_rng(devices=[]):  # the caller's random state must not depend on this fallback
            return compute()


def _pretraining(settings: Settings, options: Pretrain, components: Components, final: "Model") -> PretrainingPhase:
    """Return the pretraining phase.

    Raises:
        UserError: `init` is set, too, or pretraining would not provide a weight that `final` needs.
    """
    if settings.init is not None:
        raise UserError("pretrain, init: both set the initial weights; use init=scratch or pretrain=none")
    recipe = parsed(Recipe, {**asdict(settings.train), **options.train}, "pretrain.train.")
    # Pretraining predicts at positions and does not pool, but `pooling=cls` is kept, because it adds the CLS token.
    model = replace(
        settings.model, pooling="cls" if settings.model.pooling == "cls" else "mean", pair_features="concat"
    )
    pretrained, spec = architecture(settings.attention, model, recipe), components.builder.spec
    with configure.blamed("attention", settings.attention):
        made = without_memory(lambda: pretrained(options.spec(spec)))
    provided, wanted = (carried(each.state_dict(), spec.vocab_size) for each in (made, final))
    for name, value in wanted.items():
        # With the objective `next` the mixers are causal, and may lack a weight or have it in another shape.
        if name not in provided or provided[name].shape != value.shape:
            raise UserError(
                f"pretrain.objective={options.objective}: pretraining provides no {name} of shape {list(value.shape)}; "
                "use pretrain=masked or pretrain=none"
            )
    for name, parameter in final.named_parameters():
        if not parameter.requires_grad and name not in wanted:
            raise UserError(f"train.freeze: {name} would keep its random values, since pretraining does not provide it")
    phase_settings = replace(
        settings,
        out=str(expanded(settings.cache, "cache") / PRETRAINED),
        seed=settings.seed if options.seed is None else options.seed,
        model=model,
        train=recipe,
        # `seed` and `train` above already contain these two options. They are reset so that equal pretrainings have
        # equal keys.
        pretrain=replace(options, seed=None, train={}),
        probe=None,  # because runs with different values of `probe` share this pretraining
    )
    return PretrainingPhase(
        options=options, settings=phase_settings, components=replace(components, model=pretrained, recipe=recipe)
    )


def check_attention(settings: Settings, components: Components) -> None:
    """Raise UserError if an attention from outside lra fails a correctness check or cannot compute on this device."""
    if components.row is None:
        return
    import torch

    from lra.checks import check_before_run
    from lra.runs.device import device_of

    with torch.random.fork_rng(devices=[]):  # keeps the random state for the runs of the sweep, which may follow
        model = components.model(components.builder.spec)
    check_before_run(model.blocks[0].mixer, masked=model.masks_padding, device=device_of(settings.device))


def architecture(
    attention: dict[str, Any], model: Architecture, recipe: Recipe | None = None
) -> "Callable[[TaskSpec], Model]":
    """Return a function that builds the configured model for the spec of a task.

    With a recipe, that function also freezes the groups in `recipe.freeze` and checks the names in `recipe.groups`.
    """
    from lra.mixers.base import Mixer
    from lra.network.model import Model

    mixer = configure.build(attention, "attention", supplied=1, kind=Mixer)

    def build(spec: TaskSpec) -> Model:
        made = Model(mixer, spec, model)
        if recipe is not None:
            made.freeze(recipe.freeze or ())
            made.group_by_parameter(recipe.groups or ())  # raises UserError for a group without weights
        return made

    return build


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to train, with its cell, the prefix of its messages, and its index in a sweep."""

    settings: Settings
    components: Components
    cell: Cell
    title: str
    number: int = 0
    search: bool = False  # True for a trial of a search, which prints its validation score, not the test score

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return run_folder(self.settings, self.cell)

    @property
    def labels(self) -> dict[str, Any]:
        """Entries of the record that are known before training."""
        spec = self.components.builder.spec
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
            **({"row": self.components.row} if self.components.row else {}),
        }


def run_folder(settings: Settings, cell: Cell) -> Path:
    """Return the folder of the run with these settings."""
    return Path(settings.out) / cell.folder / seed_folder(settings.seed)
