"""Space of the store's own: a file of some megabytes that is given up when the device is full, and made again later.

On a full device a superblock or a footer needs a few kilobytes before anything can be deleted. Without them nothing
could be given back, nor could a bookie that was stopped be started. Whoever writes such a thing does it through `run`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from buckram.disk.trouble import no_room, passing
from buckram.seams import Disk

log = logging.getLogger("buckram.store")
T = TypeVar("T")
NAME = "reserve"
BYTES = 8 << 20
_UNIT = 4096


class Reserve:
    """Blocking, one job at a time touches it. `bytes`: how large it should be; a smaller one is better than none."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self.bytes = min(BYTES, segment_bytes // 2 // _UNIT * _UNIT)
        self.present = NAME in disk.names()

    def run(self, job: Callable[[], T]) -> T:
        """Do it; where there is no room, do it again in the room of the reserve. It may be done twice."""
        try:
            return job()
        except OSError as error:
            if not no_room(error) or not self.give_up():
                raise
        return job()

    def give_up(self) -> bool:
        """Its space is free now; False if there was none."""
        if not self.present:
            return False
        self.present = False
        self._disk.remove(NAME)
        self._disk.sync_names()
        log.warning("the disk is full: the file %r is given up for what the store must write down", NAME)
        return True

    def make(self) -> None:
        """Once there is room again; where there is little, of what is there, leaving some for whoever writes next."""
        if self.present:
            return
        try:
            size = min(self.bytes, self._disk.space().free_bytes - self.bytes // 4) // _UNIT * _UNIT
            if size < max(_UNIT, self.bytes // 4):
                return
            self._disk.open(NAME, create=True, size=size).close()
        except OSError as error:
            if not passing(error):
                raise
            return
        self.present = True
