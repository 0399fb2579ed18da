"""The log of commands that run for long, by `[log]`; SIGHUP reads the level again. And `buckram bookie log-level`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from buckram.addresses import host_port
from buckram.cli.shared.options import json_option, read_toml
from buckram.cli.shared.output import emit
from buckram.config import load
from buckram.errors import BuckramError, ConfigError, InvalidArgument

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
