"""The end of a stream's life on bookies: sealed segments become files outside the cluster.

Not here: reading them back, which Spark does in the driver's process (`report.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from buckram import connect
from buckram.core.streams.names import stream_name
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.shared.metadata import StreamStore


@dataclass
class History:
    """What was offloaded."""

    segments: int = 0
    records: int = 0
    bytes: int = 0
    """Of the files."""
    places: dict[str, str] = field(default_factory=dict)
    """Where the files of each stream are; streams without any are left out."""

    def save_places(self, path: Path) -> None:
        """For the driver."""
        path.write_text(json.dumps(self.places))


async def offload(uri: str, folder: Path, streams: Sequence[str]) -> History:
    """Offload all sealed segments of the streams; the one with the newest table of producers stays on bookies."""
    found = History()
    async with connect(uri) as client:
        store = StreamStore(client.services.store)
        for name in streams:
            done = await offload_stream(client, store, stream_name(name), to=str(folder))
            found.segments += done.segments
            found.records += done.records
            found.bytes += done.file_bytes
            if done.segments:
                found.places[name] = done.location
    return found
