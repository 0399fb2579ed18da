"""`buckram version`: installed releases of Buckram and of its optional parts."""

from __future__ import annotations

import click

from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version, and which extras are missing. Each has what it brings and the line that installs it.

    \b
    Examples:
      buckram version
      buckram version --json
    """
    import platform

    from buckram.extras import missing

    absent = missing()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if as_json:
        shown = [{"extra": one.name, "brings": one.brings, "install": one.install} for one in absent]
        emit({"version": installed(), "compiled": compiled(), "python": python, "missing_extras": shown})
        return
    print(f"{version_line()}, {python}")
    if absent:
        print("not installed:")
    width = max((len(one.name) for one in absent), default=0)
    for one in absent:
        print(f"  {one.name.ljust(width)}  {one.brings}: {one.install}")


def version_line() -> str:
    """Return the version and the compiled module, as `--version` prints them."""
    return f"buckram, version {installed()}, compiled: {'yes' if compiled() else 'no'}"


def installed() -> str:
    """Return the version of this installation."""
    from importlib.metadata import version as version_of

    return version_of("buckram")


def compiled() -> bool:
    """Return whether the compiled module is in use."""
    from buckram.core.entries.hot import COMPILED

    return COMPILED
