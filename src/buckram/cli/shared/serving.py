"""Shared parts of commands that run until they are stopped, and of those that serve HTTP.

Those are the options of a server's address, tokens and TLS, the option --limit NAME=VALUE for all limits that its
errors name, the notification of systemd (`Type=notify`) that a service is ready, and the log of the command, by
`[log]`, whose level SIGHUP reads again. `buckram bookie log-level` sets that level as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from buckram.addresses import check_announced, check_reachable, host_port, parse_host
from buckram.bounds import is_duration
from buckram.cli.shared import values
from buckram.cli.shared.options import json_option, read_toml
from buckram.cli.shared.output import emit
from buckram.config import TlsConfig, load
from buckram.errors import BuckramError, ConfigError, InvalidArgument
from buckram.runtime.net.security.secure_network import tls_of_environment

if TYPE_CHECKING:
    from buckram.runtime.logs.process_log import Log

LEVEL = "log.level"
"""The setting's name at the HTTP API."""
PATH = "/api/v1/config/server_config"
SECONDS = 10.0

log = logging.getLogger("buckram.log")


def service_log(default: str = "info", config_file: str | None = None) -> AbstractContextManager[Log]:
    """Log lines to standard error during the context, as [log] configures. Raises ConfigError for an unknown level."""
    from buckram.runtime.logs.process_log import logging_to

    config, _ = load("log", read_toml(config_file), os.environ)
    return logging_to(sys.stderr, config, os.environ, default)


def level_on_hangup(loop: asyncio.AbstractEventLoop, running: Log, config_file: str | None) -> None:
    """Read the log level from the file again at SIGHUP. At a terminal nothing changes: there SIGHUP ends the
    process."""
    if sys.stdin is None or not sys.stdin.isatty():
        loop.add_signal_handler(signal.SIGHUP, _read_again, running, config_file)


def _read_again(running: Log, config_file: str | None) -> None:
    try:
        config, _ = load("log", read_toml(config_file), os.environ)
        running.configure(config)
    except ConfigError as error:
        log.error("the level of the log is unchanged: %s", error)


@click.command("log-level")
@click.argument("address", metavar="HOST:PORT")
@click.argument("level", required=False)
@json_option
def log_level(address: str, level: str | None, as_json: bool) -> None:
    """Show or change the level of a running bookie's log. A change holds until the bookie ends.

    HOST:PORT is where its HTTP API is (`bookie run --http`). LEVEL is debug, info, warning or error, optionally
    followed by LOGGER=LEVEL for single parts. If the bookie requires logins, BUCKRAM_TOKEN has to be an
    administrator's.

    \b
    Examples:
      buckram bookie log-level 127.0.0.1:8080
      buckram bookie log-level 127.0.0.1:8080 "info buckram.store=debug"
    """
    from buckram.runtime.logs.line_format import parse_levels

    host_port(address, f"HOST:PORT {address!r}")
    if level is not None:
        parse_levels(level, "LEVEL")
        _asked(address, "PUT", json.dumps({LEVEL: level}))
    found = json.loads(_asked(address, "GET")).get(LEVEL, "")
    if as_json:
        emit({"address": address, "level": found})
    else:
        print(found)


