"""Options of the working directory in `lra_options`, and the modules that they name."""

from pathlib import Path

FOLDER = "lra_options"
GROUPS = ("attention", "task")
CODE_CHOOSING_KEYS = (*GROUPS, "also")


def user_options_folder() -> Path | None:
    """The folder of options in the working directory, if there is one."""
    return Path(FOLDER) if Path(FOLDER).is_dir() else None


def with_packages(overrides: list[str]) -> list[str]:
    """Add `packages=[...]` with the modules of the working directory that the overrides choose by name.

    `attention=mine` on the command line trusts `mine.py`, or the package `mine`, where `lra_options` has an option of
    that name. Nothing is added where `packages=...` is given.
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
