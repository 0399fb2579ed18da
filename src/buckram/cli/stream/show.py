"""Output of `buckram stream`: streams as text, and as JSON.

Not here: the commands, and gathering what they print (`cli/stream/commands.py`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from buckram.cli.shared import values
from buckram.cli.shared.output import counted, emit
from buckram.serve.json_views.streams import cursor_json, info_json, segment_json

if TYPE_CHECKING:
    from buckram.core.streams.metadata.head import Segment
    from buckram.streams.info import StreamInfo
    from buckram.streams.read.cursors import CursorInfo


def last_append_text(time_us: int) -> str:
    """Return the time of the last append (microseconds UTC) in ISO form; empty for 0, a stream without records."""
    return values.iso(time_us) if time_us else ""


def writer_text(info: StreamInfo) -> str:
    """Return the writer's name and whether it is gone, "ended" for a stream that has ended, or an empty text."""
    if info.ended or info.writer is None:
        return "ended" if info.ended else ""
    return f"{info.writer.name} (gone)" if info.writer_gone else info.writer.name


def print_stream(
    info: StreamInfo,
    cursors: list[CursorInfo],
    rows: list[Segment],
    as_json: bool,
    tiers: dict[str, dict[str, int]] | None = None,
) -> None:
    """Print a stream with its cursors, these segments, and the contents of each tier if `tiers` is given."""
    if as_json:
        shown = info_json(info) | {"cursors": [cursor_json(found) for found in cursors]}
        shown |= {"tier": tiers} if tiers is not None else {}
        emit(shown | ({"segment_list": [segment_json(row) for row in rows]} if rows else {}))
        return
    state = "ended" if info.ended else f"writer {writer_text(info)}" if info.writer else "no writer"
    segments = counted(info.segments, "segment")
    print(f"stream {info.name}: offsets {info.earliest}..{info.end} (not included), {segments}, {state}")
    if info.purpose.value != "records":
        print(f"  purpose {info.purpose.value}")
    if info.fork is not None:
        print(f"  fork of {info.fork.source} at offset {info.fork.at}")
    if info.last_append:
        print(f"  last append {values.iso(info.last_append)}")
    if tiers is not None and tiers["history"]["segments"]:
        old = tiers["history"]
        size = f"{counted(old['records'], 'record')}, {counted(old['bytes'], 'byte')}"
        print(f"  history: {counted(old['segments'], 'segment')}, {size}")
    print(f"  policy {values.shown_policy(dataclasses.asdict(info.policy))}")
    for key, value in info.properties.items():
        print(f"  {key} = {value}")
    for found in cursors:
        print(f"  cursor {found.name} at {found.offset}, lag {found.lag}")
    for row in rows:
        done = row.summary
        size = f"{counted(done.records, 'record')}, {counted(done.bytes, 'byte')}" if done else "open"
        place = f"ledger {row.ledger}" if row.offloaded is None else f"history at {row.offloaded.location}"
        print(f"  segment {row.number}: {place}, from offset {row.base}, {size}")
