"""Ids of server-sent events, and the position at which a client with a Last-Event-ID resumes."""

from __future__ import annotations

import re
from typing import NamedTuple

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.positions import PositionMark, PositionVerdict
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.http.problems import HttpProblem
from buckram.streams.read.locate import known_end
from buckram.streams.read.position_check import history_now, verdict_on
from buckram.types import History, Offset

FIRST_EPOCH = 1
"""Epoch of a cluster that was never restored."""
_ID = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19})-([0-9]{1,19}))?", re.ASCII)


class EventId(NamedTuple):
    """Parsed id of an event. `epoch` and `append_time` are 0 if the id is only an offset."""

    offset: Offset
    epoch: int = 0
    append_time: int = 0


def suffix_of(history: History, append_time: int) -> str:
    """Return the part after the offset in the ids of records that were appended at this time."""
    return "" if history.epoch <= FIRST_EPOCH else f"-{history.epoch}-{append_time}"


def parse_id(text: str) -> EventId:
    """Parse a client's Last-Event-ID. Raises HttpProblem 400 if it is invalid."""
    found = _ID.fullmatch(text)
    if found is None:
        raise bad_request(f"Last-Event-ID {text[:60]!r}: needs the id that the last event had, which is an offset")
    return EventId(int(found[1]), int(found[2] or 0), int(found[3] or 0))


async def start_after(client: Client, name: StreamName, text: str) -> Offset:
    """Return the offset after the event with this id.

    HttpProblem 409 if the stream went back since, or may have; and raises as reading does.
    """
    last, now = parse_id(text), history_now(client)
    position = last.offset + 1
    if max(last.epoch, FIRST_EPOCH) >= now.epoch:
        return position
    if not last.epoch:
        raise _went_back(
            name, last, now, "and an id without an epoch does not say whether its record is still the one at the offset"
        )
    streams = client.namespace(name.namespace).store
    head = (await streams.read(name)).head
    end = await known_end(client, name, head)
    if position > end:
        return position  # whoever asks for what is beyond the end is told so
    mark = PositionMark(position, last.append_time, "", last.epoch, "")
    verdict = await verdict_on(client, streams, name, head, end, mark)
    if verdict is PositionVerdict.DIFFERS:
        raise _went_back(name, last, now, "and the stream has another record at the offset now")
    if verdict is not PositionVerdict.SAME:
        raise _went_back(name, last, now, "and the record is truncated, so that nobody can compare it")
    return position


def _went_back(name: StreamName, last: EventId, now: History, why: str) -> HttpProblem:
    do = f"follow without Last-Event-ID, from ?start={last.offset + 1} or another offset, earliest or latest"
    return HttpProblem(
        409,
        "STREAM_WENT_BACK",
        f"stream {name}: the metadata were restored since the event {last.offset} was sent (epoch {now.epoch} now), "
        f"{why}: {do}",
        value=last.offset,
        epoch=now.epoch,
        do=do,
    )


__all__ = ["EventId", "parse_id", "start_after", "suffix_of"]
