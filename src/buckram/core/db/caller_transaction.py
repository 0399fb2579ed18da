"""The state of one caller's transaction, and the effect of each statement on it. Pure; `sql/session.py` executes.

Callers see the behaviour of a SQLite connection: BEGIN, COMMIT, ROLLBACK, and savepoints, of which the outermost is a
transaction if none is open. One rule is stricter: if a transaction ended without the caller's doing (it took too long,
the leader changed), later statements are refused until the caller sends ROLLBACK; otherwise each would be executed and
committed alone, although it was meant as a part of the transaction.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from buckram.core.db.sql_text import ClassifiedStatement, Kind


class Do(enum.Enum):
    """Actions for the executor of a statement."""

    RUN_ALONE = "run alone"
    """Run the statement in a transaction of its own."""
    RUN_INSIDE = "run inside"
    """Run the statement in the open transaction."""
    BEGIN = "begin"
    """Open a transaction."""
    BEGIN_AND_RUN = "begin and run"
    """Open a transaction, then run the statement inside it: a savepoint outside any transaction."""
    COMMIT = "commit"
    ROLLBACK = "rollback"
    NOTHING = "nothing"


class TransactionMisuse(Exception):
    """A statement that does not fit the state of the transaction; the text is that of SQLite."""


class TransactionGone(Exception):
    """The transaction ended without the caller's doing; the text gives the reason."""


@dataclass(slots=True)
class CallerTransaction:
    """The transaction of one caller, who sends one statement after the other."""

    active: bool = False
    readonly: bool = False
    gone: str = ""
    """Reason why a transaction ended that the caller takes to be open; empty: there is no such one."""
    _savepoints: list[str] | None = None
    """Names of open savepoints, if the outermost one began the transaction."""

    @property
    def autocommit(self) -> bool:
        return not self.active and not self.gone

    def plan(self, statement: ClassifiedStatement) -> Do:
        """Return the action for a statement, without changing the state.

        Raises TransactionMisuse if the statement does not fit the state, and TransactionGone until a ROLLBACK if the
        transaction ended without the caller's doing.
        """
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

    def done(self, statement: ClassifiedStatement, did: Do) -> None:
        """Update the state after the planned action succeeded; not to be called if COMMIT failed and left the
        transaction open."""
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
        """Note that SQLite rolled the transaction back with an error that the caller sees: none is open any more."""
        self._end()

    def lost(self, why: str) -> None:
        """Note that the transaction ended without the caller's doing, or that the outcome of its commit is unknown."""
        self._end()
        self.gone = why

    def _end(self) -> None:
        self.active, self.readonly, self._savepoints = False, False, None

    def _follow_savepoints(self, statement: ClassifiedStatement) -> None:
        names = self._savepoints
        assert names is not None
        if statement.kind is Kind.SAVEPOINT:
            names.append(statement.name)
        elif statement.kind in (Kind.RELEASE, Kind.ROLLBACK_TO) and statement.name in names:
            last = len(names) - 1 - names[::-1].index(statement.name)
            del names[last if statement.kind is Kind.RELEASE else last + 1 :]
