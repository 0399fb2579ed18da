"""Reuses ids of deleted ledgers at the end of some lives, as software does that does not know the used ids.

Bookies still hold the old ledger or its tombstone. The new ledger must accept its entries and end where its writer
closes it (I7, I8, I9). Ledgers of such software have no birth, so their creation time distinguishes them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.client.write.engine import LedgerAppender
from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import BuckramError
from buckram.types import LedgerId, Versioned
from simulator.engine.world import Died
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.writing import WriterActor

if TYPE_CHECKING:
    from buckram.bookie.storage.store import Store
    from simulator.ledgers.workload.stage import Stage

HOST = "a1"
MOST = 2
"""Maximum number of ids of one life that are used again."""
DEADLINE_S = 60.0


class ReusedIds:
    """Deletes up to MOST of the ledgers `present` and creates new ones with their ids."""

    def __init__(self, stage: Stage, present: list[LedgerId]) -> None:
        self.stage, self.world, self.plan = stage, stage.world, stage.plan
        self.judge, self.report = stage.world.judge, stage.world.report
        self._ledgers = present[:MOST]
        self._rng = stage.world.rng

    def possible(self) -> bool:
        """Return whether this can be checked: no bookie is missing or lost data, so no other fault explains a failure.

        The metadata store was never restored, so deleted ledgers stay deleted, and a bookie can read metadata within
        the time that a request may take.
        """
        net = self.plan.configs.net
        if self.judge.facts.restores or self.plan.pace.deadline_s(0.0, metadata_requests=6) >= net.request_timeout_s:
            return False
        for name, machine in self.world.machines.items():
            facts = self.judge.facts.bookie(name)
            if not machine.ready or facts.wiped or facts.damaged or facts.limbo or facts.liar or facts.reborn:
                return False
        return True

    async def run(self, first: RecovererActor) -> None:
        actor = WriterActor(self.stage, HOST)
        client = await actor.connect(20)
        if client is None or first.client is None:
            return
        for ledger_id in self._ledgers:
            await first.delete(first.client, ledger_id)
            if not self.judge.facts.ledger(ledger_id).deleted:
                continue
            tombstones = self._delete_from_bookies(ledger_id)
            await self._create_again(actor, client, first, ledger_id, "I9" if tombstones else "")

    def _stores(self) -> list[Store]:
        return [
            machine.bookie.store
            for machine in self.world.machines.values()
            if machine.bookie is not None and machine.bookie.store is not None
        ]

    def _delete_from_bookies(self, ledger_id: LedgerId) -> bool:
        """Delete the ledger from some bookies or none, as collection does. Return whether there is a tombstone."""
        if self._rng.random() < 0.5:
            for store in self._stores():
                if self._rng.random() < 0.7:
                    store.delete_ledger(ledger_id)
        records = [store.ledger(ledger_id) for store in self._stores()]
        return any(record is not None and record.tombstone for record in records)

    async def _create_again(
        self, actor: WriterActor, client: Client, first: RecovererActor, ledger_id: LedgerId, rule: str
    ) -> None:
        count, plan = self._rng.choice((0, 0, 1, 3)), self.plan

        async def write() -> None:
            writer = await self._create(client, ledger_id)
            actor.note(f"created ledger {ledger_id} again, for {count} entries")
            handle = self.judge.opened_writer(HOST, ledger_id, explicit=False, deferred=False)
            for _ in range(count):
                actor.append(writer, handle, actor.next_payload(), None, nowait=True)
                actor.sent += 1
            await asyncio.sleep(0)  # an append that found no room waits from now on
            await writer.flush()
            if self._rng.random() < 0.5:
                await writer.close()

        invariant = rule or ("I7" if count else "I8")
        try:
            async with asyncio.timeout(plan.pace.deadline_s(DEADLINE_S, syncs=200, metadata_requests=30)):
                await self.world.join(actor.process, write(), "an id again")
                recovered = await self._recover(first, ledger_id)
        except (BuckramError, Died, TimeoutError) as error:
            self.report.check(invariant, False, "ledger {} cannot be written under a used id: {!r}", ledger_id, error)
            return
        acked, closed = len(self.judge.facts.ledger(ledger_id).acked), self.judge.facts.ledger(ledger_id).closed
        self.report.check(
            invariant,
            recovered and acked == count and closed is not None and closed[0] == count - 1,
            "ledger {} was used again for {} entries, {} were acknowledged, and it ends at {}",
            ledger_id,
            count,
            acked,
            closed,
        )

    async def _recover(self, first: RecovererActor, ledger_id: LedgerId) -> bool:
        """Recover the ledger, in several attempts because a client's metadata may lag."""
        assert first.client is not None
        for _ in range(6):
            if await first.recover(first.client, ledger_id):
                return True
            await asyncio.sleep(1.0)
        return False

    async def _create(self, client: Client, ledger_id: LedgerId) -> Writer:
        """Create the ledger as Apache's client does if the application chooses the id: no used ids are known to it."""
        services, plan = client.services, self.plan
        size, width, acks = plan.shape
        found = await services.bookies.choose_fresh(Quorum(size, width, acks), degraded=False)
        record = created(
            size,
            width,
            acks,
            found.members,
            digest_type=plan.digest,
            password=plan.password,
            creation_time_ms=services.runtime.clock.wall_us() // 1000,
            creator_token=1 + self._rng.randrange(2**40),
        )
        tree = services.store.ledgers  # type: ignore[attr-defined]
        version = await tree.create(ledger_id, serialise(record), chosen=False, fresh=())
        return Writer(LedgerAppender(services, ledger_id, Versioned(record, version), password=plan.password))
