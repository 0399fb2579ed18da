"""One URI names a cluster everywhere: reading it, and opening the store behind it."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from buckram.config import TlsConfig
from buckram.errors import ConfigError
from buckram.metadata.default import DATA_DIR, DATABASE, KNOWN
from buckram.metadata.etcd.uri import EtcdUri, parse_etcd
from buckram.metadata.service.uri import ServiceUri, parse_service
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.uri import ZkUri, parse_zookeeper
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.seams import KeyStore, MetadataStore, Network, Runtime

ZOOKEEPER_AUTH = "BUCKRAM_ZOOKEEPER_AUTH"
"""Variable with SCHEME:CREDENTIAL, such as digest:user:password, or sasl:user:password for a login by SASL DIGEST-MD5.
New nodes then belong to whoever has the same credential.
"""
ZOOKEEPER_CA, ZOOKEEPER_CERT = "BUCKRAM_ZOOKEEPER_CA", "BUCKRAM_ZOOKEEPER_CERT"
ZOOKEEPER_KEY = "BUCKRAM_ZOOKEEPER_KEY"
"""Variables with files for TLS to ZooKeeper, which is used if BUCKRAM_ZOOKEEPER_CA names the trusted certificates; the
others are this side's own certificate and key.
"""
ZOOKEEPER_SHARED = "BUCKRAM_ZOOKEEPER_SHARED"
"""Variable; `ledgers`: on a ZooKeeper that lets in nobody without a login, the nodes of Apache's ledger tree are made
for all who have one, and only for them (`metadata/zookeeper/access_lists.py`). `buckram up --secure --zookeeper` sets
it.
"""
ETCD_AUTH = "BUCKRAM_ETCD_AUTH"
"""Variable with USER:PASSWORD, for URIs that name no user."""
ETCD_CA, ETCD_CERT, ETCD_KEY = "BUCKRAM_ETCD_CA", "BUCKRAM_ETCD_CERT", "BUCKRAM_ETCD_KEY"
"""Variables with files for etcds://: trusted certificates, if not the system's, and this side's certificate and key."""
_SQLITE_TAKEOVER_WAIT_S = 2.0
"""Takeover wait for SQLite, seconds: registrations of a killed process are gone at once; this is for one that is
ending.
"""
_trees: dict[str, MemoryTree] = {}


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """A parsed URI.

    `scheme` is sqlite or memory; `path` the database's absolute path, or the name of the memory tree.
    """

    scheme: str
    path: str

    def __str__(self) -> str:
        return f"sqlite://{self.path}" if self.scheme == "sqlite" else f"memory:{self.path}"


def parse(uri: str) -> MetadataUri | ZkUri | EtcdUri | ServiceUri:
    """Read a metadata URI. Raises ConfigError, with what is wrong and what a right one looks like."""
    scheme, colon, rest = uri.strip().partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and colon:
        return MetadataUri("memory", rest.removeprefix("//").strip("/") or "default")
    if scheme == "sqlite" and colon:
        return _parse_sqlite(uri, rest)
    found = parse_etcd(uri) or parse_service(uri) or parse_zookeeper(uri)
    if found is not None:
        return found
    if colon and scheme in ("rocksdb", "oxia"):
        raise ConfigError(f"metadata URI {uri!r}: {scheme} is not supported; known are {KNOWN}")
    raise ConfigError(f"metadata URI {uri!r}: not understood; known are {KNOWN}")


def _parse_sqlite(uri: str, rest: str) -> MetadataUri:
    path = rest.removeprefix("//")  # taken literally: a path may hold any character, % included
    if not rest.startswith("///") or path.endswith("/") or "\0" in path:
        raise ConfigError(
            f"metadata URI {uri!r}: needs the absolute path of a file after three slashes, "
            f"for example sqlite://{Path.cwd() / DATA_DIR / DATABASE}"
        )
    # Four slashes are how others write an absolute path; SQLite would take the second for a host.
    return MetadataUri("sqlite", "/" + path.lstrip("/"))


async def open_store(uri: str, runtime: Runtime | None = None) -> TreeStore:
    """Open a session with the store that `uri` names. It may still be empty: see MetadataStore.initialise."""
    parsed = parse(uri)
    rng = random.SystemRandom() if runtime is None else runtime.rng
    if isinstance(parsed, ZkUri):
        return _open_zookeeper(parsed, rng)
    if isinstance(parsed, EtcdUri):
        return _open_etcd(parsed, rng)
    if isinstance(parsed, ServiceUri):
        return await _open_service(parsed, runtime, rng)
    keys: KeyStore
    if parsed.scheme == "memory":
        keys = MemoryKeys(_trees.setdefault(parsed.path, MemoryTree()))
        return TreeStore(keys, str(parsed), rng)
    keys = SqliteKeys(parsed.path)
    return TreeStore(keys, str(parsed), rng, takeover_wait_s=_SQLITE_TAKEOVER_WAIT_S)


