"""lra-bench: measure time and memory of training steps, layers and models, side by side in one process."""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.bench.settings import BenchSettings
from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError
from lra.records import provenance

CHOICES = ("task", "protocol", "attention", "variant")
FOLDERS = ("out", "cache", "data_dir", "workers")  # keys that do not change measurements


def job(cfg: DictConfig) -> None:
    """Run the measurements, then write bench.json and a page that shows them."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch reads both variables when it is imported
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from lra.bench import compare
    from lra.reports import show

    settings = configure.part(BenchSettings, cfg)
    hydra = HydraConfig.get()
    choices = {key: str(hydra.runtime.choices[key]) for key in CHOICES}
    folder = Path(settings.out or f"runs/bench/{settings.what}_{choices['task']}_{choices['protocol']}")
    if (folder / compare.NAME).exists():
        raise UserError(f"{folder / compare.NAME}: already exists; choose another folder with out=...")
    overrides = [word for word in hydra.overrides.task if word.lstrip("+").partition("=")[0] not in FOLDERS]
    line = shlex.join(["lra-bench", *overrides])
    record = {"what": settings.what, "command": line, **choices, **measure(settings)}
    page = compare.write(folder, record)
    show(page)
    say(f"wrote {page}")


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Return the measurements of all subjects, with PyTorch set up as in a training run."""
    import torch

    from lra.bench import compare, subjects
    from lra.ops import products
    from lra.runs.device import device_of, keep_memory, reproducible

    started = provenance.now()
    device = device_of(settings.device)
    compared = subjects.subjects_of(settings)
    torch.set_num_threads(settings.threads)
    reproducible()
    keep_memory()  # before the first product, as in a run
    library = products.choose(settings.products) if device == "cpu" else "mkl"
    with products.using(library):
        results = list(compare.compare(settings, compared, device))
    measured: dict[str, Any] = {"results": results}
    if settings.what == "step" and device == "cpu":
        tokens = settings.train.micro_batch * results[0]["length"]
        sizes = (tokens, settings.model.dim, settings.model.mlp_dim)
        measured["products"] = compare.product_rates(*sizes, settings.rounds)
    config = {key: value for key, value in asdict(settings).items() if key not in FOLDERS}
    where = provenance.provenance(config, None, device, settings.precision, started)
    if device == "cpu":
        where["products"] = library
    return {"config": config, **measured, "provenance": where}


main = command("bench", job)
