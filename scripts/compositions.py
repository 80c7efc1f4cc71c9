"""Does every command line mean what it meant at another commit? `python scripts/compositions.py --against COMMIT`

The settings that this code composes are compared, key by key, with those of the code of that commit, for:

- each option of each group, alone;
- each attention with each task, and each protocol and variant with each task;
- each experiment alone, with each task, and with each attention; what it sweeps over counts, too.

What only one of the two has is named. A key that is new, and null, asks for nothing: it is named and does not count.
Exit code 1: something differs.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

from reruns import code_of

from lra.config.configure import dotted
from lra.core.paths import CHECKOUT

OPTIONS = """
import json
from lra.config.compose import options
from lra.core.paths import conf_dir
folders = [path.relative_to(conf_dir()).as_posix() for path in conf_dir().rglob("*") if path.is_dir()]
groups = [group for group in [*folders, "case", "variant", "system", "system/other"] if not group.startswith("hydra")]
print(json.dumps({group: options(group) for group in groups}))
"""
COMPOSE = """
import inspect, json, sys
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from lra.config.compose import compose
from lra.core.errors import UserError
whole = {"with_hydra": True} if "with_hydra" in inspect.signature(compose).parameters else {}
for line in sys.stdin:
    try:
        cfg = compose("train", *json.loads(line), **whole)
        values = {}
        for key in cfg:
            if key != "hydra":
                value = cfg[key]
                values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        sweep = OmegaConf.to_container(cfg.hydra.sweeper, resolve=True).get("params")
        print(json.dumps(values | {"sweep": sweep}), flush=True)
    except (HydraException, OmegaConfBaseException, UserError):
        print(json.dumps({"refused": True}), flush=True)
"""
REFUSED = {"refused": True}
TOLD = 60  # characters of a value
ABSENT = object()
NEW = ["absent", "null"]


def run(code: str, folder: str, *, text: str = "") -> str:
    """Return the output of a program that imports the code in a folder."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=True).stdout


def asked(options: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """The overrides of each command line."""
    of = {group: [f"{group}={option}" for option in names] for group, names in options.items()}
    pairs = [
        *product(("task",), ("attention", "protocol", "variant")),
        *product(("experiment",), ("task", "attention")),
    ]
    systems = [f"system=other/{option}" for option in options["system/other"]]
    alone = [
        override
        for group, overrides in of.items()
        if group not in ("system/other", "task/recipe")
        for override in overrides
    ]
    both = [pair for first, second in pairs for pair in product(of[first], of[second])]
    return [(), *((override,) for override in [*alone, *systems]), *both]


def composed(command_lines: list[tuple[str, ...]], folder: str) -> list[dict]:
    text = "".join(json.dumps(overrides) + "\n" for overrides in command_lines)
    return [json.loads(line) for line in run(COMPOSE, folder, text=text).splitlines()]


def leaves(settings: dict) -> dict[str, object]:
    """The values by dotted key."""
    return {key: value for key, value in dotted(settings) if not (isinstance(value, dict) and value)}


def shown(value: object) -> str:
    text = "absent" if value is ABSENT else json.dumps(value)
    return text if len(text) <= TOLD else text[: TOLD - 1] + "…"


def differences(before: dict, now: dict) -> Iterator[tuple[str, str, str]]:
    """Keys of settings with their values at both commits."""
    if before != now and REFUSED in (before, now):
        yield "all", *("refused" if settings == REFUSED else "composed" for settings in (before, now))
        return
    first, second = leaves(before), leaves(now)
    for key in sorted(first.keys() | second.keys()):
        values = first.get(key, ABSENT), second.get(key, ABSENT)
        if values[0] != values[1]:
            yield key, shown(values[0]), shown(values[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", required=True, metavar="COMMIT")
    commit, here = parser.parse_args().against, str(CHECKOUT)
    with code_of(commit) as there:
        options = {folder: json.loads(run(OPTIONS, folder)) for folder in (there, here)}
        for group in sorted({*options[there], *options[here]}):
            was, has = (set(options[folder].get(group, [])) for folder in (there, here))
            for word, names in (("gone", was - has), ("new", has - was)):
                if names:
                    print(f"{word}: {group}={', '.join(sorted(names))}")
        shared = {
            group: [name for name in names if name in options[there].get(group, [])]
            for group, names in options[here].items()
        }
        command_lines = asked(shared)
        with ThreadPoolExecutor() as pool:  # each waits for a process of its own
            pairs = zip(*pool.map(partial(composed, command_lines), (there, here)), strict=True)
    changes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    differing, new = 0, set()
    for overrides, (before, now) in zip(command_lines, pairs, strict=True):
        every = list(differences(before, now))
        new |= {key for key, *values in every if values == NEW}
        changed = [change for change in every if [*change[1:]] != NEW]
        differing += bool(changed)
        for change in changed:
            changes[change].append(" ".join(overrides))
    for (key, was, has), places in sorted(changes.items()):
        print(f"{key}: {was} -> {has} in {len(places)}, as in {min(places, key=len) or 'no override'}")
    if new:
        print(f"new, and null: {', '.join(sorted(new))}")
    print(f"{len(command_lines)} command lines: {len(command_lines) - differing} equal, {differing} not")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
