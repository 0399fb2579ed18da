"""`buckram spark-conf`: the settings with which Spark keeps checkpoints and files on gateways."""

from __future__ import annotations

import os

import click

from buckram.cli.options import json_option
from buckram.cli.output import emit
from buckram.net.logins import TOKEN_VARIABLE


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
@json_option
def spark_conf(uri: str, fewer_requests: bool, token: bool | None, as_json: bool) -> None:
    """Print what spark-defaults.conf needs for files at URI, webhdfs://HOST:PORT[,HOST:PORT...]/PATH.

    With several gateways paths begin with webhdfs://buckram/, and the client goes on with another gateway when one
    dies. In Python `buckram.spark.configure(builder, URI)` sets the same.

    \b
    Examples:
      buckram spark-conf webhdfs://10.0.0.7:8080/ >> conf/spark-defaults.conf
      buckram spark-conf webhdfs://10.0.0.7:8080,10.0.0.8:8080/default/orders --json
    """
    from buckram.spark.files import OF_ENVIRONMENT, gateways, settings

    wanted = bool(os.environ.get(TOKEN_VARIABLE, "").strip()) if token is None else token
    chosen = settings(uri, token=OF_ENVIRONMENT if wanted else "", fewer_requests=fewer_requests)
    if as_json:
        emit({"uri": gateways(uri).uri, "settings": chosen})
        return
    width = max(map(len, chosen))
    print(f"# Paths begin with {gateways(uri).root}/, for example {gateways(uri).uri or gateways(uri).root}")
    for name, value in chosen.items():
        print(f"{name.ljust(width)}  {value}")


__all__ = ["spark_conf"]
