"""Files of each split: by name in a folder, as shards, in a folder of each split, or those of a data set of the hub."""

import re
from pathlib import Path
from typing import Literal

from lra.core.errors import UserError
from lra.core.paths import expanded
from lra.data import hub
from lra.data.cache import SPLITS
from lra.data.from_source import located
from lra.data.tables import KINDS, PACKED
from lra.tasks import Place

HUB = "hf:"  # before the name of a data set of the hub
STEMS = {"train": ("train",), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test",)}
ARCHIVES = (".zip", ".gz", ".xz", ".bz2", ".zst", ".tar", ".tgz", ".7z")
OTHER_KINDS = (".txt", ".feather", ".xlsx", ".xls", ".ods", ".pkl", ".orc", ".avro", ".h5", ".pt", ".xml", ".sqlite")
DATA_ENDS = (*KINDS, *ARCHIVES, *OTHER_KINDS)
OF_DATASETS = ("state.json", "dataset_info.json", "dataset_dict.json")  # beside the files of `save_to_disk`
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")

Data = str | dict[Literal["train", "val", "test"], str]
Paths = dict[str, list[Path]]
"""Files of each split that has some."""


def stem_of(data: Data) -> str:
    """Return the name of the folder, of the file without its suffixes, or of the data set."""
    if isinstance(data, str) and data.startswith(HUB):
        return Path(data.removeprefix(HUB).partition(":")[0]).name
    path = expanded(data if isinstance(data, str) else data.get("train", "files"), "task.data").absolute()
    if path.name == "..":
        path = path.resolve()
    while path.suffix in (*KINDS, *PACKED):
        path = path.with_suffix("")
    return path.parent.name or path.name if path.name in STEMS["train"] else path.name


def files_of(data: Data, place: Place) -> Paths:
    """Return the files of each split that has some; train must have some."""
    if isinstance(data, dict):
        if "train" not in data:
            raise UserError(f"task.data={data}: no file for train")
        return {split: [located(place, data[split], "data")] for split in SPLITS if split in data}
    if data.startswith(HUB):
        found = hub.files(place, *data.removeprefix(HUB).split(":", 1))
        paths = {split: found[stem] for split, stems in STEMS.items() for stem in stems if stem in found}
        if "train" not in paths:
            raise UserError(f"task.data={data}: its splits are {', '.join(found)}; expected train")
        return paths
    try:
        path = located(place, data, "data")
    except UserError as error:
        raise UserError(f"{error}; a data set of the Hugging Face hub is task.data={HUB}NAME") from None
    if not path.is_dir():
        return {"train": [path]}
    paths = {split: found for split in STEMS if (found := _found(path, split))}
    if not paths and (path / "state.json").is_file():
        paths = {"train": sorted(path.glob("*.arrow"))}
    if not paths.get("train"):
        raise UserError(
            f"{path}: no train{{{','.join(KINDS)}}}, no shards train-00000-of-0000N, no folder train in it or in its "
            "folder data; name the files with task.data={train: FILE, test: FILE}"
        )
    return paths


def _found(folder: Path, split: str) -> list[Path]:
    """Find the files of a split in a folder or in its folder `data`: one file, its shards, or a folder, in any case.

    Raises UserError for two of them, and for none where a name begins like the split.
    """
    entries = _entries(folder)
    found: dict[str, list[Path]] = {}
    for path in entries:
        stem, kind = _parts(path)
        shard = SHARD.fullmatch(stem)
        if path.is_dir() and path.name.lower() in STEMS[split]:
            inside = [file for file in sorted(path.iterdir()) if _parts(file)[1] and file.name not in OF_DATASETS]
            found.update({path.name: inside} if inside else {})
        elif kind and stem in STEMS[split]:
            found[path.name] = [path]
        elif kind and shard and shard[1] in STEMS[split]:
            found.setdefault(f"{shard[1]}-*-of-{shard[3]}{kind}", []).append(path)
    if len(found) > 1:
        first, second, *_ = found
        raise UserError(f"{folder}: {first} and {second} are both for {split}; keep one of them")
    for name, paths in found.items():
        expected = {int(shard[3]) for path in paths if (shard := SHARD.fullmatch(_parts(path)[0]))}
        if expected and expected != {len(paths)}:
            raise UserError(f"{folder}: {len(paths)} of {max(expected)} shards of {name}; fetch the others")
        return paths
    begins_like = re.compile(rf"({'|'.join(STEMS[split])})([^a-z].*)?({'|'.join(map(re.escape, DATA_ENDS))})")
    for path in entries:
        if begins_like.fullmatch(path.name.lower()):
            raise UserError(
                f"{folder}: {path.name} looks like data for {split}, but is none of {STEMS[split][0]}"
                f"{{{','.join(KINDS)}}}; convert or rename it, or name the files with task.data={{train: FILE, ...}}"
            )
    return []


def _parts(path: Path) -> tuple[str, str]:
    """Name without suffixes in small letters, and the suffixes if they are those of data that can be read, else ''."""
    name = path.name.lower()
    ends = (f"{kind}{packed}" for kind in KINDS for packed in (("", *PACKED) if kind in KINDS[:4] else ("",)))
    end = next((end for end in ends if name.endswith(end)), "")
    return name.removesuffix(end), end


def unread(data: Data, files: Paths, place: Place) -> list[str]:
    """Return the names of data files of the folder, or of splits of the hub, that are not among `files`."""
    if isinstance(data, dict) or not (data.startswith(HUB) or located(place, data, "data").is_dir()):
        return []
    if data.startswith(HUB):
        splits = hub.files(place, *data.removeprefix(HUB).split(":", 1))
        return [f"split {split}" for split, paths in splits.items() if paths not in files.values()]
    paths = [path for found in files.values() for path in found]
    labels = [path.with_name(f"{path.stem}_labels.npy") for path in paths]
    used = {path.resolve() for path in (*paths, *labels, *(path.parent for path in paths))}
    others = [
        path
        for path in _entries(located(place, data, "data"))
        if path.resolve() not in used and path.name not in OF_DATASETS
    ]
    return [
        path.name for path in others if any(file.name.lower().endswith(DATA_ENDS) for file in (path, *path.glob("*")))
    ]


def _entries(folder: Path) -> list[Path]:
    """Files and folders in a folder and in its folder `data`."""
    return [path for base in (folder, folder / "data") if base.is_dir() for path in sorted(base.iterdir())]
