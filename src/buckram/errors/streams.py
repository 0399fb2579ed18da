"""The typed errors of streams. Each names the stream, the value, the limit and what to do. Nothing is decided here.

They are children of BuckramError and belong to the public interface; `retryable` has its meaning.
"""

from __future__ import annotations

from buckram.errors.base import BuckramError, InvalidArgument, LedgerError
from buckram.types import EntryId, LedgerId, Offset


class StreamError(BuckramError):
    """An error of one stream, named NAMESPACE/STREAM."""

    def __init__(self, stream: str, message: str) -> None:
        super().__init__(f"stream {stream}: {message}")
        self.stream = stream


class NoSuchNamespace(BuckramError):
    """The namespace does not exist."""

    def __init__(self, namespace: str, instead: str = "") -> None:
        """Make the error. `instead`: the name that was perhaps meant, with the verb before it."""
        makes = f"`buckram namespace create {namespace}` makes it"
        super().__init__(f"namespace {namespace}: does not exist; " + (f"{instead}, or {makes}" if instead else makes))
        self.namespace = namespace


class NamespaceExists(BuckramError):
    """The namespace that was to be created is there already."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"namespace {namespace}: exists already")
        self.namespace = namespace


class NamespaceNotEmpty(BuckramError):
    """A namespace that was to be deleted still has streams."""

    def __init__(self, namespace: str, example: str, why: str = "") -> None:
        """Make the error. `why`: the purpose of the example if it is not for records, and how it is deleted."""
        which = f"{example}, which {why}" if why else f"{example}; delete those first"
        super().__init__(f"namespace {namespace}: still has streams, such as {which}")
        self.namespace = namespace


class NoSuchStream(StreamError):
    """The stream does not exist."""

    def __init__(self, stream: str, message: str = "does not exist; `buckram stream create` makes it") -> None:
        super().__init__(stream, message)


class StreamExists(StreamError):
    """The stream that was to be created is there already."""

    def __init__(self, stream: str, message: str = "exists already; open it or choose another name") -> None:
        super().__init__(stream, message)


class StreamEnded(StreamError):
    """The stream was marked as ended: it takes no more records."""

    def __init__(self, stream: str, end: int) -> None:
        super().__init__(stream, f"was ended at offset {end}; it takes no more records, write to another stream")
        self.end = end


class StreamPurpose(StreamError, InvalidArgument):
    """The stream has a purpose of its own, and the request is not for such a stream. The message has the right
    command.
    """


class MirrorStream(StreamError):
    """The stream is written by the replication from another cluster, or the other cluster's side was promoted."""


