"""Puts the nouns together and runs them. Nouns are imported when used, so that `buckram --help` is quick."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from buckram.cli.exits import Exit, exit_code_of, line_of
from buckram.cli.stdout import OutputLost, silence_output

NOUNS = {
    "up": "buckram.cli.up:up",
    "bookie": "buckram.cli.bookie:bookie",
    "ledger": "buckram.cli.ledger:ledger",
    "stream": "buckram.cli.stream:stream",
    "namespace": "buckram.cli.namespace:namespace",
    "object": "buckram.cli.object:object_",
    "db": "buckram.cli.db:db",
    "gateway": "buckram.cli.gateway:gateway",
    "checkpoint": "buckram.cli.checkpoint:checkpoint",
    "spark-conf": "buckram.cli.spark_conf:spark_conf",
    "status": "buckram.cli.status:status",
    "top": "buckram.cli.top:top",
    "doctor": "buckram.cli.doctor:doctor",
    "autorecovery": "buckram.cli.autorecovery:autorecovery",
    "placement": "buckram.cli.placement:placement",
    "rebalance": "buckram.cli.rebalance:rebalance",
    "metadata": "buckram.cli.metadata:metadata",
    "cluster": "buckram.cli.cluster:cluster",
    "token": "buckram.cli.token:token",
    "acl": "buckram.cli.acl:acl",
    "usage": "buckram.cli.usage:usage",
    "audit": "buckram.cli.audit:audit",
    "key": "buckram.cli.key:key",
    "zookeeper": "buckram.cli.zookeeper:zookeeper",
    "etcd": "buckram.cli.etcd:etcd",
    "exporter": "buckram.cli.exporter:exporter",
    "upgrade-check": "buckram.cli.upgrade_check:upgrade_check",
    "plan": "buckram.cli.plan:plan",
    "deploy": "buckram.cli.deploy:deploy",
    "bench": "buckram.cli.bench:bench",
    "job": "buckram.cli.job:job",
    "replicate": "buckram.cli.replicate:replicate",
}

COMPLETION = "_BUCKRAM_COMPLETE"


class Nouns(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        module, _, name = NOUNS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
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
      buckram up                                      three bookies in ./buckram-data
      seq 5 | buckram stream write numbers            five lines become five records
      buckram stream tail -f numbers

    Exit codes: 0 it held; 1 it failed; 2 a wrong argument or setting; 3 no such ledger, stream, entry, offset or
    bookie; 4 it may succeed later; 5 refused (fenced, closed, wrong password, foreign directory); 70 a bug in
    Buckram; 130 interrupted; 141 whoever read the output has gone.
    """


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import version

    from buckram.core.entries.hot import COMPILED

    click.echo(f"buckram, version {version('buckram')}, compiled: {'yes' if COMPILED else 'no'}")
    context.exit()


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Never a traceback, unless BUCKRAM_DEBUG is set."""
    try:
        if COMPLETION in os.environ:
            app.main(prog_name="buckram", complete_var=COMPLETION)
        # Not app.main: it turns a reader of our output that left into an ordinary failure.
        with app.make_context("buckram", list(sys.argv[1:] if arguments is None else arguments)) as context:
            app.invoke(context)
        if sys.stdout is not None:  # started with it closed
            sys.stdout.flush()
        return Exit.OK
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:
        problem.show()
        return problem.exit_code
    except click.ClickException as problem:
        print(f"buckram: {_usage_line(problem)}", file=sys.stderr)
        return problem.exit_code
    except click.Abort:
        print("stopped", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError as error:
        # The reader of our output left (`| head`): say nothing.
        silence_output()
        return exit_code_of(error)
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("BUCKRAM_DEBUG"):
            traceback.print_exc()
        print(f"buckram: {line_of(error)}", file=sys.stderr)
        if isinstance(error, OutputLost):
            silence_output()
        return exit_code_of(error)


def _usage_line(problem: click.ClickException) -> str:
    """click's own form takes four lines."""
    text = " ".join(problem.format_message().split()).rstrip(".")
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    return f"{text}; see `{context.command_path} --help`" if context is not None else text
