"""Shared parts of commands that run until they are stopped, and of those that serve HTTP: addresses, tokens, TLS."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from buckram.addresses import check_announced, check_reachable, parse_host
from buckram.config import TlsConfig
from buckram.errors import InvalidArgument
from buckram.runtime.net.security.secure_network import tls_of_environment

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server, and what it requires of clients."""

    host: str
    port: int
    advertise: str | None
    tokens: bool
    tls: TlsConfig | None
    ca: str
    """File of the authorities of other servers; empty: the system's authorities."""
    hosts: Sequence[str]
    pages: Sequence[str]

    @classmethod
    def of(cls, options: dict[str, Any]) -> ServerAddress:
        """Make the address from the values of `serving_options`, which are removed from `options`. Raises
        InvalidArgument."""
        advertise = options.pop("advertise")
        if advertise is not None and not advertise.startswith(("http://", "https://")):
            raise InvalidArgument(f"--advertise {advertise!r}: needs a URL such as http://10.0.0.7:8080")
        if advertise is not None:
            check_reachable(urlsplit(advertise).hostname or "", f"--advertise {advertise!r}")
        certificate, key, ca = (options.pop(name) for name in ("tls_cert", "tls_key", "tls_ca"))
        if bool(certificate) != bool(key):
            raise InvalidArgument("--tls-cert and --tls-key go together: give both, or none")
        ca = ca or tls_of_environment(os.environ).ca
        tls = TlsConfig("required", ca, certificate, key or "") if certificate else None
        rest = {name: options.pop(name) for name in ("host", "port", "tokens", "hosts", "pages")}
        rest["host"] = host = parse_host(rest["host"], "--host")
        if advertise is None:
            check_announced(host, f"--host {host}", "give --advertise URL, such as http://10.0.0.7:8080")
        return cls(advertise=advertise, tls=tls, ca=ca, **rest)


def serving_options(command: F) -> F:
    """Add the options from which `ServerAddress` is made."""
    for option in (
        click.option("--allow-origin", "pages", multiple=True, metavar="URL", help="Origin of pages that may use it."),
        click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name by which clients reach it."),
        click.option("--tls-ca", type=FILE, help="PEM file: who certifies other servers; default BUCKRAM_CA."),
        click.option("--tls-key", type=FILE, help="PEM file: the private key of the certificate; mode 0600."),
        click.option(
            "--tls-cert", type=FILE, help="PEM file: the certificate to show. With --tls-key the server speaks TLS."
        ),
        click.option("--tokens", is_flag=True, help="Ask clients for tokens of the cluster, and let grants decide."),
        click.option("--advertise", metavar="URL", help="Where other servers reach this one; default its address."),
        click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    ):
        command = option(command)
    return command


def stoppable(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin work that SIGINT and SIGTERM end; who awaits the task gets the error that ended the work otherwise."""
    begun, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, begun.cancel)

    async def ended() -> None:
        try:
            await asyncio.wait((begun,))
        finally:
            begun.cancel()
        if not begun.cancelled():
            begun.result()

    return asyncio.ensure_future(ended())


def stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
