"""`buckram spark-conf`: the settings with which Spark keeps checkpoints and files on gateways."""

from __future__ import annotations

import os
from pathlib import Path

import click

from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit
from buckram.errors import InvalidArgument
from buckram.runtime.net.security.logins import TOKEN_VARIABLE
from buckram.runtime.net.security.secure_network import tls_of_environment


@click.command("spark-conf")
@click.argument("uri")
@click.option(
    "--fewer-requests",
    is_flag=True,
    help="Half the requests for each file of a checkpoint. A repeated batch then keeps the state files of its first "
    "attempt, which matters only to queries whose results differ from run to run.",
)
@click.option(
    "--token/--no-token",
    default=None,
    help=f"Whether the gateways ask for tokens; default whether {TOKEN_VARIABLE} is set. The token itself is not "
    f"printed: each process takes it from {TOKEN_VARIABLE}.",
)
@click.option(
    "--tls-ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For swebhdfs://: the PEM file of the authority that signed the gateways' certificates. Java reads no such "
    "files, so a trust store is made of it. Java then trusts the authorities of FILE and no others. Default "
    "BUCKRAM_CA.",
)
@click.option(
    "--trust-store",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the trust store goes, a path that must be the same on all machines; default is a file in ~/.cache.",
)
@json_option
def spark_conf(
    uri: str,
    fewer_requests: bool,
    token: bool | None,
    tls_ca: Path | None,
    trust_store: Path | None,
    as_json: bool,
) -> None:
    """Print what spark-defaults.conf needs for files on gateways. URI is webhdfs://HOST:PORT[,HOST:PORT...]/PATH.

    With several gateways paths begin with webhdfs://buckram/, and the client goes on with another gateway when one
    dies. In Python `buckram.spark.configure(builder, URI)` sets the same, and starts a relay between the driver and
    several gateways, which keeps running transfers alive when one dies.

    \b
    Examples:
      buckram spark-conf webhdfs://10.0.0.7:8080/ >> conf/spark-defaults.conf
      buckram spark-conf webhdfs://10.0.0.7:8080,10.0.0.8:8080/default/orders --json
      buckram spark-conf swebhdfs://spark.example.org:8443/ --tls-ca ca.pem --trust-store /etc/spark/gateways.p12
    """
    from buckram.spark.relay.hadoop_settings import OF_ENVIRONMENT, gateways, settings
    from buckram.spark.relay.trust_store import write_trust_store

    wanted = bool(os.environ.get(TOKEN_VARIABLE, "").strip()) if token is None else token
    if tls_ca is None and uri.startswith("swebhdfs:") and (inherited := tls_of_environment(os.environ).ca):
        tls_ca = Path(inherited)
    if trust_store is not None and tls_ca is None:
        raise InvalidArgument("--trust-store is made of the certificates that --tls-ca names; give both")
    settings(uri, trust_store=tls_ca)  # a URI that does not do is refused before anything is written
    made = None if tls_ca is None else write_trust_store(tls_ca, trust_store)
    given = OF_ENVIRONMENT if wanted else ""
    chosen = settings(uri, token=given, trust_store=made, fewer_requests=fewer_requests)
    if as_json:
        emit({"uri": gateways(uri).uri, "settings": chosen})
        return
    width = max(map(len, chosen))
    print(f"# Paths begin with {gateways(uri).root}/, for example {gateways(uri).uri or gateways(uri).root}")
    for name, value in chosen.items():
        print(f"{name.ljust(width)}  {value}")