async def _open_service(uri: ServiceUri, runtime: Runtime | None, rng: random.Random) -> TreeStore:
    from buckram.metadata.service.keys import ServiceKeys
    from buckram.metadata.service.store import ServiceStore
    from buckram.runtime.net.security.logins import secured_by
    from buckram.runtime.net.security.secure_network import SecureNetwork, tls_of_environment
    from buckram.runtime.net.tcp import TcpNetwork

    network: Network = TcpNetwork() if runtime is None else runtime.network
    if not isinstance(network, SecureNetwork) and (uri.tls or runtime is None):
        tls = tls_of_environment(os.environ)
        network = secured_by(os.environ, network, tls=replace(tls, mode="required") if uri.tls else tls)
    keys = ServiceKeys(uri, network)
    try:
        await keys.start()
    except BaseException:
        await keys.close()
        raise
    return ServiceStore(keys, str(uri), rng)


def _open_zookeeper(uri: ZkUri, rng: random.Random) -> TreeStore:
    from buckram.metadata.zookeeper.kazoo_session import KazooSession
    from buckram.metadata.zookeeper.store import ZooKeeperStore

    given = os.environ.get(ZOOKEEPER_AUTH, "")
    scheme, colon, credential = given.partition(":")
    if given and not (scheme and colon and credential):
        raise ConfigError(f"{ZOOKEEPER_AUTH}: needs SCHEME:CREDENTIAL, for example digest:user:password")
    if scheme == "sasl" and ":" not in credential:
        raise ConfigError(f"{ZOOKEEPER_AUTH}: SASL needs a user and a password, sasl:user:password")
    shared = os.environ.get(ZOOKEEPER_SHARED, "")
    if shared not in ("", "ledgers") or (shared and scheme != "sasl"):
        raise ConfigError(
            f"{ZOOKEEPER_SHARED}={shared}: needs `ledgers`, or nothing, and {ZOOKEEPER_AUTH}=sasl:user:password"
        )
    session = KazooSession(
        ",".join(uri.hosts),
        shared_root=uri.root if shared else "",
        acl="creator" if given else "open",
        auth=[(scheme, credential)] if given else [],
        tls=_zookeeper_tls(),
    )
    return ZooKeeperStore(session, uri.root, rng, manager=uri.manager, uri=str(uri))


def _zookeeper_tls() -> Callable[[], ssl.SSLContext] | None:
    ca, certificate, key = (os.environ.get(name, "") for name in (ZOOKEEPER_CA, ZOOKEEPER_CERT, ZOOKEEPER_KEY))
    if not ca:
        if certificate or key:
            raise ConfigError(
                f"{ZOOKEEPER_CERT}: TLS to ZooKeeper needs {ZOOKEEPER_CA}, the authorities that are trusted, as well"
            )
        return None
    try:
        return TlsFiles(TlsConfig("required", ca, certificate, key), server_side=False).context
    except ConfigError as error:
        raise ConfigError(f"{ZOOKEEPER_CA}, {ZOOKEEPER_CERT} and {ZOOKEEPER_KEY}: {error}") from None


def _open_etcd(uri: EtcdUri, rng: random.Random) -> TreeStore:
    from buckram.metadata.etcd.keys import EtcdKeys
    from buckram.metadata.etcd.store import EtcdStore

    given = os.environ.get(ETCD_AUTH, "")
    user, colon, password = (uri.user, ":", uri.password) if uri.user else given.partition(":")
    if given and not (user and colon):
        raise ConfigError(f"{ETCD_AUTH}: needs USER:PASSWORD")
    tls = _tls() if uri.tls else None
    keys = EtcdKeys(uri.hosts, uri.root, credentials=(user, password) if user else None, tls=tls)
    return EtcdStore(keys, str(uri), rng)


def _tls() -> ssl.SSLContext:
    ca, certificate, key = (os.environ.get(name) or None for name in (ETCD_CA, ETCD_CERT, ETCD_KEY))
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ETCD_CA} {ca}, {ETCD_CERT} {certificate}, {ETCD_KEY} {key}: {error}") from None
    return context


async def init_cluster(store: MetadataStore) -> str:
    """Make sure that a cluster exists behind this store; return its instance id."""
    return await store.initialise()
