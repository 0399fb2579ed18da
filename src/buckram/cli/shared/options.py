"""Options and values that several commands share: the cluster, quorums, `--json`, `--yes`, passwords, custom metadata.

What an option leads to is here, too: the client of a command, and asking before something is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buckram.cli.shared.context_file import cluster_of_context, context_option
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.interrupt import interruptible
from buckram.errors import BuckramError, ConfigError, InvalidArgument, NoSuchNamespace, NoSuchStream
from buckram.metadata.default import VARIABLE as METADATA
from buckram.metadata.default import default_uri

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.core.ledgers.quorum import Quorum
    from buckram.core.security.oidc import Issuer
    from buckram.metadata.tree.store import TreeStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DIGESTS = ("crc32c", "crc32", "mac", "dummy")


def quorum(text: str, write: int | None, ack: int | None) -> Quorum:
    """Return the quorum from `E` or `E/Qw/Qa` and the two other options. Defaults: Qw = E, Qa = the majority of Qw.
    Raises InvalidArgument if both forms name quorums."""
    from buckram.core.ledgers.quorum import Quorum

    if write is None and ack is None:
        return Quorum.parse(text)
    if "/" in text:
        raise InvalidArgument(f"--ensemble {text} names the quorums already: leave out --write-quorum and --ack-quorum")
    size = Quorum.parse(text).ensemble_size
    width = size if write is None else write
    return Quorum(size, width, width // 2 + 1 if ack is None else ack)


def metadata_option(command: F) -> F:
    """`--metadata` and `--context`: the cluster of a command."""
    return click.option(
        "--metadata",
        "uri",
        metavar="URI",
        envvar=METADATA,
        callback=cluster_of_context,
        help="The cluster, e.g. sqlite:///abs/path, zk://host:2181/ledgers or etcd://host:2379/buckram; default "
        "BUCKRAM_METADATA, else the context's, else the one in ./buckram-data.",
    )(context_option(command))


def server_metadata_option(command: F) -> F:
    """`--metadata` of what becomes a part of a cluster, which no context chooses."""
    return click.option(
        "--metadata",
        "uri",
        metavar="URI",
        envvar=METADATA,
        help="The cluster, e.g. sqlite:///abs/path, zk://host:2181/ledgers or etcd://host:2379/buckram; default "
        "BUCKRAM_METADATA, else the one in ./buckram-data; contexts do not count.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")(command)


def cluster_options(command: F) -> F:
    """`--metadata`, `--context` and `--json`, for a command that asks a cluster."""
    return metadata_option(json_option(command))


def prefix_option(command: F) -> F:
    return click.option("--prefix", default="", help="Only names that begin with this.")(command)


def raw_option(command: F) -> F:
    return click.option("--raw", is_flag=True, help="Print the bytes unchanged, even to a terminal.")(command)


def limit_option(command: F) -> F:
    return click.option("--limit", type=click.IntRange(1), help="Maximum number; default all.")(command)


def password_option(command: F) -> F:
    return click.option("--password", default="", help="The ledger's password; empty by default.")(command)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def quorum_options(default: str = "3/3/2") -> Callable[[F], F]:
    def decorate(command: F) -> F:
        shape = "E[/QW/QA]"
        for option in (
            click.option(
                "--ack-quorum",
                type=int,
                metavar="QA",
                help="Answers that acknowledge an entry; default the majority of QW.",
            ),
            click.option("--write-quorum", type=int, metavar="QW", help="Bookies that store each entry; default E."),
            click.option(
                "--ensemble",
                default=default,
                show_default=True,
                metavar=shape,
                help="Bookies of a ledger, and its quorums.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def ledger_options(command: F) -> F:
    """Add the options for the creation of a ledger: quorums, digest, password and custom metadata."""
    command = click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Custom metadata; repeatable.")(command)
    command = password_option(command)
    command = click.option(
        "--digest", type=click.Choice(DIGESTS), default="crc32c", show_default=True, help="Digest of each entry."
    )(command)
    return quorum_options()(command)


def custom_metadata(pairs: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"--meta {pair!r}: needs KEY=VALUE")
        if key in found:
            raise InvalidArgument(f"--meta {pair!r}: {key!r} is there already; give each key once")
        found[key] = value.encode()
    return found


def cluster_uri(given: str | None) -> str:
    """Return the URI in force; raises ConfigError, which tells how to start or name a cluster, if there is none."""
    return given or default_uri(os.environ, Path.cwd(), how="give --metadata URI")


def connected(
    uri: str | None, *, wire_protocol: int | None = None, service: str = ""
) -> AbstractAsyncContextManager[Client]:
    """Return the client of one command, configured by the environment. `service`: its name in telemetry, if it
    serves."""
    from dataclasses import replace

    from buckram.cluster import connect
    from buckram.config import load

    config, _ = load("client", None, os.environ, {"wire_protocol": wire_protocol})
    net, _ = load("net", None, os.environ)
    telemetry, _ = load("telemetry", None, os.environ)
    if service and not telemetry.service:
        telemetry = replace(telemetry, service=service)
    return _explained(connect(cluster_uri(uri), config=config, net=net, telemetry=telemetry))


@asynccontextmanager
async def _explained(opening: AbstractAsyncContextManager[Client]) -> AsyncIterator[Client]:
    """Yield a client; a NoSuchStream in the block becomes NoSuchNamespace if the namespace does not exist either."""
    async with opening as client:
        try:
            yield client
        except NoSuchStream as error:
            why: BuckramError = error
            try:
                await client.namespaces.get(error.stream.partition("/")[0])
            except NoSuchNamespace as missing:
                why = missing
            except BuckramError:
                pass  # whatever that is, it is not why
            raise why from None


@asynccontextmanager
async def metadata_of(uri: str | None) -> AsyncIterator[TreeStore]:
    """Yield the cluster's metadata store alone, for commands that need no bookie: a client costs half a second of
    imports."""
    from buckram.metadata.uri import open_store

    store = await open_store(cluster_uri(uri))
    try:
        await store.instance_id()  # ClusterNotInitialised, as a client says
        yield store
    finally:
        await store.close()


def read_toml(path: str | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    import tomllib

    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; leave out --config or name an existing TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}; correct the file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; --config needs a TOML file that can be read") from None


_CANCELLED_WITHIN_S = 3.0
"""Seconds to wait for the clean-up of cancelled work after Ctrl-C."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed; BUCKRAM_LOOP=asyncio switches it off."""
    import asyncio

    from buckram.runtime.process.process_setup import loop_factory

    try:
        with asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner, interruptible():
            return runner.run(main)
    finally:
        main.close()  # where it never began: Python would warn of it


