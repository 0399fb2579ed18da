"""One URI names a cluster everywhere: reading it, the default, and opening the store behind it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from buckram.errors import ConfigError
from buckram.metadata.memory import MemoryKeys, MemoryTree
from buckram.metadata.sqlite import SqliteKeys
from buckram.metadata.store import TreeStore
from buckram.seams import KeyStore, MetadataStore, Runtime

VARIABLE = "BUCKRAM_METADATA"
DATA_DIR = "buckram-data"
DATABASE = "metadata.db"
_KNOWN = "sqlite:///abs/path, memory:NAME, zk://host:port/ledgers"
_SQLITE_TAKEOVER_WAIT_S = 2.0
"""A killed process's registrations are gone at once; this is for one that is just ending."""
_trees: dict[str, MemoryTree] = {}


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """`scheme` is sqlite or memory; `path` the database's absolute path, or the name of the memory tree."""

    scheme: str
    path: str

    def __str__(self) -> str:
        return f"sqlite://{self.path}" if self.scheme == "sqlite" else f"memory:{self.path}"


def parse(uri: str) -> MetadataUri:
    """Read a metadata URI; ConfigError says what is wrong and what a right one looks like."""
    scheme, colon, rest = uri.strip().partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and colon:
        return MetadataUri("memory", rest.removeprefix("//").strip("/") or "default")
    if scheme == "sqlite" and colon:
        return _parse_sqlite(uri, rest)
    kind = scheme.split("+")[0]
    if (colon and kind in ("zk", "metadata-store")) or _looks_like_hosts(uri):
        raise ConfigError(
            f"metadata URI {uri!r}: this Buckram has no ZooKeeper store yet; use sqlite:///abs/path on one machine"
        )
    if colon and kind in ("etcd", "rocksdb", "oxia"):
        raise ConfigError(f"metadata URI {uri!r}: {kind} is not supported; known are {_KNOWN}")
    raise ConfigError(f"metadata URI {uri!r}: not understood; known are {_KNOWN}")


def _parse_sqlite(uri: str, rest: str) -> MetadataUri:
    path = rest.removeprefix("//")  # taken literally: a path may hold any character, % included
    if not rest.startswith("///") or path.endswith("/") or "\0" in path:
        raise ConfigError(
            f"metadata URI {uri!r}: needs the absolute path of a file after three slashes, "
            f"for example sqlite://{Path.cwd() / DATA_DIR / DATABASE}"
        )
    return MetadataUri("sqlite", path)


def _looks_like_hosts(uri: str) -> bool:
    """The bare host:port[,host:port] form that Pulsar's tools take."""
    hosts = uri.partition("/")[0].replace(";", ",").split(",")
    return all(host.rpartition(":")[0] and host.rpartition(":")[2].isdigit() for host in hosts)


def sqlite_uri(path: Path) -> str:
    return f"sqlite://{path.absolute()}"


def default_uri(environment: Mapping[str, str], directory: Path) -> str:
    """BUCKRAM_METADATA, else the cluster that `buckram up` started in `directory`; ConfigError if there is neither."""
    given = environment.get(VARIABLE, "")
    if given:
        return given
    database = directory / DATA_DIR / DATABASE
    if database.exists():
        return sqlite_uri(database)
    raise ConfigError(
        f"no cluster is named: run `buckram up` in {directory.absolute()}, or give --metadata URI, or set {VARIABLE} "
        f"({_KNOWN})"
    )


async def open_store(uri: str, runtime: Runtime | None = None) -> MetadataStore:
    """A session with the store that `uri` names. It may still be empty: see MetadataStore.initialise."""
    parsed = parse(uri)
    rng = random.SystemRandom() if runtime is None else runtime.rng
    keys: KeyStore
    if parsed.scheme == "memory":
        keys = MemoryKeys(_trees.setdefault(parsed.path, MemoryTree()))
        return TreeStore(keys, str(parsed), rng)
    keys = SqliteKeys(parsed.path)
    return TreeStore(keys, str(parsed), rng, takeover_wait_s=_SQLITE_TAKEOVER_WAIT_S)


async def init_cluster(store: MetadataStore) -> str:
    """Make sure that a cluster exists behind this store; its instance id."""
    return await store.initialise()
