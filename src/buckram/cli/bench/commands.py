"""`buckram bench`: one load against a running cluster. The standard suite around it is `make bench`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buckram.cli.shared.options import cluster_options, connected, password_option, quorum, quorum_options, run_async
from buckram.cli.shared.output import emit, table
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.cli.bench.profiling import Profile
    from buckram.cluster import Client

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure writes and reads of a running cluster."""


def profile_option(command: F) -> F:
    return click.option(
        "--profile",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Write a flame graph and a budget by stage there; needs py-spy.",
    )(command)


def _watched(client: Client, directory: str) -> Profile:
    """Return a profile of this process and of those registered bookies that run on this machine."""
    from buckram.cli.bench.profiling import Profile, listeners

    known = client.services.bookies.bookies.writable
    ports = {info.address.port: name for name, info in known.items() if info.address is not None}
    here = {ports[port]: pid for port, pid in listeners(set(ports)).items()}
    return Profile(Path(directory), dict(sorted(here.items())))


def _show(figures: dict[str, Any], as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        table(("FIGURE", "VALUE"), [(k, v) for k, v in figures.items() if not isinstance(v, (list, dict))])
        return
    emit(figures)


@bench.command("write")
@click.option("--ledgers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Number of ledgers.")
@click.option("--size", type=click.IntRange(0), default=1024, show_default=True, help="Payload bytes of an entry.")
@quorum_options()
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Duration, seconds.")
@click.option("--rate", type=click.FloatRange(0.0), default=0.0, help="Entries per second in total; 0 is full speed.")
@click.option(
    "--outstanding",
    type=click.IntRange(1),
    default=4000,
    show_default=True,
    help="Maximum entries in flight, not acknowledged yet.",
)
@click.option(
    "--run",
    type=click.IntRange(0),
    default=0,
    help="Entries appended by a call at full speed: 1 is one by one; default batches, as many as are in flight.",
)
@click.option(
    "--protocol", type=click.Choice(["2", "3"]), default="2", show_default=True, help="Version of the wire protocol."
)
@click.option("--namespace", default="", metavar="NAME", help="Namespace of the ledgers; default `default`.")
@profile_option
@cluster_options
def write(
    ledgers: int,
    size: int,
    ensemble: str,
    write_quorum: int | None,
    ack_quorum: int | None,
    seconds: float,
    rate: float,
    outstanding: int,
    run: int,
    protocol: str,
    namespace: str,
    profile: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Append to new ledgers and report throughput and latency. The client's CPU time is reported, too.

    With --rate latency counts from the moment an entry was due. With --profile also: microseconds of CPU per entry by
    stage, of this client and of the bookies on this machine, and what copying, checksums, sending and syncing cost at
    least. Being looked at costs some speed.

    \b
    Example:
      buckram bench write --ledgers 100 --size 1024 --ensemble 3/3/2 --seconds 10
    """
    from buckram.cli.bench.load import WriteLoad
    from buckram.cli.bench.load import write as write_load

    shape = quorum(ensemble, write_quorum, ack_quorum)
    load = WriteLoad(ledgers, size, str(shape), seconds, rate, outstanding, namespace, run)

    async def main() -> dict[str, Any]:
        async with connected(uri, wire_protocol=int(protocol)) as client:
            if profile is None:
                return await write_load(client, load)
            watched = _watched(client, profile)
            figures = await write_load(client, load, measured=watched.recording)
            return {**figures, "profile": watched.finish(figures["acked"], size)}

    _show(run_async(main()), as_json)


@bench.command("read")
@click.option("--ledger", "ledger_id", type=click.IntRange(0), required=True, help="Id of the ledger.")
@click.option("--batch", type=click.IntRange(1), default=20_000, show_default=True, help="Entries per call.")
@click.option("--random", "at_random", is_flag=True, help="Read single entries at random places instead.")
@click.option(
    "--count", type=click.IntRange(1), default=50_000, show_default=True, help="Number of entries with --random."
)
@password_option
@profile_option
@cluster_options
def read(
    ledger_id: int,
    batch: int,
    at_random: bool,
    count: int,
    password: str,
    profile: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Read a ledger once and report entries per second. --profile is as with `bench write`.

    \b
    Example:
      buckram bench read --ledger 7
    """
    from buckram.cli.bench.load import read_random, read_sequential

    async def main() -> dict[str, Any]:
        async with connected(uri) as client, client.open(ledger_id, password=password) as reader:
            if reader.last_confirmed < 0:
                raise InvalidArgument(f"ledger {ledger_id} has no readable entry: write to it first")
            watched = _watched(client, profile) if profile is not None else None
            with watched.recording() if watched is not None else contextlib.nullcontext():
                figures = await (read_random(reader, count) if at_random else read_sequential(reader, batch))
            if watched is not None:
                size = round(figures["mb_per_s"] * 1e6 / max(1, figures["entries_per_s"]))
                figures["profile"] = watched.finish(figures["entries"], size)
            return figures

    _show(run_async(main()), as_json)
