"""Gateways of one cluster: each shows its address by an ephemeral key, and finds another one by a stream's lease.

A client is only ever sent to an address that is shown there, whatever a lease says. Not here: the lease itself
(`streams/write/lease.py`), sending a client on (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from buckram.errors import BuckramError, NoSuchKey
from buckram.metadata.layout import GATEWAYS
from buckram.net.tasks import TaskScope
from buckram.seams import MetadataStore

_LOOK_S = 2.0
_PAGE = 1000
_SIGN = re.compile(r"gateway-([0-9a-f]{12})\b.*")


class Peer(NamedTuple):
    """A gateway that is shown: its id and its URL, without a slash at its end."""

    id: str
    url: str


class Peers:
    """This gateway among the others. `start` shows it, `close` takes it away again."""

    def __init__(self, store: MetadataStore, url: str) -> None:
        self._keys, self._folder = store.keys, f"{store.own}/{GATEWAYS}"
        self.me = Peer(secrets.token_hex(6), url)
        self.sign = f"gateway-{self.me.id} at {url}"[:200]
        """What the leases of this gateway's writers say."""
        self._scope = TaskScope("gateways")

    async def start(self) -> None:
        """Show this gateway from now on; while the metadata store is away, as soon as it is back."""
        with suppress(BuckramError):
            await self._show()
        self._scope.spawn(self._keep(), "show")

    async def close(self) -> None:
        """Vanish. While the store is away the session's end does it. Idempotent."""
        await self._scope.close()
        with suppress(BuckramError):
            await self._keys.delete(self._key, (await self._keys.get(self._key)).version)

    async def url_of(self, sign: str) -> str | None:
        """The URL of the gateway that made a lease's sign or a ledger's mark, if it is another one and is shown now."""
        found = _SIGN.fullmatch(sign)
        if found is None or found[1] == self.me.id:
            return None
        try:
            return _url(found[1], (await self._keys.get(f"{self._folder}/{found[1]}")).value)
        except NoSuchKey:
            return None

    async def shown(self) -> list[Peer]:
        """All that are shown now, by their ids. MetadataUnavailable."""
        found: list[Peer] = []
        after = ""
        while page := await self._keys.children_with_values(self._folder, after=after, limit=_PAGE):
            after = page[-1][0]
            found += [Peer(name, url) for name, kept in page if (url := _url(name, kept.value)) is not None]
        return found

    @property
    def _key(self) -> str:
        return f"{self._folder}/{self.me.id}"

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            # Whoever may not write keys here is not shown, and is a gateway all the same.
            with suppress(BuckramError):
                await self._show()

    async def _show(self) -> None:
        try:
            await self._keys.get(self._key)
        except NoSuchKey:
            await self._keys.create(self._key, json.dumps({"url": self.me.url}).encode(), ephemeral=True)


def is_gateway(sign: str) -> bool:
    """Whether a lease says that a gateway has it, which may be gone."""
    return _SIGN.fullmatch(sign) is not None


def _url(name: str, value: bytes) -> str | None:
    try:
        url = json.loads(value)["url"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not name:
        return None
    return url.rstrip("/")


__all__ = ["Peer", "Peers", "is_gateway"]
