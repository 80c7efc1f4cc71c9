"""Find the files of each split: named by split, shards, a folder per split, or files of a data set of the hub."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from lra.core.errors import UserError
from lra.core.names import HUB, KINDS
from lra.datasets import hub
from lra.datasets.builder import FromSource
from lra.datasets.cache import SPLITS
from lra.datasets.tables import parts_of

STEMS = {"train": ("train",), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test",)}
OF_DATASETS = ("state.json", "dataset_info.json", "dataset_dict.json")  # metadata files of `save_to_disk`
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")


def _described(value: Any) -> Any:
    """Raise ValueError, with the forms of `Data`, for a list, null or unknown splits; pydantic checks the rest."""
    if value is None or isinstance(value, list) or (isinstance(value, dict) and not value.keys() <= {*SPLITS}):
        raise ValueError("expected a folder, a file, {train: FILE, val: FILE, test: FILE}, or hf:NAME")
    return value


Data = Annotated[str | dict[str, str], BeforeValidator(_described)]
"""A folder, a file, a file for each split (only train is required), or a data set of the hub."""
Paths = dict[str, list[Path]]
"""Files by split; splits without files are missing."""


def files_of(builder: FromSource, data: Data) -> Paths:
    """Return the files of each split that has files; raise UserError if train has none."""
    if isinstance(data, dict):
        paths = {split: [builder.located(data[split], "data")] for split in SPLITS if split in data}
        found = ", ".join(data)
    elif data.startswith(HUB):
        splits = hub.files(builder.config, *data.removeprefix(HUB).split(":", 1))
        paths = {split: splits[stem] for split, stems in STEMS.items() for stem in stems if stem in splits}
        found = ", ".join(splits)
    else:
        path = builder.located(data, "data")
        if not path.is_dir():
            return {"train": [path]}
        paths = {split: files for split in STEMS if (files := _found(path, split))}
        if not paths and (path / "state.json").is_file():
            paths = {"train": sorted(path.glob("*.arrow"))}
        found = ", ".join(file.name for file in _entries(path)[:10])
    if not paths.get("train"):
        raise UserError(
            f"task.data={data}: no file train{{{','.join(KINDS)}}}, no shards train-00000-of-0000N, no folder train; "
            f"found {found or 'nothing'}{', a folder without such files' if found == 'train' else ''}"
        )
    return paths


def _found(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder or in its subfolder `data`.

    They are one file, shards, or the files of a subfolder; names are compared without regard to case.
    """
    found: dict[str, list[Path]] = {}
    for path in _entries(folder):
        stem, kind = parts_of(path)
        shard = SHARD.fullmatch(stem)
        if path.is_dir() and path.name.lower() in STEMS[split]:
            inside = [file for file in _visible(path) if parts_of(file)[1] and file.name not in OF_DATASETS]
            found.update({path.name: inside} if inside else {})
        elif kind and stem in STEMS[split]:
            found[path.name] = [path]
        elif kind and shard and shard[1] in STEMS[split]:
            found.setdefault(f"{shard[1]}-*-of-{shard[3]}{kind}", []).append(path)
    if len(found) > 1:
        raise UserError(f"{folder}: {' and '.join(found)} are all for {split}; keep one of them")
    for name, paths in found.items():
        shard = SHARD.fullmatch(parts_of(paths[0])[0])
        if shard and int(shard[3]) != len(paths):
            raise UserError(f"{folder}: {len(paths)} of {int(shard[3])} shards of {name}; fetch the others")
        return paths
    return []


def unread(builder: FromSource, data: Data, files: Paths) -> list[str]:
    """Return the names of files in the folder that no split uses, or of unused splits of a data set of the hub."""
    if isinstance(data, dict) or not (data.startswith(HUB) or builder.located(data, "data").is_dir()):
        return []
    if data.startswith(HUB):
        splits = hub.files(builder.config, *data.removeprefix(HUB).split(":", 1))
        return [f"split {split}" for split, paths in splits.items() if paths not in files.values()]
    folder = builder.located(data, "data")
    used = {path for paths in files.values() for path in paths}
    inside = {path.parent for path in used} - {folder, folder / "data"}
    others = [*_entries(folder), *(path for base in sorted(inside) for path in _visible(base))]
    names = [path.relative_to(folder).as_posix() for path in others if path not in used | inside | {folder / "data"}]
    return [name for name in names if Path(name).name not in OF_DATASETS]


def _entries(folder: Path) -> list[Path]:
    """Return the files and folders in a folder and in its subfolder `data`, without hidden ones."""
    return [path for base in (folder, folder / "data") if base.is_dir() for path in _visible(base)]


def _visible(folder: Path) -> list[Path]:
    """Return the files and folders in a folder, without hidden ones such as the `._NAME` of macOS."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
