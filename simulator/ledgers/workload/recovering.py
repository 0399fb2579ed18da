"""A client that recovers ledgers while they are being written; sometimes it deletes, repairs or attacks them."""

from __future__ import annotations

from buckram.cluster import Client
from buckram.core.wire.messages import Add, Read, Request, WriteLac
from buckram.errors import BuckramError, RecoveryFailed
from buckram.types import EntryId, LedgerId
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.ledgers.workload.reading import read_and_report
from simulator.ledgers.workload.stage import Actor


class RecovererActor(Actor):
    """Recovers ledgers while they are being written; sometimes deletes or repairs them, or uses a wrong key."""

    async def run(self) -> None:
        await self.nap(self.plan.busy_s)
        client = await self.connect()
        if client is None:
            return
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            await self.nap(self.plan.busy_s)
            if self.stage.over or not self.stage.ledgers:
                return
            ledger_id = self.rng.choice(self.stage.ledgers)
            roll = self.rng.random()
            try:
                if self.plan.attacker and roll < 0.7:
                    await self.world.join(self.process, self._attack(client, ledger_id), "attack")
                elif self.plan.deleting and roll < 0.4:
                    await self.delete(client, ledger_id)
                elif await self.recover(client, ledger_id) and self.plan.repairing:
                    await self.repair(client, ledger_id)
            except Died:
                self.note("died")
                return

    async def recover(self, client: Client, ledger_id: LedgerId) -> bool:
        """Recover the ledger, and return whether this succeeded. Raises Died."""

        async def work() -> tuple[EntryId, int]:
            reader = await client.recover(ledger_id, password=self.plan.password)
            if self.rng.random() < 0.5 and reader.last_confirmed >= 0:
                await read_and_report(
                    self, reader, "read", 0, reader.last_confirmed, lambda: reader.read(0, reader.last_confirmed)
                )
            last, length = reader.last_confirmed, reader.length or 0
            await reader.close()
            return last, length

        self.note(f"recovers ledger {ledger_id}")
        self.judge.recovery_started(self.host, ledger_id)
        last: EntryId | None = None
        length = 0
        try:
            last, length = await self.world.join(self.process, work(), "recover")
            self.note(f"recovered ledger {ledger_id}: last entry {last}, {length} bytes")
        except BuckramError as error:
            self.note(f"recovery of ledger {ledger_id} failed: {describe(error)}: {error}")
            if isinstance(error, RecoveryFailed) and "acknowledged entries are missing" in str(error):
                self.world.report.situation("recovery refused below a promise")
        finally:
            self.judge.recovery_ended(self.host, ledger_id, last, length)
        return last is not None

    async def delete(self, client: Client, ledger_id: LedgerId) -> None:
        self.note(f"deletes ledger {ledger_id}")
        self.judge.recovery_started(self.host, ledger_id)
        try:
            await self.world.join(self.process, client.delete(ledger_id, password=self.plan.password), "delete")
            self.judge.facts.ledger(ledger_id).delete_returned = True
            self.note(f"deleted ledger {ledger_id}")
        except BuckramError as error:
            self.note(f"delete of ledger {ledger_id} failed: {describe(error)}: {error}")
        finally:
            self.judge.recovery_ended(self.host, ledger_id, None, None)

    async def repair(self, client: Client, ledger_id: LedgerId) -> bool:
        """Repair the ledger, and return whether it is healthy now. Raises Died."""
        self.judge.repair(self.host, ledger_id, begins=True)
        try:
            report = await self.world.join(
                self.process, client.repair(ledger_id, password=self.plan.password), "repair"
            )
        except BuckramError as error:
            self.note(f"repair of ledger {ledger_id} failed: {describe(error)}: {error}")
            return False
        finally:
            self.judge.repair(self.host, ledger_id, begins=False)
        self.note(f"repaired ledger {ledger_id}: {report}")
        return report.healthy

    async def _attack(self, client: Client, ledger_id: LedgerId) -> None:
        """Send requests with a wrong master key, which must change nothing (F14)."""
        facts = self.judge.facts.ledger(ledger_id)
        metadata = facts.metadata
        if metadata is None or facts.digest is None:
            return
        wrong = b"w" * 20
        entry = len(facts.pushed)
        body = facts.digest.seal(ledger_id, entry, entry - 1, 1, b"x")
        packet = facts.digest.seal_lac(ledger_id, entry)
        # A bookie that does not know the ledger reads metadata. If that is unavailable, it accepts requests until one
        # with the right key arrives. A fence does no harm until then, but readers could accept a copy or LAC.
        holders = [
            b
            for b in metadata.last_fragment.ensemble
            if any(claims.get(b) for claims in facts.claims.values()) and not self.judge.facts.bookie(b).wiped
        ]
        for bookie in metadata.last_fragment.ensemble:
            requests: list[Request] = [Add(ledger_id, entry, wrong, body), Read(ledger_id, 0, True, wrong)]
            if bookie in holders:
                requests.append(Add(ledger_id, entry, wrong, body, recovery=True))
                requests.append(WriteLac(ledger_id, entry, wrong, packet))
            for request in requests:
                try:
                    await client.services.pool.call(bookie, request)
                except BuckramError as error:
                    self.note(f"attack on {bookie}: {describe(error)}")
