"""Bulk steps beside a live writer: it lists their ledgers between its own segments, and goes on behind them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.support.polling import until

from buckram.core.streams.metadata.insertions import Insertion, encode_insertion
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import stream_name
from buckram.errors import BufferFull, InvalidArgument, NoSuchKey, OffsetMismatch, OpenSegment, StaleTransaction
from buckram.namespace import Namespace
from buckram.streams.shared.ledgers import list_intents
from buckram.streams.write import bulk, engine
from buckram.streams.write import insertion as asking
from buckram.streams.write.bulk import Bulk, SealedLedger, publish_together

NAME = stream_name("s", "shop")


async def ledger(step: Bulk, *values: bytes) -> SealedLedger:
    made = await step.create_ledger()
    await made.append_many(values)
    return await made.close()


async def insert(ns: Namespace, version: int, *values: bytes, stream: str = "s") -> range:
    step = await ns.bulk(stream, application="job", version=version)
    assert step.foreseen(beside_writer=True)
    done = await step.publish([await ledger(step, *values)], beside_writer=True)
    return range(done.first_offset, done.next_offset)


async def values(ns: Namespace) -> list[bytes | None]:
    records = [record async for record in ns.read("s")]
    assert [record.offset for record in records] == list(range(len(records)))
    assert [record.append_time for record in records] == sorted(record.append_time for record in records)
    return [record.value for record in records]


async def test_a_writer_lets_a_step_in_and_goes_on_behind_it(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append_many([b"0", b"1"])
        assert await insert(ns, 1, b"2", b"3") == range(2, 4)
        assert w.next_offset == 4
        assert await w.append(b"4") == 4
        assert await insert(ns, 2, b"5") == range(5, 6)
        assert await insert(ns, 3, b"6") == range(6, 7), "the writer has no segment in the list"
        assert await w.append(b"7") == 7
        assert not w.lost.is_set()
    assert await values(ns) == [b"%d" % i for i in range(8)]
    assert await list_intents(ns.store, (await ns.info("s")).uid) == []


async def test_a_writer_that_has_written_nothing_lets_a_step_in(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        assert await insert(ns, 1, b"0") == range(1)
        assert await w.append(b"1") == 1
    async with ns.writer("s") as w:
        assert await insert(ns, 2, b"2") == range(2, 3)
    assert await values(ns) == [b"0", b"1", b"2"]


async def test_appends_of_all_kinds_go_on_meanwhile(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        found: dict[int, bytes] = {}
        over = False

        async def one(name: str, step: int) -> None:
            number = 0
            while not over:
                value = f"{name}{number}".encode()
                if step == 0:
                    found[await w.append(value, producer=name, sequence=number)] = value
                elif step == 1:
                    found[await w.append_nowait(value)] = value
                elif step == 2:
                    pair = [value, value + b"'"]
                    found.update(zip(await w.append_many(pair, atomic=True), pair, strict=True))
                else:
                    many = [b"%s.%d" % (value, i) + bytes(300) for i in range(2000)]
                    found.update(zip(await w.append_many(many), many, strict=True))
                number += 1

        work = [asyncio.create_task(one(name, step)) for step, name in enumerate("abcd")]
        for version in range(6):
            before = len(found)
            await until(lambda: len(found) > before + 50)  # noqa: B023 - waited for here
            places = await insert(ns, version, b"x%d" % version, b"y%d" % version)
            found.update(zip(places, (b"x%d" % version, b"y%d" % version), strict=True))
        over = True
        await asyncio.gather(*work)
    assert await values(ns) == [found[at] for at in range(len(found))]


async def test_producers_are_known_behind_it(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"0", producer="p", sequence=0)
        await insert(ns, 1, b"1")
        assert await w.append(b"again", producer="p", sequence=0) == 0
        assert await w.append(b"2", producer="p", sequence=1) == 2
        with pytest.raises(OffsetMismatch):
            await w.append(b"x", expect_offset=1)
    async with ns.writer("s") as w:
        assert await w.append(b"again", producer="p", sequence=1) == 2
    assert await values(ns) == [b"0", b"1", b"2"]


async def test_the_same_step_is_published_once(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"0")
        steps = [await ns.bulk("s", application="job", version=7) for _ in range(4)]
        made = [await ledger(step, b"1") for step in steps]
        done = await asyncio.gather(
            *(step.publish([one], beside_writer=True) for step, one in zip(steps, made, strict=True))
        )
        assert {one.first_offset for one in done} == {1}
        older = await ns.bulk("s", application="job", version=6)
        with pytest.raises(StaleTransaction):
            await older.publish([await ledger(older, b"x")], beside_writer=True)
        assert await w.append(b"2") == 2
    assert await values(ns) == [b"0", b"1", b"2"]


async def test_a_writer_that_does_not_answer_is_waited_for_and_named(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release without insertions holds the stream: nothing is left behind that a later writer could carry out."""

    async def silent(*_: object) -> None:
        """As a release that knows no such question."""

    monkeypatch.setattr(bulk, "ANSWER_S", 0.2)
    monkeypatch.setattr(engine, "answer_insertions", silent)
    async with ns.writer("s", name="alice") as w:
        with pytest.raises(OpenSegment, match="'alice'"):
            await insert(ns, 1, b"x")
        with pytest.raises(NoSuchKey):
            await ns.store.keys.get(ns.store.layout.insertion(w._engine.uid))
        assert await w.append(b"0") == 0
    assert await values(ns) == [b"0"]


