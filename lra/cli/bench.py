"""lra-bench: time, memory, operations and errors, always side by side in one run; from a configuration to a record."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.bench.settings import BenchSettings, settings_of
from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError
from lra.records import provenance

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.bench.layers import Again

CHOICES = ("task", "protocol", "attention", "variant")
PLACES = ("out", "cache", "data_dir", "workers")  # decide no number


def job(cfg: DictConfig) -> None:
    """Hydra's task function: measure, then write the record and its page."""
    from lra.bench import page

    settings = settings_of(cfg)
    hydra = HydraConfig.get()
    choices = {key: str(hydra.runtime.choices[key]) for key in CHOICES}
    folder = Path(settings.out or f"runs/bench/{settings.what}_{choices['task']}_{choices['protocol']}")
    if (folder / page.NAME).exists():
        raise UserError(f"{folder / page.NAME}: measured before; choose another folder by out=...")
    overrides = [word for word in hydra.overrides.task if word.lstrip("+").partition("=")[0] not in PLACES]
    record = {
        "schema": page.SCHEMA,
        "what": settings.what,
        "command": shlex.join(["lra-bench", *overrides]),
        **choices,
        **measure(settings, lambda *words: settings_of(_again(words))),
    }
    say(f"wrote {page.write(folder, record)}")


def measure(settings: BenchSettings, again: "Again") -> dict[str, Any]:
    """The part of the record that only measuring can fill."""
    import torch

    from lra.bench import accuracy, host, layers, models, steps
    from lra.bench.worker import BenchPlace
    from lra.runs.device import device_of

    started = provenance.now()
    torch.set_num_threads(settings.threads)
    device = "cpu" if settings.what == "host" else device_of(settings.device)
    place = BenchPlace(device, settings.threads, settings.memory_limit)
    data, digest = None, None
    if settings.what in ("step", "epoch", "profile", "host"):
        data, digest = steps.prepare(settings)
    results = {
        "layer": lambda: layers.run(settings, place, again),
        "model": lambda: models.run(settings, place, again),
        "step": lambda: steps.run(settings, place),
        "epoch": lambda: steps.run(settings, place),
        "profile": lambda: steps.profiles(settings, place),
        "accuracy": lambda: accuracy.run(settings, place.device),
        "host": lambda: host.run(settings),
    }[settings.what]
    identity = {key: value for key, value in asdict(settings).items() if key not in PLACES}
    return {
        "data": data,
        "config": identity,
        "results": list(results()),
        "provenance": provenance.provenance(identity, digest, place.device, settings.precision, started),
    }


def _again(words: tuple[str, ...]) -> DictConfig:
    """This command's configuration with more overrides."""
    hydra = HydraConfig.get()
    loader = GlobalHydra.instance().config_loader()
    try:
        return loader.load_sweep_config(OmegaConf.create({"hydra": hydra}), [*hydra.overrides.task, *words])
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"subjects: {configure.explain(error, 'bench', words)}") from None


main = command("bench", job)
