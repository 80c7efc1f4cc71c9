"""Find the files of each split; `task.data` names files, a folder of files, or a data set on the hub."""

import re
from pathlib import Path

from lra.core.errors import UserError
from lra.core.names import HUB, KINDS, split_end
from lra.datasets import hub
from lra.datasets.builder import FromSource
from lra.datasets.cache import SPLITS

# for each split, the accepted names of its files (without suffix), of its folder, and of the same split on the hub
STEMS = {"train": ("train",), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test",)}
OF_DATASETS = ("state.json", "dataset_info.json", "dataset_dict.json")  # metadata files of `save_to_disk`
SHARD = re.compile(r"(.+)-\d+-of-(\d+)")  # such as train-00000-of-00004, without the suffix


Data = str | dict[str, str]
"""A folder, a file, a file for each split (only train is required), or a data set of the hub."""
Paths = dict[str, list[Path]]
"""Files of each split, by the name of the split; a split without files has no entry."""


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
        paths = {split: files for split in STEMS if (files := _in_folder(path, split))}
        if not paths and (path / "state.json").is_file():  # `save_to_disk` wrote a single split
            paths = {"train": sorted(path.glob("*.arrow"))}
        found = ", ".join(file.name for file in _visible(path)[:10])  # ten names are enough to recognise a wrong folder
    if not paths.get("train"):
        raise UserError(
            f"task.data={data}: no file train{{{','.join(KINDS)}}}, no shards train-00000-of-0000N, and no folder "
            f"train with such files; found {found or 'nothing'}"
        )
    return paths


def _in_folder(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder or in its subfolder `data`; [] if there are none.

    Names in STEMS (case is ignored) mark the split: one file, several shards, or one folder, whose files are returned.
    """
    found: dict[str, list[Path]] = {}
    for path in [*_visible(folder), *_visible(folder / "data")]:
        stem, kind = split_end(path.name.lower())
        shard = SHARD.fullmatch(stem)
        if stem in STEMS[split] and path.is_dir():
            inside = [file for file in _visible(path) if split_end(file.name)[1] and file.name not in OF_DATASETS]
            found |= {path.name: inside} if inside else {}
        elif stem in STEMS[split] and kind:
            found[path.name] = [path]
        elif shard and shard[1] in STEMS[split] and kind:
            shards = found.setdefault(f"{shard[1]}-*-of-{shard[2]}{kind}", [])
            shards.append(path)
    if len(found) > 1:
        raise UserError(f"{folder}: {' and '.join(found)} are all for {split}; keep one of them")
    for name, paths in found.items():
        expected = re.search(r"-\*-of-(\d+)", name)
        if expected and int(expected[1]) != len(paths):
            raise UserError(f"{folder}: {len(paths)} of {int(expected[1])} shards of {name}; fetch the others")
        return paths
    return []


def _visible(folder: Path) -> list[Path]:
    """Return the files and folders in a folder, without hidden ones such as the `._NAME` of macOS."""
    return sorted(folder.glob("[!.]*"))
