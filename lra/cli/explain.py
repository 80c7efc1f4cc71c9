"""lra-explain: what each token contributes to the CLS, as a page of HTML."""

from pathlib import Path

from omegaconf import DictConfig

from lra.cli.command import command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.tools.explain import ExplainSettings, load_run, page


def job(cfg: DictConfig) -> None:
    """Explain one example and write the page."""
    values = configure.plain(cfg)
    configure.check(ExplainSettings, values, "")
    settings = ExplainSettings(**values)
    runs = [load_run(Path(folder), settings) for folder in (settings.run, settings.beside) if folder is not None]
    if len({run.task.digest for run in runs}) > 1:
        raise UserError(f"beside={settings.beside}: a run on other data than {settings.run}")
    write_atomic(Path(settings.page), page(runs, settings.split, settings.example).encode())
    say(f"wrote {settings.page}")


main = command("explain", job)
