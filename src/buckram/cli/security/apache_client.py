"""`buckram apache-client`: lets Apache's client and shell into a cluster of `buckram up --secure --zookeeper`."""

from __future__ import annotations

import click

from buckram.cli.security.apache_access import ApacheAccess
from buckram.cli.security.token import state_text, time_text
from buckram.cli.shared import values
from buckram.cli.shared.options import json_option, run_async
from buckram.cli.shared.output import emit, table
from buckram.errors import InvalidArgument
from buckram.metadata.default import DATA_DIR

data_option = click.option(
    "--data",
    "directory",
    default=DATA_DIR,
    show_default=True,
    metavar="DIR",
    help="The cluster of `buckram up`.",
)


@click.group("apache-client")
def apache_client() -> None:
    """Let Apache's client and shell into a secured cluster.

    For clusters of `buckram up --secure --zookeeper`, on their machine. Whoever holds one can change the metadata of
    all ledgers of the cluster: docs/explanation/security.md says what that allows.
    """


@apache_client.command("issue")
@click.argument("name")
@click.option("--expires", default="365d", show_default=True, metavar="TIME", help="How long the certificate counts.")
@data_option
@json_option
def issue(name: str, expires: str, directory: str, as_json: bool) -> None:
    """Make a certificate and a login, and say where they are.

    The files are in DIR/security/apache/NAME, for their owner only. Ledgers that belong to no stream, or to namespace
    default, may be read and appended to. ZooKeeper is started again, which takes seconds.

    \b
    Example:
      buckram apache-client issue pulsar
    """
    lasts = values.duration("--expires", expires)
    if lasts <= 0:
        raise InvalidArgument(f"--expires {expires}: needs a time such as 365d")
    made = run_async(ApacheAccess.of(directory).issue(name, lasts))
    if as_json:
        emit(made)
        return
    click.echo(f"{made['principal']}, certificate {made['serial']}, until {time_text(made['expires_s'])}")
    click.echo(f"  settings of Apache's client, and of its shell: {made['folder']}/client.conf")
    click.echo(f"  flags of its JVM: {made['folder']}/jvm.options")


@apache_client.command("list")
@data_option
@json_option
def list_(directory: str, as_json: bool) -> None:
    """List the issued certificates, including withdrawn ones."""
    found = run_async(ApacheAccess.of(directory).issued())
    if as_json:
        keys = ("name", "serial", "issued_s", "expires_s", "withdrawn")
        emit({"clients": [{key: one[key] for key in keys} for one in found]})
        return
    rows = [(one["name"], one["serial"], time_text(one["expires_s"]), state_text(one, "withdrawn")) for one in found]
    table(("name", "certificate", "expires", "state"), rows)


@apache_client.command("withdraw")
@click.argument("name")
@data_option
@json_option
def withdraw(name: str, directory: str, as_json: bool) -> None:
    """Take certificate, login and grant of NAME back.

    The files of NAME are deleted. Bookies end its connections within seconds; ZooKeeper is started again and refuses
    its sessions.

    \b
    Example:
      buckram apache-client withdraw pulsar
    """
    serials = run_async(ApacheAccess.of(directory).withdraw(name))
    if as_json:
        emit({"name": name, "withdrawn": serials})
    else:
        click.echo(f"withdrawn: {name}, certificate {', '.join(serials)}")