class ReplicationRefused(BuckramError):
    """A namespace, or a stream of it, cannot be replicated as requested; nothing was changed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"replication of {name}: {message}")
        self.name = name


class SourceWentBack(ReplicationRefused):
    """A stream, or the objects of a namespace, went back in the source, and the mirror has records or objects that the
    source lost.

    `first` is the offset from which on the two differ and `end` that at which the mirror ends; both are 0 for objects.
    """

    def __init__(self, name: str, message: str, first: int = 0, end: int = 0) -> None:
        super().__init__(name, message)
        self.first, self.end = first, end


class WriterExists(StreamError):
    """Another client holds the lease of the stream."""

    retryable = True

    def __init__(self, stream: str, holder: str, since_us: int, message: str = "") -> None:
        super().__init__(
            stream,
            message
            or f"has a writer, {holder!r}, since {_utc(since_us)}: wait for it (wait=True, --wait), or take over "
            "(takeover=True, --takeover; its next append fails then)",
        )
        self.holder, self.since_us = holder, since_us


class WriterLost(StreamError):
    """The writer lost the stream: fenced, taken over, or deleted. Unacknowledged records may or may not be in it."""


class WriterFailed(StreamError):
    """The writer gave up. Unacknowledged records may or may not be in the stream; open a new writer."""


class RecordTooLarge(StreamError):
    """The record is over the size limit. Nothing was written."""

    def __init__(self, stream: str, size: int, limit: int, what: str = "a record") -> None:
        super().__init__(stream, f"{what} of {size} bytes is over the limit of {limit} bytes; split it")
        self.size, self.limit = size, limit


class OffsetMismatch(StreamError):
    """expect_offset is not the next offset. Nothing was written."""

    def __init__(self, stream: str, expected: int, next_offset: Offset) -> None:
        super().__init__(stream, f"expect_offset={expected}, but the next offset is {next_offset}; nothing was written")
        self.expected, self.next_offset = expected, next_offset


class OffsetOutOfRange(StreamError):
    """The offset is beyond the end of the stream."""

    def __init__(self, stream: str, offset: Offset, earliest: int, latest: int) -> None:
        super().__init__(
            stream, f"offset {offset} is out of range: earliest is {earliest}, the next to be written is {latest}"
        )
        self.offset, self.earliest, self.latest = offset, earliest, latest


class OffsetNotReadable(OffsetOutOfRange):
    """Bookies have a record with this offset, but its writer has not published yet that it is confirmed."""

    retryable = True

    def __init__(self, stream: str, offset: Offset, earliest: int, latest: int) -> None:
        super().__init__(stream, offset, earliest, latest)
        self.args = (
            f"stream {stream}: offset {offset} is written and not readable yet, records below {latest} are: try again; "
            f"if its writer died, the next writer or `buckram stream seal {stream}` makes it readable",
        )


class OffsetTruncated(StreamError):
    """The position lies below the earliest offset: records before that were truncated."""

    def __init__(self, stream: str, offset: Offset, earliest: int) -> None:
        super().__init__(
            stream,
            f"offset {offset} was truncated, the earliest is now {earliest}: read from there, or with "
            'on_truncated="skip"',
        )
        self.offset, self.earliest = offset, earliest


class TxidOutOfOrder(StreamError):
    """The txid is below the last one of the stream. Nothing was written."""

    def __init__(self, stream: str, txid: int, last_txid: int) -> None:
        super().__init__(stream, f"txid {txid} is below the last one, {last_txid}; txids never decrease in a stream")
        self.txid, self.last_txid = txid, last_txid


class ProducerForgotten(StreamError):
    """The stream does not know the producer (any more): it is not known whether the record was stored before."""

    def __init__(self, stream: str, producer: str, sequence: int, message: str) -> None:
        super().__init__(stream, f"producer {producer!r}, sequence {sequence}: {message}")
        self.producer, self.sequence = producer, sequence


class OutOfOrderSequence(StreamError):
    """The sequence is not the producer's next one, nor one that is stored. Nothing was written."""

    def __init__(self, stream: str, producer: str, sequence: int, expected: int, message: str) -> None:
        super().__init__(
            stream,
            f"producer {producer!r}: sequence {sequence}, the next one is {expected}; {message}; nothing was written",
        )
        self.producer, self.sequence, self.expected = producer, sequence, expected


class CorruptEntry(StreamError):
    """The entry's digest is good but its bytes are not a batch of records: not made by this software, or a bug."""

    def __init__(self, stream: str, ledger_id: LedgerId, entry_id: EntryId, message: str) -> None:
        super().__init__(stream, f"ledger {ledger_id} entry {entry_id}: {message}")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class MalformedBatch(BuckramError):
    """Bytes that are not a batch; readers turn it into CorruptEntry, which names the place."""


class UnknownBatchVersion(MalformedBatch):
    """A batch of a newer format version."""


class MissingCodec(BuckramError):
    """A compression library is not installed."""


class SchemaMismatch(StreamError):
    """A record does not fit the stream's schema, or a value is no record of it. `offset` is -1 if it has none yet."""

    def __init__(self, stream: str, message: str, offset: Offset = -1) -> None:
        super().__init__(stream, message if offset < 0 else f"the value at offset {offset} {message}")
        self.offset = offset


class OpenSegment(StreamError):
    """A bulk step met a segment that a writer may still write."""

    def __init__(self, stream: str, writer: str, since_us: int) -> None:
        super().__init__(
            stream,
            f"writer {writer!r} (since {_utc(since_us)}) has an open segment: close it, or fence it in the same "
            "step with seal_live=True (Spark: option sealLive), or let it go on with beside_writer=True (Spark: option "
            "besideWriter)",
        )
        self.writer, self.since_us = writer, since_us


