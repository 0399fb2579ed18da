"""A bookie's server in front of a key store, with nothing behind it but the metadata service."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from buckram.bookie.service.metadata.metadata_service import MetadataService
from buckram.bookie.service.server import BookieServer
from buckram.config import BookieConfig, NetConfig
from buckram.core.security.key_access import KeyAccess
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.service.store import ServiceStore
from buckram.metadata.service.uri import ServiceUri
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.production import production_runtime
from buckram.seams import KeyStore

NET = NetConfig()


class _OnlyMetadata:
    """What a BookieServer needs of the parts of its service, where no request is about a ledger."""

    def __init__(self, keys: MetadataService) -> None:
        self.keys = keys
        self.adds = self.reads = self.polls = self

    def add(self, *_: object) -> None:
        raise AssertionError("no entries here")

    pump_soon = cancel = take_adds = add


class ServedMetadata:
    """Serves what `open_store` opens, at a port of its own."""

    def __init__(self, open_store: Callable[[], Awaitable[TreeStore]], access: KeyAccess | None = None) -> None:
        self.runtime = production_runtime()
        self.server = BookieServer(self.runtime, BookieConfig(port=0), NET)
        self.service = MetadataService(open_store, NET.max_frame_bytes, access)
        self.port = 0
        self.opened: list[ServiceKeys] = []

    async def start(self) -> None:
        self.port = await self.server.listen()
        self.server.serve(_OnlyMetadata(self.service))  # type: ignore[arg-type]

    async def open(self, session_s: float = 10.0) -> ServiceKeys:
        uri = ServiceUri((("127.0.0.1", self.port),))
        keys = ServiceKeys(uri, self.runtime.network, session_s=session_s)
        await keys.start()
        self.opened.append(keys)
        return keys

    def drop(self) -> None:
        """Cut every connection, as a failing network would."""
        for session in list(self.server.sessions):
            session.kill()

    async def close(self) -> None:
        for keys in self.opened:
            await keys.close()
        await self.server.close()
        await self.service.close()


def service_store(keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> ServiceStore:
    assert isinstance(keys, ServiceKeys)
    return ServiceStore(keys, uri, rng, takeover_wait_s=takeover_wait_s)