def watch_async(main: Coroutine[Any, Any, None]) -> None:
    """Run like `run_async`, for commands that go on until Ctrl-C, which is their normal end."""
    try:
        run_async(_until_cancelled(main))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(Exit.OK) from None
    finally:
        main.close()


async def _until_cancelled(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. A cancellation that gets lost, because the interrupted step ended at the same moment, is
    repeated."""
    import asyncio

    task = asyncio.ensure_future(main)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCELLED_WITHIN_S)
        raise


def oidc_issuer() -> Issuer | None:
    """Return the issuer whose tokens a gateway or a server of databases accepts besides the cluster's own. Raises
    ConfigError."""
    from buckram.config import load
    from buckram.core.security.oidc import issuer_of

    return issuer_of(load("auth", None, os.environ)[0])


# -- asking before something is lost ----------------------------------------------------------------------


class Declined(click.ClickException):
    """A person answered no. The message names what was not done."""

    exit_code = Exit.FAILED


def confirm(question: str, yes: bool, refusal: str) -> None:
    """Ask where a person sits at a terminal; for what loses nothing, so that scripts need no `--yes`.

    Declined with `refusal`, which says what did not happen, when the answer is no.
    """
    if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Declined(refusal)


def confirm_loss(question: str, yes: bool, refusal: str) -> None:
    """Ask like `confirm`, for actions that cannot be undone: without a terminal and without `--yes` they are
    refused."""
    if not yes and not sys.stdin.isatty():
        raise InvalidArgument(f"{refusal}: there is no terminal to ask at; add --yes if that is what you want")
    confirm(question, yes, refusal)
