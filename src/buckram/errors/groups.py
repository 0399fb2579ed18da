"""Groups of errors that are reported alike: by the command line as exit codes, by the gateway as HTTP statuses."""

from __future__ import annotations

from buckram.errors import base, streams
from buckram.errors import state as databases
from buckram.errors import state as objects

ABSENT: tuple[type[base.BuckramError], ...] = (
    base.NoSuchLedger,
    base.NoSuchEntry,
    base.NoSuchBookie,
    base.NoSuchKey,
    streams.NoSuchStream,
    streams.NoSuchNamespace,
    streams.NoSuchCursor,
    objects.NoSuchObject,
    databases.NoSuchDatabase,
)
"""Errors for a name under which nothing exists."""
CONFLICTS: tuple[type[base.BuckramError], ...] = (
    base.LedgerFenced,
    base.LedgerClosed,
    base.LedgerExists,
    base.KeyExists,
    base.DuplicateEntry,
    streams.StreamExists,
    streams.NamespaceExists,
    streams.NamespaceNotEmpty,
    streams.StreamEnded,
    streams.MirrorStream,
    streams.ReplicationRefused,
    streams.LedgerOfStream,
    streams.ForeignLedger,
    streams.CursorMoved,
    streams.TxidOutOfOrder,
    streams.ProducerForgotten,
    streams.OutOfOrderSequence,
    objects.ObjectExists,
    objects.ObjectChanged,
    objects.DirectoryNotEmpty,
    objects.UploadIncomplete,
)
"""Errors for a request that contradicts the present state."""
