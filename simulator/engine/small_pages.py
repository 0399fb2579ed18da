"""Smaller pages of segment lists, for lives of whatever has streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from buckram.core.streams import compaction as stream_compaction
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.metadata import head as stream_head
from buckram.streams.maintain import delete as stream_delete
from buckram.streams.shared import metadata as stream_metadata


@contextmanager
def small_pages(on: bool = True) -> Iterator[None]:
    """Use pages of four segments instead of 256, which lives are too short to fill."""
    sizes = {"PAGE_SEGMENTS": 4, "_TAIL_MOST": 8} if on else {}
    with ExitStack() as stack:
        for module in (stream_head, stream_changes, stream_compaction, stream_metadata, stream_delete):
            for name, size in sizes.items():
                if name in vars(module):
                    stack.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, size)
        yield


__all__ = ["small_pages"]
