"""The typed errors of SQL databases. Each names the database and what to do. Nothing is decided here."""

from __future__ import annotations

from buckram.errors.base import BuckramError, InvalidArgument
from buckram.extras import needs


def limit_named(name: str) -> str:
    """Return the advice on raising the limit of this name: in a program, and of a server."""
    return f"limit: DatabaseLimits.{name}; of a server: `buckram db serve --limit {name}=`"


class DatabaseError(BuckramError):
    """An error of one database, named NAMESPACE/DATABASE."""

    def __init__(self, database: str, message: str) -> None:
        super().__init__(f"database {database}: {message}")
        self.database = database


class DatabaseFailed(DatabaseError):
    """The table engine of this replica stopped: its files, or their content, contradict the log."""


class NoSuchDatabase(DatabaseError):
    """There is no database of this name."""

    def __init__(self, database: str) -> None:
        super().__init__(database, "it does not exist; `buckram db create` or create=True makes it")


class NotDatabase(DatabaseError, InvalidArgument):
    """A stream or a machine of this name exists, and is no database."""

    def __init__(self, database: str) -> None:
        DatabaseError.__init__(self, database, "a stream or a machine of this name exists; choose another name")


class NoEarlierState(DatabaseError, InvalidArgument):
    """The requested state is older than the oldest snapshot: the log before that is gone."""

    def __init__(self, database: str, offset: int, earliest: int, end: int) -> None:
        DatabaseError.__init__(
            self, database, f"offset {offset} cannot be had: its states are those from offset {earliest} to {end}"
        )
        self.offset, self.earliest, self.end = offset, earliest, end


class ChangesNotKept(DatabaseError, InvalidArgument):
    """The database was made without change data capture."""

    def __init__(self, database: str) -> None:
        DatabaseError.__init__(
            self, database, "it keeps no changes of rows; make it with `buckram db create --cdc` or cdc=True"
        )


class ChangesGone(DatabaseError):
    """The requested changes are older than the kept part of the log."""

    def __init__(self, database: str, offset: int, earliest: int) -> None:
        super().__init__(
            database,
            f"the changes from offset {offset} on are gone, what is kept begins at {earliest}: copy the database "
            "(`buckram db backup` says at which offset) and go on from there",
        )
        self.offset, self.earliest = offset, earliest


class MissingEngine(BuckramError):
    """The library of the table engine is not installed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{needs('a database', 'db')} ({reason})")


class DatabaseExists(DatabaseError):
    """A database (or another stream) of this name is there already. Nothing was changed."""

    def __init__(self, database: str) -> None:
        super().__init__(database, "a database or a stream of this name exists; choose another name, or drop it")


class DatabaseNotEmpty(DatabaseError, InvalidArgument):
    """A database has tables already, so no file can be loaded into it. Nothing was changed."""

    def __init__(self, database: str) -> None:
        DatabaseError.__init__(
            self, database, "it is not empty; load the file into a new database, and drop this one or keep it"
        )


class SqlError(DatabaseError):
    """An error of SQLite for a statement. Nothing of the statement was done; whether its transaction goes on depends on
    the error.

    `code` and `extended_code` are SQLite's result codes, `name` is that of the extended one (SQLITE_CONSTRAINT_UNIQUE).
    """

    def __init__(self, database: str, message: str, code: int, extended_code: int, name: str) -> None:
        super().__init__(database, f"{message} ({name})")
        self.message, self.code, self.extended_code, self.name = message, code, extended_code, name


class DatabaseBusy(SqlError):
    """Other transactions held the database for longer than this one may wait. Nothing was done."""

    retryable = True

    def __init__(self, database: str, message: str, extended_code: int = 5, name: str = "SQLITE_BUSY") -> None:
        super().__init__(database, message, 5, extended_code, name)


class StatementRefused(DatabaseError, InvalidArgument):
    """A statement that a replicated database does not execute, such as ATTACH. Nothing was done."""

    def __init__(self, database: str, message: str) -> None:
        DatabaseError.__init__(self, database, message)


class TransactionExpired(DatabaseError):
    """The transaction held the database for longer than allowed, and was rolled back so that others have their turn."""

    retryable = True

    def __init__(self, database: str, limit_s: float, limit: str = "transaction_s") -> None:
        super().__init__(
            database,
            f"the transaction was open for more than {limit_s:g} s and was rolled back; do it again in shorter ones "
            f"({limit_named(limit)})",
        )
        self.limit_s = limit_s


class TransactionTooLarge(DatabaseError):
    """The transaction changed more pages than allowed, and was rolled back."""

    def __init__(self, database: str, limit: int) -> None:
        super().__init__(
            database,
            f"the transaction changed more than {limit} bytes of pages and was rolled back; split it "
            f"({limit_named('transaction_bytes')})",
        )
        self.limit = limit


class ResultTooLarge(DatabaseError):
    """A statement's rows exceed the limit of rows in memory. A transaction around it goes on."""

    def __init__(self, database: str, limit: int) -> None:
        super().__init__(
            database,
            f"the rows have more than {limit} bytes; ask for fewer at a time ({limit_named('result_bytes')})",
        )
        self.limit = limit


class CommitUnknown(DatabaseError):
    """The leadership ended before it was known whether the transaction was committed.

    `outcome(token)` on the present leader tells whether it was. Under a token that the caller gave, the same call can
    be repeated, and is executed once.
    """

    retryable = True

    def __init__(self, database: str, token: str, reason: str) -> None:
        super().__init__(
            database, f"whether the transaction was committed is not known ({reason}): ask outcome({token!r})"
        )
        self.token, self.reason = token, reason
