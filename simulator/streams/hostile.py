"""A hostile tenant: its stream's metadata name ledgers of others, and privileged servers act on them.

It writes as no honest client would, past all bookies, or asks a bookie that holds it to its grants (`gated.py`). The
servers are honest: clients that open, read or delete its stream here, and every janitor of the life. The rules of the
honest streams show whether their ledgers were touched (`heads.py:HeadWatch` looks at no stream of the tenant).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from buckram.cluster import Client
from buckram.core.streams.metadata.head import Head, Segment, decode_head, encode_head
from buckram.core.streams.names import StreamName
from buckram.errors import BuckramError, ForeignLedger, NoSuchStream
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor
from buckram.streams.shared.ledgers import retiring_op
from buckram.streams.shared.metadata import StreamStore
from buckram.types import LedgerId
from simulator.streams.facts import HOSTILE
from simulator.streams.gated import MOVES, Gated
from simulator.streams.maintenance import SETTINGS, MaintenanceActor

BAIT = StreamName(HOSTILE, "bait")


class Hostile(MaintenanceActor):
    """Names ledgers of others in its own stream's metadata, and has a server act on that."""

    crashed = "crash while acting for a hostile tenant"
    pause_s = 0.8
    _gate: tuple[Client, Gated] | None = None
    """The connection to a bookie, of the present process."""

    @property
    def bait(self) -> Namespace:
        assert self.client is not None
        return self.client.namespace(HOSTILE)

    async def work(self, stream: str) -> None:
        assert self.client is not None
        if not self.facts.owned:
            return
        with suppress(BuckramError):
            await self.client.namespaces.create(HOSTILE)
        with suppress(BuckramError):
            await self.bait.create(BAIT.stream, **self.plan.policy)
        ledger = self.rng.choice(sorted(self.facts.owned)[-8:])
        if self.rng.random() < 0.5:
            await self._ask()
            return
        how = self.rng.choice(("garbage", "open", "table", "intent"))
        try:
            await self._forge(ledger, how)
            self.note(f"ledger {ledger} stands in {BAIT} as {how}")
            await self._act()
        except ForeignLedger as error:
            self.report.situation("a hostile tenant was refused")
            self.note(str(error))

    async def _ask(self) -> None:
        """Ask a bookie, which refuses what is another's, and have a janitor act on what it let pass."""
        assert self.client is not None
        if self._gate is None or self._gate[0] is not self.client:
            store = self.world.store(self.process, self.rng)
            await store.keys.prepare()
            self._gate = self.client, Gated(store, BAIT, self.facts, self.report, self.rng)
        what = self.rng.choice(MOVES)
        self.note(f"asks a bookie: {what}")
        await self._gate[1].move(what)
        await Janitor(self.client, SETTINGS).clean()

    async def _forge(self, ledger: LedgerId, how: str) -> None:
        assert self.client is not None
        streams = StreamStore(self.client.services.store)
        key = streams.layout.head(BAIT)
        found = await streams.keys.get(key)
        head = decode_head(key, found.value)
        if how == "intent":
            await streams.keys.multi([retiring_op(streams, head.uid, ledger, head.epoch, 0)])
        else:
            await streams.keys.set(key, encode_head(_forged(head, ledger, how)), found.version)

    async def _act(self) -> None:
        """Clean, open, read or delete the hostile stream, as an honest server would."""
        assert self.client is not None
        match self.rng.choice(("clean", "open", "read", "delete")):
            case "clean":
                await Janitor(self.client, SETTINGS).clean()
            case "open":
                await (await self.bait.writer(BAIT.stream, create=False)).close()
            case "read":
                async for _ in self.bait.read(BAIT.stream):
                    pass
            case _:
                with suppress(NoSuchStream):
                    await self.bait.delete(BAIT.stream)


def _forged(head: Head, ledger: LedgerId, how: str) -> Head:
    if how == "garbage":
        return replace(head, garbage=(*head.garbage, ledger))
    row = Segment(head.next_number, ledger, head.end, head.created)
    if how == "open" and head.open_segment is None:
        return replace(head, tail=(*head.tail, row), next_number=head.next_number + 1)
    return replace(head, table=row, producers=row.number)


__all__ = ["BAIT", "Hostile"]
