"""Reads of clients: on the leader, on every replica in turn, and on any replica with a bound of its age."""

from __future__ import annotations

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, TooStale
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.interactive import KEYS, lists_of
from simulator.database.rules import Attempt
from simulator.engine.world import Died

READ = "SELECT key, value FROM lists ORDER BY id"


class Reading:
    """The reads of one client."""

    def __init__(self, asking: Asking) -> None:
        self._asking, self._world, self._rules, self._rng = asking, asking.world, asking.rules, asking.rng

    def note(self, attempt: Attempt, result: SqlResult) -> None:
        """Record a linearizable read of all lists that was answered."""
        attempt.operations += lists_of(result, KEYS)
        attempt.outcome, attempt.ended = "ok", self._world.loop.time()
        self._rules.attempts.append(attempt)

    async def everywhere(self, name: str) -> None:
        """Read linearizably from every replica, one after the other. Fenced ones may still believe to lead.

        Each one that answers must have everything that was answered before.
        """
        asking = self._asking

        async def question(database: Database) -> SqlResult:
            return await database.execute(READ)

        for _ in range(2):
            hosts = asking.stage.living()
            self._rng.shuffle(hosts)
            for host in hosts:
                attempt = Attempt(f"{name} at {host}", self._world.loop.time())
                try:
                    self.note(attempt, await asking.ask_at(host, question, 0.5))
                except (BuckramError, TimeoutError, Died, KeyError):
                    continue
        self._world.report.situation("everybody was asked for a read")

    async def stale(self) -> None:
        """Read from any replica with a maximum age, or with an offset that it must have applied, or with no bound."""
        asking, hosts = self._asking, self._asking.stage.living()
        if not hosts:
            return
        host, at_most_s = self._rng.choice(hosts), self._rng.choice((0.0, 0.05, 1.0, None))
        after, began = asking.applied if at_most_s is None else None, self._world.loop.time()
        if after is not None and self._rng.random() < 0.5:
            after = None
            self._world.report.situation("a replica was asked for whatever it has")

        async def question(database: Database) -> SqlResult:
            return await database.query(READ, consistency="stale", at_most_s=at_most_s, after=after)

        try:
            result = await asking.ask_at(host, question, 6.0)
        except TooStale:
            return
        except (BuckramError, TimeoutError, Died) as error:
            self._world.trace.note(asking.name, f"stale read: {error!r}")
            return
        reads = lists_of(result, KEYS)
        moment = began - at_most_s if at_most_s is not None else -1.0
        self._rules.fresh(host, {str(value) for one in reads for value in one.values}, moment, after)
        # The history gets this read without its time: it may be old, but it is one of the states.
        self._rules.attempts.append(Attempt(f"{asking.name} stale", -1.0, [*reads], None, "ok"))


__all__ = ["KEYS", "READ", "Reading"]
