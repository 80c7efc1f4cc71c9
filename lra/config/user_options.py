"""What lies in the working folder: options of one's own in `lra_options`, and beside it the modules that they name."""

from pathlib import Path

FOLDER = "lra_options"
GROUPS = ("attention", "task")
CODE_CHOOSING_KEYS = (*GROUPS, "also")


def user_options_folder() -> Path | None:
    """The folder of options in the working folder, where there is one."""
    return Path(FOLDER) if Path(FOLDER).is_dir() else None


def with_packages(overrides: list[str]) -> list[str]:
    """The overrides, and `packages=[...]` with the modules of the working folder that they choose by name.

    `attention=mine` on the command line says whose code is trusted: `mine.py`, or the folder `mine`, where the option
    of that name lies in `lra_options`. Nothing is added where packages=... stands there already.
    """
    if user_options_folder() is None or any(override.lstrip("+").startswith("packages=") for override in overrides):
        return overrides
    chosen = [override.lstrip("+").partition("=") for override in overrides]
    values = [value for key, _, value in chosen if key in CODE_CHOOSING_KEYS]
    names = [name.strip() for value in values for name in value.strip("[]").split(",")]
    packages = [name for name in dict.fromkeys(names) if name.isidentifier() and _is_own(name)]
    return [*overrides, f"packages=[{','.join(packages)}]"] if packages else overrides


def _is_own(name: str) -> bool:
    has_option = any(Path(FOLDER, group, f"{name}.yaml").is_file() for group in GROUPS)
    return has_option and (Path(f"{name}.py").is_file() or Path(name, "__init__.py").is_file())
