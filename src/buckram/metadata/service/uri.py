"""Metadata URIs that mean bookies: buckram://host:port[,host:port][/NAME], buckram+tls:// with TLS. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from buckram.addresses import join, with_port
from buckram.errors import ConfigError

DEFAULT_PORT = 3181
_EXAMPLE = "buckram://host:3181,host:3181/"
_NAME = re.compile(r"[A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class ServiceUri:
    """A parsed URI. `hosts` are bookies; `cluster` is the instance id that they must have, "" for any."""

    hosts: tuple[tuple[str, int], ...]
    cluster: str = ""
    tls: bool = False

    def __str__(self) -> str:
        hosts = ",".join(join(host, port) for host, port in self.hosts)
        return f"buckram{'+tls' if self.tls else ''}://{hosts}/{self.cluster}"


def parse_service(uri: str) -> ServiceUri | None:
    """Parse a URI of bookies; return None if it means something else.

    Raises ConfigError, with what is wrong, for a malformed URI of bookies.
    """
    scheme, colon, rest = uri.strip().partition(":")
    if not colon or scheme.lower() not in ("buckram", "buckram+tls"):
        return None
    if not rest.startswith("//"):
        raise _wrong(uri, "two slashes go before the hosts")
    place, _, cluster = rest[2:].partition("/")
    if not _NAME.fullmatch(cluster):
        raise _wrong(uri, f"{cluster!r} is not the instance id of a cluster; leave it out for any")
    hosts = tuple(_host(uri, text.strip()) for text in place.split(","))
    return ServiceUri(hosts, cluster, scheme.lower() == "buckram+tls")


def _host(uri: str, text: str) -> tuple[str, int]:
    found = with_port(text, DEFAULT_PORT)
    if found is None:
        raise _wrong(uri, f"{text!r} is not the host:port of a bookie")
    return found


def _wrong(uri: str, why: str) -> ConfigError:
    return ConfigError(f"metadata URI {uri.strip()!r}: {why}; a right one is like {_EXAMPLE}")
