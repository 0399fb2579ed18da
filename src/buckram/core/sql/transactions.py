"""The state of one caller's transaction: what each statement means for it. Pure; who executes is `sql/session.py`.

A caller sees what a SQLite connection shows: BEGIN, COMMIT, ROLLBACK, and savepoints, of which the outermost is a
transaction if none is open. One thing is more strict. When a transaction ended without the caller's doing (it took too
long, the leader changed), later statements are refused until the caller says ROLLBACK: otherwise they would be executed
one by one, as if each had been meant alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from buckram.core.sql.statements import Kind, Statement


class Do(enum.Enum):
    """What is to be done with a statement."""

    RUN_ALONE = "run alone"
    """In a transaction of its own."""
    RUN_INSIDE = "run inside"
    """In the open transaction."""
    BEGIN = "begin"
    """Open a transaction."""
    BEGIN_AND_RUN = "begin and run"
    """Open a transaction, then run the statement inside it: a savepoint outside of transactions."""
    COMMIT = "commit"
    ROLLBACK = "rollback"
    NOTHING = "nothing"


class TransactionMisuse(Exception):
    """The statement does not fit to the state; SQLite's words."""


class TransactionGone(Exception):
    """The transaction ended without the caller's doing; the text says why."""


@dataclass(slots=True)
class CallerTransaction:
    """The transaction of one caller, who sends one statement after the other."""

    active: bool = False
    readonly: bool = False
    gone: str = ""
    """Why the transaction ended that the caller takes to be open; empty if there is none such."""
    _savepoints: list[str] | None = None
    """Names of open savepoints, if the outermost one began the transaction."""

    @property
    def autocommit(self) -> bool:
        return not self.active and not self.gone

    def plan(self, statement: Statement) -> Do:
        """What is to be done with a statement. Raises TransactionMisuse and TransactionGone. Changes nothing."""
        kind = statement.kind
        if kind is Kind.EMPTY:
            return Do.NOTHING
        if self.gone:
            if kind is Kind.ROLLBACK:
                return Do.NOTHING
            raise TransactionGone(self.gone)
        if kind is Kind.BEGIN:
            if self.active:
                raise TransactionMisuse("cannot start a transaction within a transaction")
            return Do.BEGIN
        if kind in (Kind.COMMIT, Kind.ROLLBACK):
            if not self.active:
                raise TransactionMisuse(f"cannot {kind.value} - no transaction is active")
            return Do.COMMIT if kind is Kind.COMMIT else Do.ROLLBACK
        if kind is Kind.SAVEPOINT and not self.active:
            return Do.BEGIN_AND_RUN
        if kind in (Kind.RELEASE, Kind.ROLLBACK_TO) and not self.active:
            raise TransactionMisuse(f"no such savepoint: {statement.name}")
        if kind is Kind.RELEASE and self._savepoints and statement.name == self._savepoints[0]:
            # A later savepoint of the same name hides the first one.
            return Do.COMMIT if self._savepoints.count(statement.name) == 1 else Do.RUN_INSIDE
        return Do.RUN_INSIDE if self.active else Do.RUN_ALONE

    def done(self, statement: Statement, did: Do) -> None:
        """What was planned has been done. If COMMIT failed and left the transaction open, it was not done."""
        if did in (Do.COMMIT, Do.ROLLBACK):
            self._end()
        elif did is Do.NOTHING and statement.kind is Kind.ROLLBACK:
            self.gone = ""
        elif did is Do.BEGIN:
            self.active, self.readonly, self._savepoints = True, statement.mode == "readonly", None
        elif did is Do.BEGIN_AND_RUN:
            self.active, self.readonly, self._savepoints = True, False, [statement.name]
        elif did is Do.RUN_INSIDE and self._savepoints is not None:
            self._follow_savepoints(statement)

    def ended(self) -> None:
        """SQLite rolled the transaction back because of an error, and says so: the caller is outside again."""
        self._end()

    def lost(self, why: str) -> None:
        """The transaction ended without the caller's doing, or what became of its commit is not known."""
        self._end()
        self.gone = why

    def _end(self) -> None:
        self.active, self.readonly, self._savepoints = False, False, None

    def _follow_savepoints(self, statement: Statement) -> None:
        names = self._savepoints
        assert names is not None
        if statement.kind is Kind.SAVEPOINT:
            names.append(statement.name)
        elif statement.kind in (Kind.RELEASE, Kind.ROLLBACK_TO) and statement.name in names:
            last = len(names) - 1 - names[::-1].index(statement.name)
            del names[last if statement.kind is Kind.RELEASE else last + 1 :]


__all__ = ["CallerTransaction", "Do", "TransactionGone", "TransactionMisuse"]
