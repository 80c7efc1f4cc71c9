"""Download data from the Hugging Face hub; print a message before each download, and raise one-line errors."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest, read_json, write_json
from lra.datasets.task import DataConfig


def rows(config: DataConfig, dataset: str, counts: dict[str, int], *, wants: str) -> dict[str, Any]:
    """Return the rows of the splits of a data set on the hub, loaded by `datasets`.

    Args:
        config: folders; the download goes into the cache, and the error names the data folder.
        dataset: name of the data set.
        counts: expected number of rows of each split, by its name.
        wants: files or folders that the user may put into the data folder instead; the error names them.

    Raises:
        UserError: the download failed (`missing_data_error`), or a split has another number of rows.
    """

    def load() -> Any:
        import datasets  # here, after the message, because the import takes a second

        return datasets.load_dataset(dataset, split=[*counts], cache_dir=str(config.cache / "hub"))

    found = dict(zip(counts, from_hub(dataset, load, partial(missing_data_error, config, dataset, wants)), strict=True))
    for split, count in counts.items():
        # A changed upload would give other data under the same name of the task.
        if len(found[split]) != count:
            raise UserError(f"{dataset}: {len(found[split]):,} rows in {split}, expected {count:,}")
    return found


def file(config: DataConfig, repository: str, name: str, *, wants: str) -> Path:
    """Return the local path of the file `name` of a repository on the hub; download the file if necessary.

    `wants` is the file that the user may put into the data folder instead; the error names it.

    Raises:
        UserError: the download failed (`missing_data_error`).
    """
    from huggingface_hub import hf_hub_download

    what = f"{name} of {repository}"
    fetch = partial(hf_hub_download, repository, name, cache_dir=str(config.cache / "hub"))
    return Path(from_hub(what, fetch, partial(missing_data_error, config, what, wants)))


@cache
def files(config: DataConfig, name: str, configuration: str | None = None) -> dict[str, list[Path]]:
    """Load a data set with `datasets.load_dataset`, and return the paths of the Arrow files of each split.

    `name` is a data set on the hub or a local folder. If a data set was fetched from the hub before, the cache has its
    paths, and no request is sent to the hub.

    Raises:
        UserError: the data set cannot be loaded.
    """

    def load() -> dict[str, list[str]]:
        import datasets

        datasets.disable_progress_bars()
        splits = datasets.load_dataset(name, configuration, cache_dir=str(config.cache / "hub"))
        return {split: [file["filename"] for file in rows.cache_files] for split, rows in splits.items()}

    # Keep the paths, because `datasets` asks the hub about the version even if the data are cached.
    fetched = config.cache / "hub" / f"{digest([name, configuration])[:16]}.json"
    local = Path(name).is_dir()
    if local or not fetched.is_file():
        write_json(fetched, from_hub(name, load, lambda reason: UserError(f"task.data=hf:{name}: {reason}"), local))
    return {split: list(map(Path, paths)) for split, paths in read_json(fetched).items()}


def from_hub(what: str, load: Callable[[], Any], failed: Callable[[str], UserError], local: bool = False) -> Any:
    """Return the result of `load`; unless the data are local, first print a message and check that the hub answers.

    Raises:
        UserError: loading failed; `failed` makes the error from the reason, which is one line.
    """
    try:
        if not local:
            say(f"fetching {what} from the Hugging Face hub")
            _ask()
        return load()
    except Exception as error:  # `datasets` and the client of the hub have no common class of errors
        raise failed(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def is_reachable() -> bool:
    """Return True if the hub answers."""
    try:
        _ask()
    except OSError:
        return False
    return True


def missing_data_error(config: DataConfig, what: str, wants: str, reason: str) -> UserError:
    """Return the error for data that are not in the data folder and could not be downloaded."""
    looked = f"not in {config.data_dir}" if config.data_dir else "no data folder is set (LRA_DATA=... or data_dir=...)"
    return UserError(f"{what}: {looked}, and not downloaded ({reason}). Put into the data folder: {wants}")


def _ask() -> None:
    """Raise ConnectionError if HF_HUB_OFFLINE is set, or if the hub does not answer one request within 5 seconds.

    The hub's client library would retry for half a minute instead.
    """
    import urllib.error  # here, because urllib imports ssl, which takes milliseconds
    import urllib.request

    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise ConnectionError("HF_HUB_OFFLINE is set")
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.URLError as error:
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached: {error.reason}") from None
