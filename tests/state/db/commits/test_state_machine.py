"""What a replica decides on records, with a real engine and without a cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from buckram.core.db import outcomes
from buckram.core.db.digest import EMPTY_DIGEST, EMPTY_PAGE, differences, page_hash, patched, replaced
from buckram.core.db.group import Group, PageChange, Receipt, cut, encode_group
from buckram.core.machine.fold import LogEntry
from buckram.core.streams.records.codecs import Codec
from buckram.errors import CommandRefused, DatabaseFailed, UnknownCommand
from buckram.seams import THREADS
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.opening import Rebuilt


@pytest.fixture
async def replica() -> AsyncIterator[Rebuilt]:
    found = Rebuilt("shop/main", None, THREADS)
    yield found
    await found.engine.close()


def _payload(sequence: int, text: bytes, *, leadership: int = 7, digest: int | None = None) -> bytes:
    """A group that writes a text into the first page, at a place that SQLite does not use."""
    ranges = [(2000, text)]
    new = patched(EMPTY_PAGE, ranges)
    right = replaced(EMPTY_DIGEST, page_hash(1, EMPTY_PAGE), page_hash(1, new))
    assert differences(EMPTY_PAGE, new)
    receipts = [Receipt(f"token{sequence}", "[]")]
    group = Group(leadership, sequence, 1, right if digest is None else digest, receipts, [PageChange(1, ranges)])
    return encode_group(group, Codec())


async def _page(replica: Rebuilt) -> bytes:
    with closing(await replica.engine.image(replica.state.sequence)) as image:
        return image.page(1)


async def _snapshot(replica: Rebuilt) -> list[bytes]:
    with closing(replica.state.snapshot()) as pieces:
        await pieces.ready()
        return list(pieces)


def _apply(state: DatabaseState, offset: int, payload: bytes) -> bytes:
    return state.apply_entry(LogEntry(offset, 0, payload))


async def test_a_group_that_was_made_for_another_state_is_void(replica: Rebuilt) -> None:
    state = replica.state
    _apply(state, 0, _payload(1, b"first"))
    for sequence in (0, 1, 3):
        with pytest.raises(CommandRefused, match="another state"):
            _apply(state, 1, _payload(sequence, b"second", leadership=9))
    await replica.engine.settled(1)
    assert (await _page(replica))[2000:2005] == b"first"
    assert (state.outcomes.has(7, 1), state.outcomes.has(9, 1)) == (True, False)
    assert (state.outcomes.counts("token1"), state.outcomes.counts("token3")) == ("[]", None)


async def test_a_group_with_another_digest_is_not_written(replica: Rebuilt) -> None:
    _apply(replica.state, 5, _payload(1, b"first", digest=1))
    with pytest.raises(DatabaseFailed, match="at offset 5"):
        await replica.engine.settled(1)
    with pytest.raises(DatabaseFailed):
        _apply(replica.state, 6, _payload(2, b"second"))


async def test_parts_are_one_group_and_lost_parts_are_none(replica: Rebuilt) -> None:
    state = replica.state
    parts = list(cut(_payload(1, bytes(range(256)) * 4), 7, 1, 100))
    assert len(parts) > 3
    for offset, part in enumerate(parts[:2]):
        assert _apply(state, offset, part) == b""
    _apply(state, 2, _payload(1, b"other", leadership=9))
    assert _apply(state, 3, parts[2]) == b""
    await replica.engine.settled(1)
    assert (await _page(replica))[2000:2005] == b"other"
    for part in parts[:-1]:
        assert _apply(state, 4, part) == b""
    with pytest.raises(CommandRefused):
        _apply(state, 4, parts[-1])


async def test_a_snapshot_has_all_of_the_state(replica: Rebuilt) -> None:
    _apply(replica.state, 0, _payload(1, b"first"))
    parts = list(cut(_payload(2, os.urandom(1000)), 7, 2, 200))
    _apply(replica.state, 1, parts[0])
    chunks = await _snapshot(replica)
    other = Rebuilt("shop/main", None, THREADS)
    try:
        other.state.restore(iter([b"".join(chunks)[:100], b"".join(chunks)[100:]]))
        await other.engine.settled(1)
        assert await _page(other) == await _page(replica)
        assert other.state.digest() == replica.state.digest()
        assert await _snapshot(other) == chunks
        assert other.state.outcomes.counts("token1") == "[]"
        whole = b"".join(chunks)
        assert (other.state.fault(chunks), other.state.fault([whole[:70], whole[70:]])) == ("", "")
        assert "cut" in other.state.fault([whole[:-1]])
        assert "empty" in other.state.fault([])
        other.state.restore([b"".join(chunks)[:-1]])
        with pytest.raises(DatabaseFailed, match="cut"):
            await other.engine.settled(1)
    finally:
        await other.engine.close()


async def test_tokens_go_by_the_time_of_the_log_on_every_replica(
    replica: Rebuilt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "KEPT_ANYWAY", 0)

    def commit(state: DatabaseState, sequence: int, time_us: int) -> None:
        group = Group(7, sequence, 1, EMPTY_DIGEST, [Receipt(f"token{sequence}", "[]")], [])
        state.apply_entry(LogEntry(sequence, time_us, encode_group(group, Codec())))

    commit(replica.state, 1, 0)
    commit(replica.state, 2, outcomes.SPAN_US)
    chunks = await _snapshot(replica)
    other = Rebuilt("shop/main", None, THREADS)
    try:
        other.state.restore(chunks)
        for number, (time_us, known) in enumerate(((outcomes.KEPT_US, [1, 2]), (outcomes.KEPT_US + 1, [2])), 3):
            for state in (replica.state, other.state):
                commit(state, number, time_us)
                assert [one for one in (1, 2) if state.outcomes.counts(f"token{one}") is not None] == known
        await other.engine.settled(4)
        assert await _snapshot(other) == await _snapshot(replica)
    finally:
        await other.engine.close()


async def test_a_record_of_a_newer_version_stops_it(replica: Rebuilt) -> None:
    with pytest.raises(UnknownCommand, match="update it"):
        _apply(replica.state, 0, b"\x09\x01" + bytes(40))
