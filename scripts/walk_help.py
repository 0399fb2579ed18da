"""Asks every command of the installed Buckram for its help, in one process. Nothing of the checkout is imported.

The last line is the number of commands; a line before it for each one that has no help, then exit code 1.
`python walk_help.py --without PACKAGE...` does so as if these packages were not installed.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Absent(importlib.abc.MetaPathFinder):
    """Says of packages that there are none."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def walk() -> tuple[int, list[str]]:
    """Return the number of commands, and the faults in the help of some."""
    import click

    from buckram.cli.app import app

    count, wrong = 0, list[str]()
    waiting: list[tuple[str, click.Command]] = [("buckram", app)]
    while waiting:
        name, command = waiting.pop()
        count += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(click.exceptions.Exit):
                command.make_context(name, ["--help"])
            if "Usage:" not in said.getvalue():
                wrong.append(f"{name} --help prints no usage")
        except Exception as error:
            wrong.append(f"{name} --help: {type(error).__name__}: {error}")
        if isinstance(command, click.Group):
            context = click.Context(command)
            for below in command.list_commands(context):
                try:
                    found = command.get_command(context, below)
                except Exception as error:
                    wrong.append(f"{name} {below}: {type(error).__name__}: {error}")
                    continue
                assert found is not None
                waiting.append((f"{name} {below}", found))
    return count, wrong


def main() -> int:
    if sys.argv[1:2] == ["--without"]:
        sys.meta_path.insert(0, Absent(sys.argv[2:]))
    count, wrong = walk()
    print("\n".join([*wrong, str(count)]))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
