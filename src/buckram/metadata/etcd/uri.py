"""Metadata URIs that mean etcd: etcd://[user:password@]host:port[,host:port]/root, etcds:// with TLS. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from buckram.addresses import join, with_port
from buckram.errors import ConfigError, InvalidArgument
from buckram.metadata.tree.key_grammar import check_key

DEFAULT_PORT = 2379
_EXAMPLE = "etcd://host:2379/buckram"
_RESERVED = re.compile(r"\d{3}|session")
_MAX_ROOT = 200


@dataclass(frozen=True, slots=True)
class EtcdUri:
    """A parsed URI. `hosts` are host:port each, `root` the prefix of all keys of the cluster."""

    hosts: tuple[str, ...]
    root: str
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the URI without the password: it is shown in messages and on command lines."""
        user = f"{self.user}@" if self.user else ""
        return f"{'etcds' if self.tls else 'etcd'}://{user}{','.join(self.hosts)}{self.root}"


def parse_etcd(uri: str) -> EtcdUri | None:
    """Parse a URI of etcd; return None if it means something else.

    Raises ConfigError, with what is wrong, for a malformed URI of etcd.
    """
    scheme, colon, rest = uri.strip().partition(":")
    if not colon or scheme.lower() not in ("etcd", "etcds"):
        return None
    shown = _shown(uri)
    if not rest.startswith("//"):
        raise _wrong(shown, "two slashes go before the hosts")
    # A password may hold slashes only as %2F, so the first slash ends the hosts.
    place, slash, path = rest[2:].partition("/")
    who, at, hosts = place.rpartition("@")
    user, _, password = who.partition(":")
    if at and not user:
        raise _wrong(shown, "the user's name is missing before '@'")
    if not slash or not path:
        raise _wrong(shown, "the root is missing, the prefix of all keys of this cluster")
    return EtcdUri(
        tuple(_host(shown, host.strip()) for host in hosts.split(",")),
        _root(shown, slash + path),
        scheme.lower() == "etcds",
        unquote(user),
        unquote(password),
    )


def _shown(uri: str) -> str:
    return re.sub(r"//([^/@:]*):[^/@]*@", r"//\1:***@", uri.strip())


def _host(uri: str, text: str) -> str:
    found = with_port(text, DEFAULT_PORT)
    if found is None:
        raise _wrong(uri, f"{text!r} is not a host:port")
    return join(*found)


def _root(uri: str, path: str) -> str:
    try:
        check_key(path)
    except InvalidArgument as error:
        raise _wrong(uri, f"the root is not usable: {error}") from None
    if len(path.encode()) > _MAX_ROOT:
        raise _wrong(uri, f"the root has {len(path.encode())} bytes, the limit is {_MAX_ROOT}")
    for part in path.split("/"):
        if _RESERVED.fullmatch(part):
            raise _wrong(uri, f"{part!r} in the root is taken: a cluster's keys are below such names")
    return path


def _wrong(uri: str, why: str) -> ConfigError:
    return ConfigError(f"metadata URI {uri!r}: {why}; a right one is like {_EXAMPLE}")
