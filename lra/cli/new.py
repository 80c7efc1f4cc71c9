"""lra-new: write an attention or a task of your own into the working folder: a module, its option and a test."""

import argparse
import re
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from lra.config.compose import options
from lra.core.console import say
from lra.core.errors import CONFIG_ERROR, UserError
from lra.core.files import write_atomic
from lra.core.paths import USER_OPTIONS

TEMPLATES = Path(__file__).with_name("templates")
# Commands to run next, by kind.
NEXT = {
    "attention": (
        "lra-check attention=$NAME",
        "lra-train attention=$NAME experiment=small_listops",
        "lra-train experiment=demo also=$NAME out=runs/$NAME",
    ),
    "task": ("lra-prepare task=$NAME", "lra-train task=$NAME attention=simple"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lra-new", description="Write an attention or a task of your own into this folder, ready to run."
    )
    parser.add_argument("kind", choices=sorted(NEXT))
    parser.add_argument("name", help="name of module and option, as in attention=NAME: lower-case letters, digits, _")
    arguments = parser.parse_args()
    try:
        write(arguments.kind, arguments.name)
    except (UserError, OSError) as error:
        print(f"lra-new: error: {error}", file=sys.stderr)
        sys.exit(CONFIG_ERROR)


def write(kind: str, name: str) -> None:
    """Write a module, its option and a test, and print the next commands. Raises UserError for a name that is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        raise UserError(f"{name}: expected a module name of lower-case letters, digits and _ that begins with a letter")
    for group in (kind, *(("system", "system/other") if kind == "attention" else ())):
        if name in options(group):
            raise UserError(f"{name}: lra has {group}={name}; choose another name")
    module = find_spec(name)  # a folder without __init__.py is a module whose origin is None
    taken = module is not None and module.origin is not None and not Path(f"{name}.py").exists()
    if name in sys.stdlib_module_names or taken:  # the new module would hide the other one, or be hidden by it
        raise UserError(f"{name}: Python has a module of this name already; choose another name")
    words = name.split("_")
    values = {"NAME": name, "CLASS": "".join(map(str.capitalize, words)), "TITLE": " ".join(map(str.capitalize, words))}
    files = {
        Path(f"{name}.py"): f"{kind}.py.txt",
        USER_OPTIONS / kind / f"{name}.yaml": f"{kind}.yaml.txt",
        Path(f"test_{name}.py"): f"{kind}_test.py.txt",
    }
    for path in files:  # before the first file is written
        if path.exists():
            raise UserError(f"{path}: already exists; choose another name, or move it away")
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values).encode())
        say(f"wrote {path}")
    say("next:", to_stdout=True)
    for command in NEXT[kind]:
        say(f"  {Template(command).substitute(values)}", to_stdout=True)
