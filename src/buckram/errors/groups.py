"""Errors that mean the same to those who pass them on: the command line as exit codes, the gateway as HTTP statuses."""

from __future__ import annotations

from buckram.errors import base, databases, objects, streams

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
"""What was named is not there."""
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
"""What is there does not allow it."""
