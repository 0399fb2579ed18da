"""A group of commands, some of which are imported when they are used, so that the others are quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class Suggesting(click.Group):
    """A group that names the command which was most probably meant, also one that is not imported yet."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches

            meant = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not meant:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?", ctx) from None


class LazyGroup(Suggesting):
    """Group whose commands are partly defined elsewhere: `parts` maps their names to MODULE:NAME."""

    def __init__(self, *arguments: Any, parts: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parts = parts

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._parts])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._parts:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._parts[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command
