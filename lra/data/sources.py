"""Which raw data there are, found before they are read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra.core.errors import UserError
from lra.data import Place

Content = dict[str, Any]
"""What the name of a task depends on besides its options, under the keys that a prepared task's `source` has."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data that were found: published files, a layout of the hub, files of a folder, or none.

    `name` says where the data come from. `paths` are the files; a folder stands for its files that match one of the
    patterns `inside`. There are none where data are generated, on the hub or absent. `read` gives all of the data,
    in the form that the task expects. `content` says what is in the files; it counts rows but does not parse them, and
    published data, which are complete or refused, need no counting.
    """

    name: str
    read: Callable[[], Any]
    paths: list[Path] = field(default_factory=list)
    inside: tuple[str, ...] = ()
    content: Callable[[], Content] = dict


def first(place: Place, *patterns: str) -> Path | None:
    """The first path below the data folder that one of these patterns matches; None where none does."""
    if place.data_dir is None:
        return None
    return next((path for pattern in patterns for path in sorted(place.data_dir.glob(pattern))), None)


def together(place: Place, layouts: Iterable[tuple[str, ...]]) -> list[list[Path]]:
    """The files of the first of the layouts that is there, for each of its patterns; none where no layout is.

    Raises UserError where only a part of a layout is there.
    """
    for layout in layouts if place.data_dir else ():
        matches = [sorted(place.data_dir.glob(pattern)) for pattern in layout]
        if all(matches):
            return matches
        if any(matches):
            missing = place.data_dir / layout[matches.index([])]
            [beside, *_] = filter(None, matches)
            raise UserError(f"{missing}: no such file; it belongs beside {beside[0].name}")
    return []
