"""`EtcdStore`: the MetadataStore on etcd.

All but the cluster's identity is metadata/tree/store, as for embedded stores.
"""

from __future__ import annotations

import random
import re

from buckram.errors import InvalidArgument, MalformedRecord, WrongCluster
from buckram.metadata.etcd.keys import EtcdKeys
from buckram.metadata.tree.store import TreeStore
from buckram.seams import Notify
from buckram.types import BookieId, BookieSet, LedgerId, Versioned

_MARGIN_S = 2.0
"""Seconds that etcd may take to end a session after its time to live."""
_TICKET = re.compile(r"[0-9a-f]{1,16}")


class EtcdStore(TreeStore):
    """The cluster below the keys' root. Closing the store closes the keys.

    A registration that is not ours is waited for as long as the session of its owner can last.
    """

    def __init__(self, keys: EtcdKeys, uri: str, rng: random.Random, *, takeover_wait_s: float | None = None) -> None:
        wait_s = keys.session.ttl_s + _MARGIN_S if takeover_wait_s is None else takeover_wait_s
        super().__init__(keys, uri, rng, takeover_wait_s=wait_s)
        self._etcd = keys
        self._instance_id = ""

    async def instance_id(self) -> str:
        """Return the cluster's UUID. Raises WrongCluster if it is not the cluster that this store began with."""
        found = await super().instance_id()
        if self._instance_id and found != self._instance_id:
            raise WrongCluster(
                f"{self.uri} is cluster {found}, it was {self._instance_id}: a new cluster was made in its "
                "place; connect again if that is intended"
            )
        self._instance_id = found
        return found

    async def _check_cluster(self) -> None:
        # A bookie that was away must not bring a removed cluster back, nor join the one that is made there next.
        await self.instance_id()

    async def list_ledgers(self, *, after: LedgerId = -1, limit: int = 1000) -> list[LedgerId]:
        found = await super().list_ledgers(after=after, limit=limit)
        if not found:
            await self.instance_id()  # a cluster that was removed is no cluster without ledgers
        return found

    async def read_ledgers(
        self, *, after: LedgerId = -1, limit: int = 1000
    ) -> list[tuple[LedgerId, Versioned | MalformedRecord]]:
        found = await super().read_ledgers(after=after, limit=limit)
        if not found:
            await self.instance_id()
        return found

    async def bookies(self, watch: Notify | None = None) -> BookieSet:
        found = await super().bookies(watch)
        if not found.writable and not found.readonly:
            await self.instance_id()  # ClusterNotInitialised says more than "no bookies"
        return found

    async def known_bookies(self) -> list[BookieId]:
        found = await super().known_bookies()
        if not found:
            await self.instance_id()
        return found

    def session_ticket(self) -> str:
        return f"{self._etcd.session.lease:x}" if self._etcd.session.lease else ""

    async def end_session(self, ticket: str) -> None:
        if not _TICKET.fullmatch(ticket):
            raise InvalidArgument(f"{ticket[:40]!r} is no ticket of an etcd session")
        await self._etcd.session.revoke(int(ticket, 16))

    async def nuke(self, instance_id: str | None, *, force: bool = False) -> int:
        """Remove the cluster with everything in it; return the number of keys removed.

        `instance_id` must be the cluster's, unless `force`. Raises WrongCluster, with nothing changed, while bookies
        are registered.
        """
        found = await self.instance_id()
        if not force and instance_id != found:
            raise WrongCluster(
                f"{self.uri} is cluster {found}, --instance-id says {instance_id}: give the id of the cluster that is "
                "to go (`buckram cluster check` shows it), or --force; nothing was changed"
            )
        listed = await self.bookies()
        registered = [*listed.writable, *listed.readonly]
        if registered:
            raise WrongCluster(
                f"{self.uri}: {len(registered)} bookies are registered ({', '.join(registered[:5])}): stop them "
                "first; nothing was changed"
            )
        return await self._etcd.remove_all()
