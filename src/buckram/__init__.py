"""Buckram: replicated, durable logs; a BookKeeper in Python.

`connect()` gives a Client, which creates, opens, recovers, deletes and repairs ledgers. The same without async is in
buckram.sync; clusters for tests in buckram.testing; Spark in buckram.spark. The values and errors below are part of
the public interface; modules that are not named in docs/reference/api.md are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from buckram.config import ClientConfig, NetConfig
from buckram.errors import (
    AccessRefused,
    AlreadyRegistered,
    BookieError,
    BookieIOError,
    BookieReadOnly,
    BookieTooBusy,
    BookieUnavailable,
    BuckramError,
    BufferFull,
    CheckpointReset,
    ChildFailed,
    ClusterNotInitialised,
    ConfigError,
    CorruptEntry,
    CorruptStore,
    CursorMoved,
    DigestMismatch,
    DuplicateEntry,
    EntryTooLarge,
    EtcdFailed,
    ForeignDirectory,
    ForkedClient,
    HandleClosed,
    InvalidArgument,
    InvalidSegment,
    InvariantViolation,
    KeyExists,
    KeyNotEmpty,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    LedgerFenced,
    LedgerIdsExhausted,
    LedgerIdUsed,
    LedgerOfStream,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    MissingCodec,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchBookie,
    NoSuchCursor,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    NoSuchNamespace,
    NoSuchStream,
    NotEnoughBookies,
    NotReadable,
    OffsetMismatch,
    OffsetOutOfRange,
    OffsetTruncated,
    OpenSegment,
    OutOfOrderSequence,
    PortInUse,
    ProducerForgotten,
    ProtocolError,
    ReadFailed,
    RecordsLost,
    RecordTooLarge,
    RecoveryFailed,
    ReplayDiffers,
    RequestTimeout,
    StaleTransaction,
    StoreReplaced,
    StoreWentBack,
    StreamEnded,
    StreamError,
    StreamExists,
    TxidOutOfOrder,
    Unauthorized,
    UnknownLedgerState,
    UnknownQuery,
    ValueTooLarge,
    VersionConflict,
    WriteFailed,
    WriterExists,
    WriterFailed,
    WriterLost,
    WrongBookie,
    WrongCluster,
    WrongCookie,
    WrongLedgerManager,
    ZooKeeperFailed,
)
from buckram.types import BookieInfo, DigestType, Entry, Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from buckram.client.client import Client, connect
    from buckram.client.maintain.repair_report import RepairReport
    from buckram.client.read.reader import Reader
    from buckram.client.read.tail import Tail
    from buckram.client.write.writer import Writer
    from buckram.core.streams.batch import Batch, Record
    from buckram.streams.namespace import Namespace, StreamInfo
    from buckram.streams.read.reader import StreamReader
    from buckram.streams.shared.namespaces import Namespaces
    from buckram.streams.write.writer import StreamWriter

# Imported when first used: a bookie imports this package, too, and needs no client.
_LAZY = {
    "Batch": "buckram.core.streams.batch",
    "Client": "buckram.client.client",
    "Namespace": "buckram.streams.namespace",
    "Namespaces": "buckram.streams.shared.namespaces",
    "Reader": "buckram.client.read.reader",
    "Record": "buckram.core.streams.batch",
    "RepairReport": "buckram.client.maintain.repair_report",
    "StreamInfo": "buckram.streams.namespace",
    "StreamReader": "buckram.streams.read.reader",
    "StreamWriter": "buckram.streams.write.writer",
    "Tail": "buckram.client.read.tail",
    "Writer": "buckram.client.write.writer",
    "connect": "buckram.client.client",
}

__all__ = [
    "AccessRefused",
    "AlreadyRegistered",
    "Batch",
    "BookieError",
    "BookieIOError",
    "BookieInfo",
    "BookieReadOnly",
    "BookieTooBusy",
    "BookieUnavailable",
    "BuckramError",
    "BufferFull",
    "CheckpointReset",
    "ChildFailed",
    "Client",
    "ClientConfig",
    "ClusterNotInitialised",
    "ConfigError",
    "CorruptEntry",
    "CorruptStore",
    "CursorMoved",
    "DigestMismatch",
    "DigestType",
    "DuplicateEntry",
    "Entry",
    "EntryTooLarge",
    "EtcdFailed",
    "ForeignDirectory",
    "ForkedClient",
    "Fragment",
    "HandleClosed",
    "InvalidArgument",
    "InvalidSegment",
    "InvariantViolation",
    "KeyExists",
    "KeyNotEmpty",
    "LedgerClosed",
    "LedgerError",
    "LedgerExists",
    "LedgerFenced",
    "LedgerIdUsed",
    "LedgerIdsExhausted",
    "LedgerMetadata",
    "LedgerOfStream",
    "LedgerState",
    "MalformedRecord",
    "MetadataError",
    "MetadataUnavailable",
    "MissingCodec",
    "Namespace",
    "NamespaceExists",
    "NamespaceNotEmpty",
    "Namespaces",
    "NetConfig",
    "NoSuchBookie",
    "NoSuchCursor",
    "NoSuchEntry",
    "NoSuchKey",
    "NoSuchLedger",
    "NoSuchNamespace",
    "NoSuchStream",
    "NotEnoughBookies",
    "NotReadable",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "OffsetTruncated",
    "OpenSegment",
    "OutOfOrderSequence",
    "PortInUse",
    "ProducerForgotten",
    "ProtocolError",
    "ReadFailed",
    "Reader",
    "Record",
    "RecordTooLarge",
    "RecordsLost",
    "RecoveryFailed",
    "RepairReport",
    "ReplayDiffers",
    "RequestTimeout",
    "StaleTransaction",
    "StoreReplaced",
    "StoreWentBack",
    "StreamEnded",
    "StreamError",
    "StreamExists",
    "StreamInfo",
    "StreamReader",
    "StreamWriter",
    "Tail",
    "TxidOutOfOrder",
    "Unauthorized",
    "UnknownLedgerState",
    "UnknownQuery",
    "ValueTooLarge",
    "VersionConflict",
    "WriteFailed",
    "Writer",
    "WriterExists",
    "WriterFailed",
    "WriterLost",
    "WrongBookie",
    "WrongCluster",
    "WrongCookie",
    "WrongLedgerManager",
    "ZooKeeperFailed",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("buckram")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})
