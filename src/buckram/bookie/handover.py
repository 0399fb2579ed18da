"""Takes over from a killed process of the same bookie by ending its metadata session at once.

Otherwise the old registration stays until the session expires (ten seconds on ZooKeeper), and the new process may not
treat it as its own. The lock of the directory proves that the old process is dead; `Disk.identity` proves that the
directory is not a copy of one whose bookie is alive.
"""

from __future__ import annotations

import logging

from buckram.errors import InvalidArgument, MetadataError
from buckram.seams import Disk, MetadataStore, Write

log = logging.getLogger("buckram.bookie")
SESSION_FILE = "SESSION"
_SIZE = 512


class Handover:
    """One directory and the session of the process that holds its lock."""

    def __init__(self, disk: Disk, metadata: MetadataStore) -> None:
        self._disk, self._metadata = disk, metadata
        self._written = ""

    async def end_previous(self) -> None:
        """End the session of the process before. After an error the registration waits until that session expires."""
        identity = self._disk.identity()
        if not identity or SESSION_FILE not in self._disk.names():
            return
        file = self._disk.open(SESSION_FILE)
        try:
            left, _, rest = file.read(0, _SIZE).decode("ascii", "replace").partition("\n")
        finally:
            file.close()
        ticket, newline, _ = rest.partition("\n")
        if left != identity or not newline or not ticket or ticket == self._metadata.session_ticket():
            return
        try:
            await self._metadata.end_session(ticket)
        except (InvalidArgument, MetadataError) as error:
            log.info("the session of the process before is waited for: %s", error)

    def remember(self) -> None:
        """Write down the present session for the next process; call it before the session registers anything.

        The file is not synced, because after a reboot it is not needed. Errors are only logged.
        """
        ticket, identity = self._metadata.session_ticket(), self._disk.identity()
        if not ticket or not identity or ticket == self._written:
            return
        record = f"{identity}\n{ticket}\n".encode("ascii").ljust(_SIZE, b"\n")
        if len(record) > _SIZE:
            return
        try:
            file = self._disk.open(SESSION_FILE, create=SESSION_FILE not in self._disk.names())
            try:
                self._disk.write_now([Write(file, 0, [record])], sync=False)
            finally:
                file.close()
        except OSError as error:
            log.info(
                "%s cannot be written, so a restart after a kill waits for the session's end: %s", SESSION_FILE, error
            )
            return
        self._written = ticket
