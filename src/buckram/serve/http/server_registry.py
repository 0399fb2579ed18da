"""Registry of a cluster's servers of one kind: each shows its URL to the others by an ephemeral key in a folder.

The folder is below the cluster's own keys, where only administrators write: so an address that is shown there is a
server's, whatever a tenant writes as the leader of a database or into a lease. Not here: which clients are redirected.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from buckram.core.security.acl import ACL_PROPERTY, ACL_VERSION
from buckram.errors import BuckramError, NoSuchKey
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore

_LOOK_S = 2.0
_PAGE = 1000


class Peer(NamedTuple):
    """A server that is shown: its id and its URL, without a slash at its end."""

    id: str
    url: str


class ServerRegistry:
    """Entry of this server among those of its kind, and access to the others'. `start` makes it, `close` removes it."""

    def __init__(self, store: MetadataStore, folder: str, url: str) -> None:
        """`folder`: its name below the cluster's own keys, such as `gateways`."""
        self.keys, self.folder = store.keys, f"{store.own}/{folder}"
        self.me = Peer(secrets.token_hex(6), url)
        self._scope = TaskScope(folder)

    async def start(self) -> None:
        """Show this server from now on; while the metadata store is away, as soon as it is back."""
        with suppress(BuckramError):
            await self._show()
        self._scope.keep(self._keep, "show")

    async def close(self) -> None:
        """Vanish. While the store is away the session's end does it. Idempotent."""
        await self._scope.close()
        with suppress(BuckramError):
            await self.keys.delete(self._key, (await self.keys.get(self._key)).version)

    async def url_of_id(self, name: str) -> str | None:
        """The URL of the server with this id, if it is shown now. MetadataUnavailable."""
        try:
            return _url(name, (await self.keys.get(f"{self.folder}/{name}")).value)
        except NoSuchKey:
            return None

    async def shown(self) -> list[Peer]:
        """All that are shown now, by their ids. MetadataUnavailable."""
        found: list[Peer] = []
        after = ""
        while page := await self.keys.children_with_values(self.folder, after=after, limit=_PAGE):
            after = page[-1][0]
            found += [Peer(name, url) for name, kept in page if (url := _url(name, kept.value)) is not None]
        return found

    @property
    def _key(self) -> str:
        return f"{self.folder}/{self.me.id}"

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            # Whoever may not write keys here is not shown, and is a server all the same.
            with suppress(BuckramError):
                await self._show()

    async def _show(self) -> None:
        try:
            await self.keys.get(self._key)
        except NoSuchKey:
            await self.keys.create(self._key, shown_value(self.me.url), ephemeral=True)


def shown_value(url: str) -> bytes:
    """Return the value of a server's key: its URL, and the versions of grants that this release reads."""
    return json.dumps({"url": url, ACL_PROPERTY: str(ACL_VERSION)}).encode()


def _url(name: str, value: bytes) -> str | None:
    """Return the URL in a server's key; None if the value is not a server's."""
    try:
        url = json.loads(value)["url"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not name:
        return None
    return url.rstrip("/")
