"""A bookie behind a door, its certificates, and tokens for it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.bookie_kit import CONFIG, STORE

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.process import Bookie
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.config import AuthConfig, NetConfig, TlsConfig
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.logins import TokenLogin
from buckram.runtime.net.security.secure_network import SecureNetwork
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.production import production_runtime


class Files:
    """An authority with a bookie's and a client's certificate, and settings that use them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        bookie = self.authority.bookie("bookie", ["127.0.0.1", "localhost"])
        client = self.authority.client("client", "alice", units=("0:ops,dev",))
        ca = str(self.authority.certificate)
        self.bookie = TlsConfig(
            "required", ca, str(bookie.certificate), str(bookie.key), client_certificates="optional"
        )
        self.client = TlsConfig("required", ca)
        self.known_client = TlsConfig("required", ca, str(client.certificate), str(client.key))


@dataclass
class Guarded:
    """A running bookie, its metadata opened directly, and how to reach it."""

    bookie: Bookie
    store: TreeStore
    security: SecurityStore

    @property
    def port(self) -> int:
        assert self.bookie.info is not None
        assert self.bookie.info.address is not None
        return self.bookie.info.address.port

    @property
    def service(self) -> str:
        return f"buckram://127.0.0.1:{self.port}/"

    async def token(self, subject: str = "alice", *roles: str, lasts_s: float = 3600.0) -> str:
        now = time.time()
        return (await self.security.create_token(subject, roles, now, now + lasts_s))[1]

    def network(self, tls: TlsConfig | None = None, token: str = "") -> SecureNetwork:
        files = None if tls is None else TlsFiles(tls, server_side=False)
        return SecureNetwork(TcpNetwork(local=False), files, login=(lambda: TokenLogin(token)) if token else None)


@asynccontextmanager
async def guarded(
    directory: Path,
    tls: TlsConfig | None = None,
    auth: AuthConfig | None = None,
    *,
    first_s: float = 3.0,
    login_s: float = 10.0,
    events: AuditLog | None = None,
) -> AsyncIterator[Guarded]:
    uri = f"sqlite://{directory}/metadata.db"
    os.makedirs(directory / "bookie", exist_ok=True)
    store = await open_store(uri)
    await store.initialise()
    disk = LocalDisk(str(directory / "bookie"), "inline")
    door = ConnectionGate(tls or TlsConfig(), auth, first_s=first_s, login_s=login_s)
    made = Bookie(
        production_runtime(),
        disk,
        store,
        CONFIG,
        STORE,
        NetConfig(),
        door=door,
        open_store=lambda: open_store(uri),
        events=events,
    )
    await made.start()
    try:
        yield Guarded(made, store, SecurityStore(store))
    finally:
        await made.stop()
        await store.close()
        disk.close()
