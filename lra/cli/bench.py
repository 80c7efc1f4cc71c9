"""lra-bench: measure time and memory of training steps, layers and models, side by side in one process."""

import os
import shlex
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError

CHOICES = ("task", "protocol", "attention", "variant")


def job(cfg: DictConfig) -> None:
    """Run the measurements, then write bench.json and a page that shows them."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch reads both variables when it is imported
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from lra.bench import compare
    from lra.bench.settings import BenchSettings
    from lra.reports import show

    settings = configure.part(BenchSettings, cfg)
    hydra = HydraConfig.get()
    choices = {key: str(hydra.runtime.choices[key]) for key in CHOICES}
    folder = Path(settings.out or f"runs/bench/{settings.what}_{choices['task']}_{choices['protocol']}")
    if (folder / compare.NAME).exists():
        raise UserError(f"{folder / compare.NAME}: already exists; choose another folder with out=...")
    overrides = [word for word in hydra.overrides.task if word.lstrip("+").partition("=")[0] not in compare.FOLDERS]
    line = shlex.join(["lra-bench", *overrides])
    record = {"what": settings.what, "command": line, **choices, **compare.measure(settings)}
    page = compare.write(folder, record)
    show(page)
    say(f"wrote {page}")


main = command("bench", job)
