"""The nouns of the command line: where each is defined, its group in the help, its summary, and how it is run.

Nouns are imported when used, and their summaries are here, so that `buckram --help` imports no noun: it is quick, and
an extra that is not installed cannot break it. A test compares the summaries with the docstrings. `buckram help` is the
same text as `--help`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from buckram.cli.shared.context_file import ChosenContext, context_option
from buckram.cli.shared.exits import Exit, Fault, fault_of
from buckram.cli.shared.lazy_group import Suggesting
from buckram.cli.shared.stdout import OutputLost, silence_output


class Noun(NamedTuple):
    """One noun, such as `stream`."""

    place: str
    """MODULE:NAME of the command."""
    summary: str
    """The first sentence of its docstring, without the full stop."""


GROUPS: dict[str, dict[str, Noun]] = {
    "Data": {
        "stream": Noun("buckram.cli.stream.commands:stream", "Create, write, read and manage streams"),
        "object": Noun(
            "buckram.cli.object.commands:object_", "Put, get and manage objects: immutable bytes under names"
        ),
        "db": Noun("buckram.cli.db.commands:db", "Create, query and serve SQL databases with a replicated log"),
        "ledger": Noun("buckram.cli.ledger.commands:ledger", "Create, write, read and manage ledgers"),
        "namespace": Noun(
            "buckram.cli.namespace:namespace", "Create and manage namespaces of streams, and their policies"
        ),
        "checkpoint": Noun(
            "buckram.cli.object.checkpoint:checkpoint", "Show, verify and fork checkpoints of Spark on gateways"
        ),
    },
    "Operate": {
        "up": Noun("buckram.cli.up.commands:up", "Start a cluster here and keep it running until Ctrl-C"),
        "status": Noun("buckram.cli.cluster.status:status", "Show health: bookies, space, ledgers without copies"),
        "top": Noun("buckram.cli.cluster.top:top", "Show what bookies and streams do now, again and again"),
        "doctor": Noun(
            "buckram.cli.cluster.doctor:doctor", "Examine everything, and report what is wrong and what to do"
        ),
        "bookie": Noun("buckram.cli.bookie.commands:bookie", "Run bookies, list them, and look at what one holds"),
        "cluster": Noun("buckram.cli.cluster.commands:cluster", "Make, check and remove a cluster's metadata"),
        "metadata": Noun("buckram.cli.cluster.metadata:metadata", "Show what the metadata store holds"),
        "autorecovery": Noun(
            "buckram.cli.autorecovery:autorecovery", "Restore copies that were lost with their bookies"
        ),
        "placement": Noun("buckram.cli.placement:placement", "Show and set where copies are, by region, zone and rack"),
        "rebalance": Noun("buckram.cli.rebalance:rebalance", "Move copies from the fullest bookies to the emptiest"),
        "usage": Noun("buckram.cli.cluster.usage:usage", "Show what namespaces store and transfer, and their quotas"),
        "plan": Noun("buckram.cli.planning.commands:plan", "Predict when disks are full, and size clusters for a load"),
        "upgrade-check": Noun(
            "buckram.cli.cluster.upgrade_check:upgrade_check", "Check whether bookies can be upgraded to this release"
        ),
        "gateway": Noun("buckram.cli.gateway:gateway", "Serve the cluster over HTTP, with a web console"),
        "exporter": Noun("buckram.cli.exporter:exporter", "Serve metrics of streams, cursors, databases and more"),
    },
    "Secure": {
        "token": Noun(
            "buckram.cli.security.token:token", "Make, list and revoke tokens, by which bookies know clients"
        ),
        "acl": Noun("buckram.cli.security.acl:acl", "Manage who may do what with namespaces, streams and objects"),
        "certificate": Noun(
            "buckram.cli.security.certificate:certificate", "List and renew the certificates of a secured cluster"
        ),
        "key": Noun("buckram.cli.security.key:key", "Make and list keys of namespaces with encrypted entries"),
        "apache-client": Noun(
            "buckram.cli.security.apache_client:apache_client", "Let Apache's client and shell into a secured cluster"
        ),
        "audit": Noun("buckram.cli.security.audit:audit", "Search and verify the audit trail of a cluster"),
    },
    "Move": {
        "job": Noun("buckram.cli.job:job", "Run maintenance, imports and exports on Spark"),
        "replicate": Noun("buckram.cli.replicate:replicate", "Replicate namespaces to another cluster, and fail over"),
    },
    "Tools": {
        "context": Noun("buckram.cli.contexts:context", "Name clusters, and choose the one that commands use"),
        "bench": Noun("buckram.cli.bench.commands:bench", "Measure writes and reads of a running cluster"),
        "deploy": Noun("buckram.cli.deploy:deploy", "Write files for service managers"),
        "spark-conf": Noun(
            "buckram.cli.object.checkpoint:spark_conf", "Print what spark-defaults.conf needs for files on gateways"
        ),
        "zookeeper": Noun(
            "buckram.cli.metadata_servers:zookeeper", "Run a ZooKeeper server from the jars that PySpark brings"
        ),
        "etcd": Noun("buckram.cli.metadata_servers:etcd", "Run an etcd server from an installed etcd 3.5 or later"),
        "version": Noun("buckram.cli.version:version", "Show the version, and which extras are missing"),
        "help": Noun("buckram.cli.app:help_", "Show the help of a command"),
    },
}

NOUNS = {name: noun for group in GROUPS.values() for name, noun in group.items()}


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
