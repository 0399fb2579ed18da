"""Groups whose commit has an unknown outcome: a call that failed by itself is none of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from buckram.core.db.sql import Statement
from buckram.errors import CommitUnknown, DatabaseFailed, NotLeader
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Given, Pending, Unit


class _Log:
    """A log that acknowledges nothing from some time on."""

    def __init__(self) -> None:
        self.lost = False

    def commit_wanted(self, pending: Pending) -> None:
        pending.decide(CommitUnknown("shop/main", "its-token", "no answer") if self.lost else None)

    def engine_failed(self, error: DatabaseFailed) -> None:
        raise AssertionError(error)


async def test_a_call_that_failed_is_not_told_that_it_may_be_committed(tmp_path: Path) -> None:
    log = _Log()
    engine = Engine("shop/main", DatabaseLimits(), log, tmp_path)
    try:

        async def group(*texts: str) -> list[Given]:
            units = [Unit((Statement(text, ()),)) for text in texts]
            given, _ = await engine.run(partial(engine.execution.group, 1, units))
            return given

        await group("CREATE TABLE item (id INTEGER PRIMARY KEY)", "INSERT INTO item VALUES (1)")
        log.lost = True
        first, failed, last = await group(*(f"INSERT INTO item VALUES ({number})" for number in (2, 1, 3)))
        assert isinstance(first, CommitUnknown)
        assert isinstance(failed, NotLeader)
        assert isinstance(last, CommitUnknown)
    finally:
        await engine.close()
