"""Whether words that a file has for a shell are a command of this program."""

from __future__ import annotations

from collections.abc import Sequence

import click

from buckram.cli.app import app


def check_command(words: Sequence[str]) -> None:
    """AssertionError unless they name a command, with options that it has. Values are not looked at."""
    command: click.Command = app
    context = click.Context(app)
    left = list(words)
    while isinstance(command, click.Group):
        inner = command.get_command(context, left[0])
        assert inner is not None, f"{' '.join(words)}: there is no {left[0]}"
        command, left = inner, left[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = {word for word in left if word.startswith("--")} - options
    assert not unknown, f"{' '.join(words)}: it has no {', '.join(unknown)}"
