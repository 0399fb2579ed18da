"""Metadata URIs that mean ZooKeeper, as Apache BookKeeper and Pulsar write them. Pure; others are metadata/uri."""

from __future__ import annotations

import re
from dataclasses import dataclass

from buckram.addresses import join, read_address, with_port
from buckram.errors import ConfigError
from buckram.metadata.zookeeper.ledger_managers import MANAGERS, Manager, root_problem

DEFAULT_PORT = 2181
DEFAULT_ROOT = "/ledgers"
_EXAMPLE = "zk://host:2181/ledgers"
_PULSAR = "metadata-store"
_FROM_LAYOUT = ("null", "")


@dataclass(frozen=True, slots=True)
class ZkUri:
    """A parsed URI. `hosts` are host:port each, `root` the cluster's node; `manager` None takes the one in LAYOUT."""

    hosts: tuple[str, ...]
    root: str = DEFAULT_ROOT
    manager: Manager | None = None

    def __str__(self) -> str:
        """Return the form that every shell takes unquoted."""
        return f"zk{f'+{self.manager.name}' if self.manager else ''}://{','.join(self.hosts)}{self.root}"


def parse_zookeeper(uri: str) -> ZkUri | None:
    """Parse a URI of ZooKeeper; return None if it means something else.

    Raises ConfigError, with what is wrong, for a malformed URI of ZooKeeper. Understood: zk[+manager]://hosts/root,
    metadata-store:[zk:]hosts[/chroot], hosts[/root]; hosts are separated by commas or semicolons. The path is the
    ledgers root; in Pulsar's form it is what /ledgers is below.
    """
    given = uri.strip()
    if _looks_like_hosts(given):  # first: a host may be called zk
        return _bare(uri, given)
    scheme, colon, rest = given.partition(":")
    kind, _, manager = scheme.lower().partition("+")
    if colon and kind == "zk":
        if not rest.startswith("//"):
            raise _wrong(uri, "two slashes go before the hosts, and the path is the ledgers root, not a chroot")
        hosts, slash, path = rest[2:].partition("/")
        if not slash:
            raise _wrong(uri, "the ledgers root is missing")
        return ZkUri(_hosts(uri, hosts), _root(uri, slash + path), _manager(uri, manager.split("+")[0]))
    if colon and kind == _PULSAR:
        inner = rest.removeprefix("zk:").removeprefix("//")
        if re.match(r"[a-z]+:", inner) and not re.match(r"[^:/,;]+:\d", inner):
            raise _wrong(uri, "of Pulsar's metadata stores only zk: is supported")
        hosts, slash, path = inner.partition("/")
        return ZkUri(_hosts(uri, hosts), (_root(uri, slash + path) if slash else "") + DEFAULT_ROOT)
    return None


def _bare(uri: str, text: str) -> ZkUri:
    hosts, slash, path = text.partition("/")
    return ZkUri(_hosts(uri, hosts), _root(uri, slash + path) if slash else DEFAULT_ROOT)


def _looks_like_hosts(text: str) -> bool:
    """Return whether it is host:port[,host:port], which Apache's and Pulsar's older tools take."""
    hosts = text.partition("/")[0].replace(";", ",").split(",")
    return all((found := read_address(host)) is not None and found.port is not None for host in hosts)


def _hosts(uri: str, text: str) -> tuple[str, ...]:
    hosts = []
    for host in text.replace(";", ",").split(","):
        found = with_port(host.strip(), DEFAULT_PORT)
        if found is None or not _is_name(found[0]):
            raise _wrong(uri, f"{host.strip()!r} is not a host:port")
        hosts.append(join(*found))
    return tuple(hosts)


def _is_name(host: str) -> bool:
    """Return whether a resolver takes it: labels of 1 to 63 characters, a dot at the end is allowed."""
    return ":" in host or all(1 <= len(label) <= 63 for label in host.removesuffix(".").split("."))


def _root(uri: str, path: str) -> str:
    if path == "/":
        raise _wrong(uri, "the ledgers root is missing")
    problem = root_problem(path)
    if problem is not None:
        raise _wrong(uri, problem)
    return path


def _manager(uri: str, name: str) -> Manager | None:
    if name in _FROM_LAYOUT:
        return None
    if name == "legacyhierarchical":
        raise _wrong(uri, "that manager cannot be asked for, not in Apache's URIs either; with zk:// LAYOUT decides")
    if name == "ms":
        raise _wrong(uri, "the ms manager keeps ledgers outside ZooKeeper and is not supported")
    if name not in MANAGERS:
        raise _wrong(uri, f"{name!r} is not a ledger manager; known are flat, hierarchical, longhierarchical, null")
    return MANAGERS[name]


def _wrong(uri: str, why: str) -> ConfigError:
    return ConfigError(f"metadata URI {uri!r}: {why}; a right one is like {_EXAMPLE}")
