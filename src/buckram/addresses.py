"""Addresses as text: HOST:PORT, [::1]:PORT, host names, and which of them others can connect to. Pure.

The only parser of addresses in metadata URIs, options, settings, ids of bookies and headers of requests. URLs with a
scheme and a path are `urllib.parse.urlsplit`'s.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from buckram.errors import ConfigError
from buckram.types import BookieAddress

_NAME, _IPV6 = re.compile(r"[\w.-]{1,253}"), re.compile(r"[0-9A-Fa-f:.]+(%[\w.-]{1,32})?", re.ASCII)
_EXAMPLE = "127.0.0.1:9181 or [::1]:9181"
_MAX_PORT = 65_535


class Address(NamedTuple):
    """Host, without brackets, and port; None if none was given."""

    host: str
    port: int | None


def read_address(text: str) -> Address | None:
    """Parse HOST, HOST:PORT, ::1, [::1] or [::1]:PORT; None for anything else."""
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed or not _is_ipv6(host) or (port and not port.startswith(":")):
            return None
    elif _is_ipv6(text):
        return Address(text, None)
    else:
        host, colon, port = text.partition(":")
        port = colon + port
        if not _NAME.fullmatch(host):
            return None
    if not port:
        return Address(host, None)
    digits = port[1:]
    if not (digits.isascii() and digits.isdigit()) or int(digits[:6]) > _MAX_PORT:
        return None
    return Address(host, int(digits))


def host_port(text: str, what: str) -> tuple[str, int]:
    """Parse HOST:PORT; the host is returned without brackets. Raises ConfigError, whose message begins with `what`."""
    found = read_address(text)
    if found is not None and found.port is not None:
        return found.host, found.port
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdigit() and int(port[:6]) > _MAX_PORT:
        raise ConfigError(
            f"{what}: port {port[:20]} is over the limit of {_MAX_PORT}; needs HOST:PORT such as {_EXAMPLE}"
        )
    if text.count(":") > 1 and not text.startswith("["):
        raise ConfigError(f"{what}: an IPv6 address stands in brackets before its port, for example [::1]:9181")
    raise ConfigError(f"{what}: needs HOST:PORT, for example {_EXAMPLE}")


def parse_address(text: str, what: str) -> BookieAddress:
    """Parse an address as `host_port` does; the error names the option or setting `what`."""
    return BookieAddress(*host_port(text, f"{what} = {text!r}"))


def parse_host(text: str, what: str) -> str:
    """Return a name or an address without its brackets. Raises ConfigError if there is a port."""
    found = read_address(text)
    if found is None or found.port is not None:
        raise ConfigError(f"{what} {text[:100]!r}: needs a name or an address without a port, such as 10.0.0.7 or ::1")
    return found.host


def with_port(text: str, port: int) -> tuple[str, int] | None:
    """Return the host and its port, `port` if none was given; None for what is no address with a port from 1 on."""
    found = read_address(text)
    if found is None or found.port == 0:
        return None
    return found.host, found.port or port


def address_of_id(bookie_id: str) -> BookieAddress | None:
    """Return the address in a bookie id of the form host:port; None for any other id. Other software writes IPv6
    addresses there without brackets.
    """
    host, _, digits = bookie_id.rpartition(":")
    if len(digits) > len("65535"):
        return None
    found = read_address(f"[{host}]:{digits}" if _is_ipv6(host) else bookie_id)
    return None if found is None or found.port is None else BookieAddress(found.host, found.port)


def is_unspecified(host: str) -> bool:
    """Return whether a host means all addresses of the machine: a server can listen there and nobody can connect."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host in ("", "*")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from its own machine only: each machine has this address."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def check_reachable(host: str, what: str) -> str:
    """Return the host. ConfigError, which begins with `what`, for one that nobody can connect to."""
    if is_unspecified(host):
        raise ConfigError(
            f"{what}: {host or 'no host'} means every address of a machine, to which no client can connect: "
            "give the name or address by which others reach this machine, such as 10.0.0.7 or bookie-1.example.org"
        )
    return host


def check_announced(host: str, what: str, cure: str) -> str:
    """Return the host where a server listens, to announce it to others if no other address is set. Raises ConfigError,
    which begins with `what`, for one that nobody can connect to; `cure` tells how to set another one.
    """
    if is_unspecified(host):
        raise ConfigError(f"{what} listens on all addresses, so clients have to know which one to use: {cure}")
    return host


def loopback(host: str) -> str:
    """Return the address at which a server that listens on `host` is reached from its own machine."""
    if not is_unspecified(host):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def join(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return str(BookieAddress(host, port))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return _IPV6.fullmatch(text) is not None  # the name of an interface may be anything
