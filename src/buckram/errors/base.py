"""The roots of the error tree, and the errors of ledgers, bookies and the metadata store: typed fields and `retryable`.

Every error names the value, the limit and what to do. `retryable` means: the same call may
succeed later without any change by the caller.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from buckram.codes import Code
from buckram.types import BookieId, EntryId, LedgerId


class BuckramError(Exception):
    """Base of every error that Buckram raises on purpose."""

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as it is: most classes make their message from values, and would make it again from the
        message.
        """
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[BuckramError], args: tuple[Any, ...], values: dict[str, Any]) -> BuckramError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(values)
    return error


class InvariantViolation(BuckramError):
    """A rule that must never break did break: a bug. Never retried, never swallowed."""


def invariant_failed(rule: str, detail: str) -> NoReturn:
    raise InvariantViolation(f"{rule}: {detail}")


def check(condition: bool, rule: str, detail: str = "") -> None:
    """Assert an invariant by its id in docs/reference/protocol.md; stays on under python -O."""
    if not condition:
        invariant_failed(rule, detail)


class InvalidArgument(BuckramError, ValueError):
    """An argument outside its limits: names the value, the limit and what to do."""


class ConfigError(BuckramError):
    """A configuration key that is unknown or has a bad value."""


class ForkedClient(BuckramError):
    """A client was used in a forked child; connect again there."""


class WrongEventLoop(BuckramError):
    """A client of asyncio, or what it opened, was used in another event loop than the one that it was connected in."""

    def __init__(self, *, ended: bool) -> None:
        where = (
            "an event loop that has ended, as asyncio.run() ends its loop when it returns"
            if ended
            else "another event loop"
        )
        super().__init__(
            f"this client was connected in {where}, and its connections belong to that: connect in this one, or use "
            "buckram.sync.connect(), whose client works in all threads and loops of its process"
        )
        self.ended = ended


class BufferFull(BuckramError):
    """The byte limit of unacknowledged appends is reached; try again when some are acknowledged."""

    retryable = True

    def __init__(self, pending_bytes: int, limit_bytes: int, message: str = "") -> None:
        super().__init__(
            message
            or f"{pending_bytes} bytes are not yet acknowledged, the limit is {limit_bytes}: "
            "await flush() or use append(), which waits"
        )
        self.pending_bytes, self.limit_bytes = pending_bytes, limit_bytes


class HandleClosed(BuckramError):
    """The client, writer or reader was closed by this program."""


class LedgerError(BuckramError):
    """An error of one ledger; `ledger_id` is -1 for what is no ledger, such as files of history."""

    def __init__(self, ledger_id: LedgerId, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: {message}" if ledger_id >= 0 else message)
        self.ledger_id = ledger_id


class NoSuchLedger(LedgerError):
    """The ledger was never created, or it was deleted."""

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__(
            ledger_id, "does not exist (never created, or deleted); `buckram ledger list` shows those that do"
        )


class LedgerExists(LedgerError):
    """The requested ledger id is taken."""

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__(ledger_id, "exists already; choose another id or let the store choose")


class LedgerIdUsed(LedgerExists):
    """The id was a ledger's before, which was deleted or comes from an older state of the metadata store."""

    def __init__(self, ledger_id: LedgerId) -> None:
        LedgerError.__init__(
            self,
            ledger_id,
            "had this id already, and an id names one ledger for ever, also after its deletion; "
            "choose another id or let the store choose",
        )


class LedgerClosed(LedgerError):
    """The ledger is closed; this entry was not and will not be written by this handle."""


class LedgerFenced(LedgerError):
    """Another client recovers or has recovered this ledger. An append that failed so may or may not be in it."""

    def __init__(
        self,
        ledger_id: LedgerId,
        message: str = "fenced: another client recovers or has recovered it; open a new ledger",
    ) -> None:
        super().__init__(ledger_id, message)


class NoSuchEntry(LedgerError):
    """Every replica denied explicitly that it holds the entry, or it lies beyond the last one."""

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId, message: str = "no replica holds it") -> None:
        super().__init__(ledger_id, f"entry {entry_id}: {message}")
        self.entry_id = entry_id


class DuplicateEntry(LedgerError):
    """An explicit entry id that is already confirmed or pending."""

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        super().__init__(ledger_id, f"entry id {entry_id} is already written or pending; choose a new id")
        self.entry_id = entry_id


class EntryTooLarge(LedgerError):
    """An entry is larger than one frame of the wire protocol may be. Nothing was written."""

    def __init__(self, ledger_id: LedgerId, size: int, limit: int) -> None:
        super().__init__(ledger_id, f"an entry of {size} bytes is over the limit of {limit} bytes; split it")
        self.size, self.limit = size, limit