class StaleTransaction(StreamError):
    """An older version of the application's transaction than the one recorded. Nothing was published.

    `query`: it is a batch of this streaming query, whose checkpoint is an older copy; empty for a job.
    """

    def __init__(self, stream: str, application: str, version: int, recorded: int, *, query: str = "") -> None:
        if query:
            text = (
                f"batch {version} of query {query} is older than batch {recorded}, which is published already: the "
                "checkpoint is an older copy. Put the newest checkpoint back; or begin with a new one and "
                "onCheckpointReset=newEpoch, from startingOffsets after what is there; nothing was written"
            )
        else:
            text = (
                f"transaction {application!r} version {version} is older than version {recorded}, which is published "
                "already; nothing was published now"
            )
        super().__init__(stream, text)
        self.application, self.version, self.recorded, self.query = application, version, recorded, query


class CheckpointReset(StreamError):
    """Another query than the one of this checkpoint published under the same name. Nothing was published now.

    `out`: this query itself was replaced by a newer one and can never publish again.
    """

    def __init__(
        self,
        stream: str,
        application: str,
        query: str,
        version: int,
        recorded_query: str,
        recorded: int,
        *,
        out: bool = False,
    ) -> None:
        who = f"query {query} (batch {version})" if query else f"a batch job (version {version})"
        other = f"query {recorded_query} (batch {recorded})" if recorded_query else f"a batch job (version {recorded})"
        if out:
            text = f"{who} was replaced by {other} of application {application!r} and can publish no more: stop it"
        elif not query or not recorded_query:
            text = f"application {application!r} is {other}, not {who}: choose another txnAppId"
        else:
            text = (
                f"the checkpoint was reset: application {application!r} published up to {other}, and now {who} comes "
                "with another checkpoint. Either use the earlier checkpoint again; or, if the batches that come now "
                "shall be written in addition to what is there, set onCheckpointReset=newEpoch; or choose another "
                "txnAppId and checkpointLocation if this is another query"
            )
        super().__init__(stream, f"{text}; nothing was written")
        self.application, self.query, self.version = application, query, version
        self.recorded_query, self.recorded, self.out = recorded_query, recorded, out


class UnknownQuery(StreamError):
    """A streaming query brings a later batch to a stream that has none of its earlier ones. Nothing was published.

    `source`: it is a fork of this query, which published up to batch `recorded` here.
    """

    def __init__(self, stream: str, query: str, version: int, *, source: str = "", recorded: int = -1) -> None:
        if source:
            text = (
                f"query {query} is a fork of query {source} after batch {version - 1}, and that one published batch "
                f"{recorded} here: the fork's batches would be here a second time, or some would be missing. Let it "
                f"write a stream of its own: a new one, or a fork of this one as of batch {version - 1}; or, if its "
                "batches shall be written in addition to what is there, set onCheckpointReset=newEpoch"
            )
        else:
            text = (
                f"query {query} comes with batch {version}, and none of its batches before was published here: the "
                "stream was deleted and made anew, or the query wrote another one, or nothing for 30 days. Begin with "
                "a new checkpoint to write everything again; or, if the batches that come now are all that shall be "
                "here, set onCheckpointReset=newEpoch"
            )
        super().__init__(stream, f"{text}; nothing was written")
        self.query, self.version, self.source, self.recorded = query, version, source, recorded


class BatchesLost(StreamError):
    """A streaming query goes on behind batches that the metadata do not know since they were restored, or since a
    mirror was promoted. Nothing was published.

    `recorded`: the newest batch of the query that is known.
    """

    def __init__(self, stream: str, query: str, version: int, recorded: int) -> None:
        super().__init__(
            stream,
            f"query {query} comes with batch {version}, and the newest of its batches that is known here is "
            f"{recorded}; since that one was published the metadata were restored, or a mirror was promoted, so that "
            "the batches between may be lost, unless they had no rows. Put the query's checkpoint back to batch "
            f"{recorded} to write them again, or set onCheckpointReset=newEpoch for one run to go on without them; "
            "nothing was written",
        )
        self.query, self.version, self.recorded = query, version, recorded


