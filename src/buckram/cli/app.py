"""Puts the nouns together and runs them. Nouns are imported when used, so that `buckram --help` is quick.

`buckram help`: the same text as `--help`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from buckram.cli.nouns import GROUPS, NOUNS
from buckram.cli.shared.context_file import ChosenContext, context_option
from buckram.cli.shared.exits import Exit, Fault, fault_of
from buckram.cli.shared.lazy_group import Suggesting
from buckram.cli.shared.stdout import OutputLost, silence_output

COMPLETION = "_BUCKRAM_COMPLETE"


class Nouns(Suggesting):
    """A group whose commands are imported when they run; their help lines are known without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        module, _, name = NOUNS[cmd_name].place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Point to `buckram version` where an extra is missing."""
        from buckram.extras import some_missing

        if some_missing():
            formatter.write_paragraph()
            formatter.write_text("Some extras are not installed: `buckram version` says how.")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, NOUNS))
        for group, nouns in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), noun.summary + ".") for name, noun in nouns.items()])


@click.command(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@context_option
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda *given: _version(*given),
    help="Show the version and whether the compiled module is in use.",
)
def app() -> None:
    """Buckram: replicated, durable logs.

    \b
    Begin with
      buckram up                              three bookies in ./buckram-data
      seq 5 | buckram stream write numbers    five lines become five records
      buckram stream tail -f numbers

    Exit codes: 0 success; 1 the command failed or found a problem; 2 a wrong argument or setting; 3 no such ledger,
    stream, entry, offset or bookie; 4 it may succeed later; 5 refused (fenced, closed, wrong password, foreign
    directory); 70 a bug in Buckram; 130 interrupted; 141 the reader of the output has gone. With --json an error is
    one JSON line on standard error.
    """


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    from buckram.cli.version import version_line

    click.echo(version_line())
    context.exit()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code. A traceback is shown only if BUCKRAM_DEBUG is set."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = ChosenContext(as_json=_wants_json(given))
    try:
        if COMPLETION in os.environ:
            app.main(prog_name="buckram", complete_var=COMPLETION)
        # Not app.main: it turns a reader of our output that left into an ordinary failure.
        with app.make_context("buckram", list(given), obj=chosen) as context:
            app.invoke(context)
        if sys.stdout is not None:  # started with it closed
            sys.stdout.flush()
        return Exit.OK
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:
        problem.show()
        return problem.exit_code
    except BrokenPipeError:
        # The reader of our output left (`| head`): say nothing.
        silence_output()
        return Exit.PIPE
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("BUCKRAM_DEBUG") and not isinstance(error, (click.ClickException, click.Abort)):
            import traceback

            traceback.print_exc()
        _tell(fault_of(error, chosen.name), as_json=chosen.as_json)
        if isinstance(error, OutputLost):
            silence_output()
        return fault_of(error).exit_code
    finally:
        chosen.restore()


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the command line asks for JSON, even if it could not be parsed."""
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _tell(fault: Fault, *, as_json: bool) -> None:
    """Print an error on standard error: a line for people, or one JSON line. No other place prints errors."""
    if as_json:
        import json

        line = json.dumps({"error": fault.as_json()})
    else:
        line = f"buckram: {fault.message}"
    print(line, file=sys.stderr, flush=True)


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