class DigestMismatch(LedgerError):
    """Bytes that fail their digest or carry foreign ids: whether the entry exists is unknown."""

    retryable = True


class ReadFailed(LedgerError):
    """No replica gave a good copy and not all denied the entry: unknown, so it may succeed later."""

    retryable = True


class WriteFailed(LedgerError):
    """The writer gave up. An append that failed so may or may not be in the ledger."""


class RecoveryFailed(LedgerError):
    """Recovery could not decide; the ledger stays IN_RECOVERY and a later recovery goes on."""

    retryable = True


class NotEnoughBookies(BuckramError):
    """Fewer bookies are usable than an ensemble needs."""

    retryable = True

    def __init__(self, needed: int, available: int, message: str = "") -> None:
        are = "is" if available == 1 else "are"
        do = "start more bookies, or ask for a smaller ensemble"
        if not available:
            do = "start them (`buckram up`, or `buckram bookie run` for each)"
        super().__init__(message or f"{needed} bookies are needed, {available} {are} usable: {do}")
        self.needed, self.available = needed, available


class BookieError(BuckramError):
    """An answer of one bookie, or none."""

    retryable = True
    code: ClassVar[Code] = Code.IO_ERROR

    def __init__(self, bookie: BookieId, message: str) -> None:
        super().__init__(f"bookie {bookie}: {message}")
        self.bookie = bookie


class BookieUnavailable(BookieError):
    """No connection: refused, reset, or not registered."""


class WrongBookie(BookieUnavailable):
    """Another process answers at the bookie's address, or one that does not give its identity. Its replies are
    ignored.
    """


class LoginRequired(WrongBookie):
    """The bookie identifies itself only to clients that have logged in, and this client has no token. Waiting does not
    help.
    """

    retryable = False


class RequestTimeout(BookieError):
    """No answer in time; the request may or may not have taken effect."""


class BookieIOError(BookieError):
    """The bookie could not read or write its files."""


class BookieReadOnly(BookieError):
    """The bookie takes no new entries for now: its disk is full, or an operator made it read-only."""

    code = Code.READ_ONLY


class BookieTooBusy(BookieError):
    """The bookie, or the connection to it, has as many outstanding requests as it accepts."""

    code = Code.TOO_MANY_REQUESTS


class UnknownLedgerState(BookieError):
    """The bookie may have lost data of this ledger, so it neither confirms nor denies entries (limbo)."""

    code = Code.UNKNOWN_LEDGER_STATE


class ProtocolError(BookieError):
    """The peer broke the wire protocol; the connection is closed."""

    code = Code.BAD_REQUEST


class Unauthorized(BuckramError):
    """Wrong password, or not authenticated. Nothing was fenced or written."""


class QuotaExceeded(BuckramError):
    """A namespace has used up its quota. Nothing was written; entries acknowledged before stay.

    `used` and `limit` are None if the bookie did not send them.
    """

    def __init__(self, namespace: str, quota: str, used: int | None = None, limit: int | None = None) -> None:
        how_much = f"{used} of {limit} {quota} are used" if limit is not None else f"its quota of {quota} is used up"
        more = "" if limit is None else f"={max(2 * limit, 1)}"
        super().__init__(
            f"namespace {namespace}: {how_much}; delete something, or have an administrator raise it: "
            f"`buckram namespace set {namespace} --quota {quota}{more or '=...'}`"
        )
        self.namespace, self.quota, self.used, self.limit = namespace, quota, used, limit


class EncryptionKeyMissing(BuckramError):
    """The entries of a ledger are encrypted with a key that this client does not have."""

    def __init__(self, ledger_id: int, namespace: str, key_id: str, known: tuple[str, ...]) -> None:
        have = f"of its keys {', '.join(known[:5])} are here" if known else "no key of it is here"
        super().__init__(
            f"ledger {ledger_id} of namespace {namespace} is encrypted with key {key_id}, and {have}: put the key into "
            "the file of [encryption] keys (BUCKRAM_ENCRYPTION_KEYS), or have [encryption] command print it"
        )
        self.ledger_id, self.namespace, self.key_id, self.known = ledger_id, namespace, key_id, known


class MetadataError(BuckramError):
    """An error of the metadata store."""


class MetadataUnavailable(MetadataError):
    """The store did not answer; a mutation may or may not have happened: read before deciding."""

    retryable = True


class VersionConflict(MetadataError):
    """Another client changed the key since the named version was read."""

    retryable = True

    def __init__(self, key: str, expected: int) -> None:
        super().__init__(f"{key}: version {expected} is no longer current; read it again")
        self.key, self.expected = key, expected