async def test_a_question_that_was_taken_back_or_is_nonsense_changes_nothing(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"0")
        info = await ns.info("s")
        key, keys = ns.store.layout.insertion(info.uid), ns.store.keys
        for value in (b"nonsense", b'{"step": ["a", -1, "", "", false], "ledgers": [], "nonce": ""}'):
            await keys.create(key, value)
            await gone(ns, key)
        # A ledger without an intent is not the step's any more.
        lost = bulk.InsertedLedger(2**40, _summary())
        await keys.create(key, encode_insertion("s", Insertion(StepId("job", 1), (lost,), "n")))
        await gone(ns, key)
        assert await w.append(b"1") == 1
    assert await values(ns) == [b"0", b"1"]


def _summary() -> bulk.Summary:
    return bulk.Summary(1, 0, 10, 0, 0, 0, 0, -1, -1)


async def gone(ns: Namespace, key: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await ns.store.keys.get(key)
            except NoSuchKey:
                return
            await asyncio.sleep(0.01)


async def test_what_is_no_use_beside_a_writer_is_refused(ns: Namespace) -> None:
    await ns.create("s")
    step = await ns.bulk("s", application="job", version=1)
    made = await ledger(step, b"0")
    with pytest.raises(InvalidArgument, match="neither seal_live"):
        await step.publish([made], beside_writer=True, seal_live=True)
    rows = tuple(bulk.InsertedLedger(n, _summary()) for n in range(101))
    with pytest.raises(InvalidArgument, match="101 ledgers in one step beside a writer, the limit is 100"):
        encode_insertion("shop/s", Insertion(StepId("a", 0), rows, ""))
    await ns.create("t")
    other = await ns.bulk("t", application="job", version=1)
    async with ns.writer("t"):
        with pytest.raises(OpenSegment):
            await publish_together([(step, [made]), (other, [await ledger(other, b"1")])], beside_writer=True)


async def test_append_nowait_has_a_bound_while_offsets_are_held_back(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        appender = w._engine._appender
        appender.hold()
        futures = []
        with suppress(BufferFull):
            for _ in range(200):
                futures.append(w.append_nowait(bytes(1 << 20)))
        assert 1 < len(futures) < 100
        appender.let_go()
        assert [await future for future in futures] == list(range(len(futures)))


async def test_the_question_goes_with_the_stream(ns: Namespace) -> None:
    info = await ns.create("s")
    key = ns.store.layout.insertion(info.uid)
    await ns.store.keys.create(key, b"{}", ephemeral=True)
    await ns.delete("s")
    with pytest.raises(NoSuchKey):
        await ns.store.keys.get(key)
    assert asking.ANSWER_S == 30
