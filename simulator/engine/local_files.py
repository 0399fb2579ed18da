"""The files of simulated bookies as seen by clients on the same machine: `seams.LocalFiles`.

In the simulator every client is on the machine of every bookie.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence

from buckram.seams import FileData, FileRange
from simulator.engine.disk import Device

_AT_ONCE = 0.5
"""The share of reads that are complete when they return, as those of a fast device."""


class SimLocalFiles:
    """seams.LocalFiles. `devices` returns all devices by name; `on_read` is called after each read that succeeded."""

    def __init__(
        self, rng: random.Random, devices: Callable[[], dict[str, Device]], on_read: Callable[[], None]
    ) -> None:
        self._rng, self._devices, self._on_read = rng, devices, on_read

    def open(self, directory: str, identity: str) -> SimDirectory | None:
        device = self._devices().get(directory)
        return (
            SimDirectory(device, self._rng, self._on_read) if device is not None and identity == device.name else None
        )


class SimDirectory:
    """The directory of one device. Its files may be damaged, from before a crash, or fail to be read."""

    def __init__(self, device: Device, rng: random.Random, on_read: Callable[[], None]) -> None:
        self._device, self._rng, self._on_read = device, rng, on_read

    def read(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        return self._at_once(places) if self._rng.random() < _AT_ONCE else asyncio.ensure_future(self._late(places))

    def _at_once(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        done: asyncio.Future[list[FileData]] = asyncio.get_running_loop().create_future()
        try:
            done.set_result([self._piece(*place) for place in places])
        except OSError as error:
            done.set_exception(error)
        return done

    async def _late(self, places: Sequence[FileRange]) -> list[FileData]:
        low, high = self._device.read_s
        await asyncio.sleep(low + (high - low) * self._rng.random())
        return [self._piece(*place) for place in places]

    def _piece(self, name: str, offset: int, length: int) -> FileData:
        if self._device.fail_reads:
            self._device.fail_reads -= 1
            raise OSError(errno.EIO, "input/output error")
        data = self._device.model.inode(name).read(offset, length)
        self._on_read()
        return FileData(data, 0)

    def give_back(self, pieces: Sequence[FileData]) -> None:
        """Do nothing: buffers are not used again."""