def _asked(address: str, method: str, body: str | None = None) -> str:
    import urllib.error
    import urllib.request

    headers = {"Content-Type": "application/json"}
    token = os.environ.get("BUCKRAM_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    sent = None if body is None else body.encode()
    request = urllib.request.Request(f"http://{address}{PATH}", sent, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            text: Any = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(1000).decode(errors="replace").strip()
        if error.code == 400:
            raise InvalidArgument(said) from None
        raise BuckramError(f"the bookie at {address} refuses this with status {error.code}: {said}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise BuckramError(
            f"no HTTP API of a bookie answers at {address} ({why}); give the address of `bookie run --http`"
        ) from None
    return str(text.decode(errors="replace"))


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
FILE = click.Path(exists=True, dir_okay=False)


# -- addresses, tokens, TLS -------------------------------------------------------------------------------


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
        click.option(
            "--allow-origin",
            "pages",
            multiple=True,
            metavar="URL",
            help="Origin of web pages that may use it; repeatable.",
        ),
        click.option(
            "--allow-host",
            "hosts",
            multiple=True,
            metavar="NAME",
            help="Host name by which clients reach it; repeatable.",
        ),
        click.option(
            "--tls-ca", type=FILE, help="PEM file: the authorities that sign other servers; default BUCKRAM_CA."
        ),
        click.option("--tls-key", type=FILE, help="PEM file: the private key of the certificate; mode 0600."),
        click.option(
            "--tls-cert", type=FILE, help="PEM file: the certificate to show. With --tls-key the server speaks TLS."
        ),
        click.option("--tokens", is_flag=True, help="Require tokens of the cluster, and apply grants."),
        click.option(
            "--advertise", metavar="URL", help="URL at which other servers reach this one; default its address."
        ),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="TCP port; 0 picks a free one."
        ),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    ):
        command = option(command)
    return command


# -- running until it is stopped --------------------------------------------------------------------------


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


# -- limits -----------------------------------------------------------------------------------------------

_BYTES = ("bytes", "bytes_per_s")


def limit_option(*kinds: type) -> Callable[[F], F]:
    """Return the option for the fields of these dataclasses."""
    names = sorted(field.name for kind in kinds for field in fields(kind))

    def complete(_context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        return [f"{name}=" for name in names if name.startswith(begun)]

    return click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=complete,
        help=f"A limit, as errors name it; repeatable. Names: {', '.join(names)}. Durations as 10s, sizes as 64MiB.",
    )


class ChosenLimits:
    """Values given with --limit. Raises InvalidArgument for one that is malformed or given twice."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given: dict[str, str] = {}
        for one in given:
            name, equals, text = one.partition("=")
            if not equals or not text:
                raise InvalidArgument(f"--limit {one!r}: needs NAME=VALUE, such as result_bytes=128MiB")
            if name in self._given:
                raise InvalidArgument(f"--limit {name}: is given twice; give it once")
            self._given[name] = text

    def of(self, *limits: T) -> list[T]:
        """Return these limits with the given values applied. Raises InvalidArgument for a name that none of them
        has."""
        known = {field.name: field for one in limits for field in fields(one)}  # type: ignore[arg-type]
        for name in self._given:
            if name not in known:
                raise InvalidArgument(f"--limit {name}: there is no such limit; there are {', '.join(sorted(known))}")
        return [self._changed(one) for one in limits]

    def _changed(self, limits: T) -> T:
        found: Mapping[str, Any] = {
            field.name: _value(field, self._given[field.name])
            for field in fields(limits)  # type: ignore[arg-type]
            if field.name in self._given
        }
        try:
            return replace(limits, **found)  # type: ignore[type-var]
        except InvalidArgument as error:
            raise InvalidArgument(f"--limit {error}") from None


def _value(field: Field[Any], text: str) -> float:
    what = f"--limit {field.name}"
    if is_duration(field):
        seconds = values.duration(what, text)
        return seconds if isinstance(field.default, float) or seconds != int(seconds) else int(seconds)
    if field.name.endswith(_BYTES):
        return values.size(what, text)
    if not text.isascii() or not text.isdecimal():
        raise InvalidArgument(f"{what} {text!r}: needs a whole number")
    return int(text)


# -- systemd ----------------------------------------------------------------------------------------------

NOTIFY_VARIABLE = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Send READY=1 to the socket named by the environment; does nothing without one, or if it cannot be reached."""
    name = os.environ.get(NOTIFY_VARIABLE, "")
    if not name.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(b"READY=1", f"\0{name[1:]}" if name.startswith("@") else name)


# -- garbage ----------------------------------------------------------------------------------------------


def leave_start_to_itself() -> None:
    """Collect the garbage of a server's start, and have later collections pass over all that is left of it.

    A full collection visits every object that Python follows. More than 100,000 of them belong to modules and live as
    long as the process: finding them again would stop the loop for 10 to 20 ms each time.
    """
    gc.collect()
    gc.freeze()
