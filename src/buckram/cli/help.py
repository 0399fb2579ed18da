"""`buckram help`: the same text as `--help`."""

from __future__ import annotations

import click


@click.command("help", context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command.

    \b
    Examples:
      buckram help
      buckram help stream write
    """
    root = context.find_root()
    with root.command.make_context(root.info_name, [*words, "--help"]) as asked:
        root.command.invoke(asked)