class NoSuchBookie(MetadataError):
    """No bookie of this id is known to the cluster."""

    def __init__(self, bookie_id: BookieId) -> None:
        super().__init__(f"bookie {bookie_id}: not known to the cluster; `buckram bookie list` shows those that are")
        self.bookie_id = bookie_id


class NoSuchKey(MetadataError):
    """The metadata store has no such key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: no such key")
        self.key = key


class KeyExists(MetadataError):
    """A key of the metadata store that was to be created is there already."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: exists already")
        self.key = key


class KeyNotEmpty(MetadataError):
    """A key of the metadata store that was to be deleted has children."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: has children; delete those first")
        self.key = key


class MalformedRecord(MetadataError):
    """Bytes of the metadata store (or a cookie file) that do not parse or break the format's rules."""


class ClusterNotInitialised(MetadataError):
    """No cluster was ever set up at this metadata URI."""

    def __init__(self, uri: str) -> None:
        do = f"start one with `buckram up`, or prepare it with `buckram cluster init --metadata {uri}`"
        if uri.startswith("memory:"):
            do = (
                "a cluster in memory lives in the process that made it, until its last session ends: connect in "
                "that process (`async with buckram.testing.cluster()`), or use a cluster that processes share, "
                "such as that of `buckram up` or buckram.testing.cluster(metadata='sqlite')"
            )
        super().__init__(f"no cluster at {uri}: {do}")
        self.uri = uri


class WrongCluster(MetadataError):
    """The metadata store holds another cluster than before, or something that is not a cluster of ours alone."""


class StoreReplaced(MetadataError):
    """The file of an embedded store was replaced since it was opened: nothing is read from or written to the old
    one.
    """


class StoreWentBack(MetadataError):
    """The metadata store is behind what bookies have seen of it, or was restored and that is not accepted yet."""


class WrongLedgerManager(ConfigError, MetadataError):
    """The metadata URI names another ledger manager than the cluster has."""


class LedgerIdsExhausted(MetadataError):
    """The cluster's ledger manager has no ids left to give."""


class AlreadyRegistered(MetadataError):
    """Another live process is registered under this bookie id."""

    retryable = True

    def __init__(self, bookie_id: BookieId, waited_s: float) -> None:
        super().__init__(
            f"bookie {bookie_id} is registered by another live process (waited {waited_s:g} s for it to end): "
            "stop that one or choose another --id"
        )
        self.bookie_id = bookie_id


_OTHER_CREDENTIALS = (
    "use the credentials that the cluster's other processes use, or have the node's access list changed"
)


class AccessRefused(MetadataError):
    """The access list of a node (or of its parent), or the grants that a bookie judges by, keep this session out.
    Nothing was changed."""

    place = ""
    """The key of the store, in the bookie that refuses: for its audit trail, and never sent."""

    def __init__(self, key: str, found: str, *, advice: str = _OTHER_CREDENTIALS) -> None:
        """Make the error. `key`: the node, or the request in words. `advice`: what to do, if `found` does not contain
        it.
        """
        super().__init__(f"{key}: {found}" + (f"; {advice}" if advice else ""))
        self.key, self.found = key, found


class LedgerIdRefused(AccessRefused):
    """The cluster did not give this ledger id to the session that asks, which may create ledgers under no other id."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.key, self.found = f"ledger {ledger_id}", "the id was not given to this session, or was used already"
        MetadataError.__init__(
            self,
            f"ledger {ledger_id}: {self.found}; ids are given by the cluster: leave `ledger_id` out, or have an "
            "administrator create the ledger",
        )
        self.ledger_id = ledger_id


class ValueTooLarge(MetadataError):
    """A value is larger than the metadata store takes in one key."""

    def __init__(self, key: str, size: int, limit: int) -> None:
        super().__init__(f"{key}: {size} bytes are over the limit of {limit}; store less in one key")
        self.key, self.size, self.limit = key, size, limit


class WrongCookie(BuckramError):
    """This directory belongs to another bookie or cluster, or its data is gone."""


class CorruptStore(BuckramError):
    """A bookie's files fail their checks or have a newer format."""


class ZooKeeperFailed(BuckramError):
    """The server ended, or did not serve in time; the message ends with its last output."""


class EtcdFailed(BuckramError):
    """The server ended, or did not serve in time; the message ends with its last output."""


class ChildFailed(BuckramError):
    """A bookie process ended, or did not get ready in time; the message ends with its last output."""


class PortInUse(ZooKeeperFailed):
    """Another program listens on the port that this server was to have."""


class ForeignDirectory(WrongCookie):
    """The directory holds something else than this server of a metadata store."""
