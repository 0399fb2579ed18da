"""The typed errors of replicated state machines, objects and SQL databases.

Each names the machine, object or database, and what to do. Nothing is decided here.
"""

from __future__ import annotations

from buckram.errors.base import BuckramError, InvalidArgument
from buckram.errors.streams import StreamPurpose
from buckram.extras import needs
from buckram.types import LedgerId, Offset

# -- replicated state machines --------------------------------------------------------------------------------


class MachineLog(StreamPurpose):
    """The stream is the log of a replicated machine, a database or all objects: only that writes and truncates it."""


class MachineError(BuckramError):
    """An error of one replicated machine, named NAMESPACE/MACHINE."""

    def __init__(self, machine: str, message: str) -> None:
        super().__init__(f"machine {machine}: {message}")
        self.machine = machine


class NotMachineLog(MachineError, InvalidArgument):
    """A stream of this name exists and is not the log of a machine."""

    def __init__(self, machine: str) -> None:
        MachineError.__init__(
            self, machine, "a stream of this name exists and is no machine's log; choose another name"
        )


class NotLeader(MachineError):
    """Another process leads the machine, or none does yet. Nothing was written."""

    retryable = True

    def __init__(self, machine: str, leader: str) -> None:
        who = f"{leader!r} leads it" if leader else "no process leads it at the moment"
        super().__init__(
            machine, f"this process does not lead it, {who}: execute there, wait (m.lead()), or m.lead(takeover=True)"
        )
        self.leader = leader


class CommandUnknown(MachineError):
    """Leadership ended before the command was acknowledged: it may have been executed, or never be.

    `token`: executing the command again under it, on the present leader, executes it once and gives the first result.
    """

    retryable = True

    def __init__(self, machine: str, token: str, reason: str) -> None:
        super().__init__(
            machine, f"whether the command was executed is not known ({reason}): execute it again with token={token!r}"
        )
        self.token, self.reason = token, reason


class CommandForgotten(MachineError):
    """The token's session or result is not kept any more, or the token was given up. Nothing was executed now."""

    def __init__(self, machine: str, token: str, message: str) -> None:
        super().__init__(machine, f"command {token}: {message}; nothing was executed now")
        self.token = token


class CommandRefused(BuckramError):
    """Raised by apply for a command that the state does not allow, before any change; a result like others."""


class CommandTooLarge(MachineError):
    """The command is over the size limit. Nothing was written."""

    def __init__(self, machine: str, size: int, limit: int) -> None:
        super().__init__(machine, f"a command of {size} bytes is over the limit of {limit} bytes; split it")
        self.size, self.limit = size, limit


class UnknownCommand(BuckramError):
    """Raised by apply for a command that this version of the program does not know: the replica stops before it."""


class ReplicaStopped(MachineError):
    """This replica met a command that it cannot apply, and stopped before it. Other replicas may go on."""

    def __init__(self, machine: str, offset: Offset, message: str) -> None:
        super().__init__(machine, f"this replica stopped at offset {offset}: {message}")
        self.offset = offset


class ReplicaDiverged(ReplicaStopped):
    """The digest of this replica's state is not the leader's: both applied the same commands and differ."""

    def __init__(self, machine: str, offset: Offset, agreed: int | None, own: str, leader: str) -> None:
        since = "no earlier digest was compared" if agreed is None else f"at offset {agreed} they were equal"
        super().__init__(
            machine,
            offset,
            f"its state differs from the leader's (digest {own}, the leader's is {leader}); {since}. apply() or "
            "snapshot() is not deterministic, or memory is bad. Close it and open it again to begin from a snapshot",
        )
        self.agreed, self.own_digest, self.leader_digest = agreed, own, leader


class SnapshotDamaged(MachineError):
    """A snapshot does not have the digest that it was published with, or cannot be read."""

    def __init__(self, machine: str, offset: Offset, ledger_id: LedgerId, message: str) -> None:
        super().__init__(machine, f"the snapshot at offset {offset} (ledger {ledger_id}) is damaged: {message}")
        self.offset, self.ledger_id = offset, ledger_id


class SnapshotFailed(MachineError):
    """The class's snapshot() raised an error. Nothing was published; the log is kept."""

    def __init__(self, machine: str, error: str) -> None:
        super().__init__(machine, f"snapshot() failed with {error}; correct it, the log grows until then")


class StateLost(MachineError):
    """No snapshot of those published can be read, and the log before them is gone."""


class TooStale(MachineError):
    """A read could not be served as fresh as it required."""

    retryable = True

    def __init__(self, machine: str, age_s: float | None, wanted_s: float | None, reason: str = "") -> None:
        """Make the error. `wanted_s` None: the read allows any age, and the replica has no state that ever was the
        newest one.
        """
        age = "its age is not known" if age_s is None else f"its state is {age_s:.3f} s old"
        if wanted_s is None:
            text = "this replica has not reached the end of the log that was there when it was opened"
            cure = "try again, or ask another replica"
        else:
            text, cure = f"{age}, the read allows {wanted_s:g} s", "try again, or allow more"
        super().__init__(machine, f"{text}{f' ({reason})' if reason else ''}; {cure}")
        self.age_s, self.wanted_s = age_s, wanted_s

    @classmethod
    def behind(cls, machine: str, reason: str) -> TooStale:
        """Return the error of a read at an offset that this replica has not reached."""
        found = cls(machine, None, None)
        MachineError.__init__(found, machine, f"{reason}; try again, or ask with an offset that the leader gave")
        return found


# -- objects --------------------------------------------------------------------------------------------------


class ObjectError(BuckramError):
    """An error of one object, named NAMESPACE/NAME."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"object {name}: {message}")
        self.object = name


class NoSuchObject(ObjectError):
    """The object (or the upload) does not exist. Nothing was changed."""


class ObjectExists(ObjectError):
    """The name is taken, and was to be free. Nothing was changed."""


class ObjectChanged(ObjectError):
    """The object is not of the version that was to be there. Nothing was changed."""


class NameBlocked(ObjectError, InvalidArgument):
    """The name is a directory, or leads through an object. Nothing was changed."""

    def __init__(self, name: str, message: str) -> None:
        ObjectError.__init__(self, name, message)


class DirectoryNotEmpty(ObjectError):
    """A directory was to be deleted, and something is in it. Nothing was changed."""


class UploadIncomplete(ObjectError):
    """An upload was to be completed, and not all of its parts are there. Nothing was changed."""


class TooManyUploads(ObjectError):
    """The namespace has as many open uploads in parts as it may. None was begun."""

    def __init__(self, name: str, limit: int) -> None:
        namespace = name.partition("/")[0]
        super().__init__(
            name,
            f"{limit} uploads in parts are open in namespace {namespace}, the most that it may have (max_uploads): "
            f"complete some, give some up (`buckram object uploads {namespace}` lists them, `buckram object abort` "
            f"gives them up), or raise it: `buckram namespace set {namespace} --set max_uploads={2 * limit}`",
        )
        self.limit = limit


class ObjectDamaged(ObjectError):
    """The bytes of an object do not have its digest, or cannot be read."""


class DataLost(ObjectError):
    """The bytes were given up before they got their name: this process was taken for dead. Put the object again."""

    retryable = True


# -- SQL databases --------------------------------------------------------------------------------------------


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
        super().__init__(
            database,
            f"a database or a stream of this name exists (`buckram db show {database}`); choose another name, or drop "
            "it",
        )


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