class InvalidSegment(StreamError, InvalidArgument):
    """A ledger that cannot become a segment of the stream. Nothing was published."""

    def __init__(self, stream: str, ledger_id: LedgerId, message: str) -> None:
        StreamError.__init__(self, stream, f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class MalformedSource(BuckramError):
    """A file that is to be imported has a row that is no record. Nothing of the range with that row was imported.

    `line` is counted from 1 on; 0 if the file as a whole is meant.
    """

    def __init__(self, path: str, line: int, why: str, what: str = "line") -> None:
        where = f"{path}, {what} {line}" if line else path
        super().__init__(f"{where}: {why}; correct it and import again")
        self.path, self.line = path, line


class SourceUnavailable(BuckramError):
    """The source of an import cannot be reached, or does not answer. Nothing was lost; the import goes on later."""

    retryable = True

    def __init__(self, source: str, why: str) -> None:
        super().__init__(f"{source}: {why}; import again when it answers")
        self.source = source


class LedgerOfStream(LedgerError):
    """The ledger was made for a stream and may hold records of it. Nothing was deleted."""

    def __init__(self, ledger_id: LedgerId, stream: str) -> None:
        super().__init__(
            ledger_id,
            f"belongs to stream {stream}: `buckram stream truncate` or `buckram stream delete` deletes what the stream "
            "no longer needs, `buckram stream orphans` says whether it still has a place there",
        )
        self.stream = stream


class ForeignLedger(StreamError):
    """The stream's metadata name a ledger, or files of history, that are not the stream's.

    Nothing of them was read, ended or deleted.
    """

    def __init__(self, stream: str, ledger: LedgerId, location: str = "") -> None:
        what = f"files of history at {location} (id {ledger})" if location else f"ledger {ledger}"
        super().__init__(
            stream,
            f"its metadata name {what}, made for another stream or for none; nothing of it was read or deleted. "
            "Tell an administrator, because a client wrote that into the stream's metadata",
        )
        self.ledger, self.location = ledger, location


class NoSuchCursor(StreamError):
    """The stream has no cursor of this name."""

    def __init__(self, stream: str, cursor: str) -> None:
        super().__init__(stream, f"cursor {cursor!r} does not exist; reading with it and committing makes it")
        self.cursor = cursor


class CursorMoved(StreamError):
    """Another reader moved the cursor, which two readers share."""

    retryable = True

    def __init__(self, stream: str, cursor: str, offset: Offset, wanted: int) -> None:
        super().__init__(
            stream,
            f"cursor {cursor!r} was moved to {offset} by another reader and cannot go back to {wanted}: "
            "a cursor only moves forward",
        )
        self.cursor, self.offset = cursor, offset


def _utc(time_us: int) -> str:
    """Return a time as text for people, to the second. Computed by hand: the core imports no clock."""
    days, second = divmod(time_us // 1_000_000, 86_400)
    # Civil calendar from days since 1970-01-01, in eras of 400 years that begin on March 1.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    date = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year += era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{date:02} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"


class NotReadable(StreamError):
    """A batch that was planned before cannot be read to its end now."""

    retryable = True

    def __init__(self, stream: str, stop: int, end: int) -> None:
        super().__init__(
            stream,
            f"records up to offset {stop} are wanted, as the checkpoint says, and those from {end} on cannot be read: "
            "start the bookies that are down and then the query; if they are lost for good, begin a new checkpoint",
        )
        self.stop, self.end = stop, end


class RecordsLost(StreamError):
    """A query wants records that are gone; failOnDataLoss=false goes on without them."""

    def __init__(self, stream: str, first: int, earliest: int | None, what: str) -> None:
        there = "" if earliest is None else f", the earliest is now {earliest}"
        super().__init__(
            stream,
            f"offset {first} is wanted and {what}{there}: records are lost to this query. "
            'option("failOnDataLoss", "false") goes on with what is there; retention waits for the query with '
            'option("cursor", NAME) and the policy retention_cursors',
        )
        self.first, self.earliest = first, earliest


class ReplayDiffers(StreamError):
    """A batch that is published already has other rows now. Nothing was written."""

    def __init__(
        self, stream: str, query: str, batch: int, published: range, now: int, *, offsets: bool = True
    ) -> None:
        then = len(published)
        what = f"now has {now}" if now != then else "now has as many, but not the same ones"
        where = f" (offsets {published.start} to {published.stop - 1})" if published and offsets else ""
        super().__init__(
            stream,
            f"batch {batch} of query {query} was published with {then} rows{where} and {what}: the checkpoint is an "
            "older copy, or the query does not give the same rows again. Put the newest checkpoint back; or begin with "
            "a new one and onCheckpointReset=newEpoch, from "
            "startingOffsets after what is there; or, if the checkpoint is the newest and the query has uuid(), rand() "
            "or the like, go on with what was published by onReplayDiffers=keep; nothing was written",
        )
        self.query, self.batch = query, batch
