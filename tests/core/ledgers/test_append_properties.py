"""AppendWindow against a naive model that keeps a set of acknowledgements per entry and recorded fragments.

Hypothesis chooses the order of sends, acknowledgements (also partial, stale and out of order), failures, changes of
ensemble (also back to an earlier bookie) and returns. After every step the head, the LAC and the lengths must be the
model's, and every newly acknowledged entry must be stored by Qa members that the recorded fragment names (S4).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.ledgers.append import AppendWindow, Run, Send
from buckram.core.ledgers.quorum import Quorum

SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


def frame(entry: int) -> bytes:
    """Four bytes of length, ten of overhead, a payload whose size depends on the id."""
    body = struct.pack(">Qxx", entry) + b"p" * (entry % 7)
    return struct.pack(">I", len(body)) + body


def make_run(first: int, count: int) -> Run:
    entries = range(first, first + count)
    acks = b"".join(struct.pack(">Q20x", e) for e in entries)
    frames = [frame(e) for e in entries]
    return Run(first, first + count - 1, frames if count % 2 else b"".join(frames), acks, sum(e % 7 for e in entries))


@dataclass
class Model:
    quorum: Quorum
    window: AppendWindow
    recorded: list[tuple[int, tuple[str, ...]]]
    valid: dict[int, set[int]] = field(default_factory=dict)
    """Per pending entry the positions whose present bookie acknowledged it."""
    stored: dict[str, set[int]] = field(default_factory=dict)
    wire: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(slot, bookie, first, last) sent and not answered."""
    head: int = -1
    frozen: bool = False
    fresh: int = 0

    def send(self, sends: list[Send]) -> None:
        for send in sends:
            entries = [e for low, high in send.rows for e in range(low, high + 1)]
            assert send.data == b"".join(map(frame, entries))
            assert send.acks == b"".join(struct.pack(">Q20x", e) for e in entries)
            assert all(send.position in self.quorum.write_set(e) for e in entries)
            assert send.position == send.slot % self.quorum.ensemble_size
            self.wire += [(send.slot, self.window.ensemble[send.position], low, high) for low, high in send.rows]

    def append(self, count: int) -> None:
        entries = range(self.window.next_entry, self.window.next_entry + count)
        first = self.window.enqueue(count, sum(e % 7 for e in entries))
        assert first == entries[0]
        run = make_run(first, count)
        self.window.start(run)
        self.send(self.window.stripe(run))
        self.valid.update((e, set()) for e in entries)

    def acknowledge(self, index: int, part: int) -> None:
        slot, bookie, first, last = self.wire.pop(index % len(self.wire))
        cut = min(last, first + part)
        if cut < last:
            self.wire.append((slot, bookie, cut + 1, last))
        position = slot % self.quorum.ensemble_size
        self.stored.setdefault(bookie, set()).update(range(first, cut + 1))
        if self.window.slots[position] == slot:
            for entry in range(first, cut + 1):
                if entry in self.valid:
                    self.valid[entry].add(position)
        self.drained(self.window.acked(slot, first, cut))

    def fail(self, index: int) -> None:
        slot, _bookie, _, _ = self.wire.pop(index % len(self.wire))
        position = slot % self.quorum.ensemble_size
        current = self.window.slots[position] == slot and position not in self.window.absent
        assert (self.window.failed(slot) is not None) is current
        if current:
            for positions in self.valid.values():
                positions.discard(position)
        self.drained(moved=False)

    def freeze(self) -> None:
        if self.window.absent and not self.frozen:
            assert self.window.freeze() == self.head + 1
            self.frozen = True

    def record(self, keep: int, reuse: bool) -> None:
        """Durable metadata names new bookies for the absent positions but those in the bit set `keep`."""
        ensemble = list(self.window.ensemble)
        for position in list(self.window.absent):
            if not keep >> position & 1:
                old = f"b{position}.0"
                self.fresh += 1
                ensemble[position] = old if reuse and old not in ensemble else f"b{position}.{self.fresh}"
        first = self.head + 1
        if self.recorded[-1][0] == first:
            self.recorded.pop()
        self.recorded.append((first, tuple(ensemble)))
        sends, moved = self.window.resume(ensemble)
        self.frozen = False
        self.send(sends)
        self.drained(moved)

    def readmit(self) -> None:
        if self.window.absent and not self.frozen:
            self.send(self.window.readmit(list(self.window.absent)))

    def drained(self, moved: bool) -> None:
        before = self.head
        while not self.frozen and len(self.valid.get(self.head + 1, ())) >= self.quorum.ack_quorum:
            self.head += 1
            ensemble = [members for first, members in self.recorded if first <= self.head][-1]
            write_set = [ensemble[p] for p in self.quorum.write_set(self.head)]
            holders = [b for b in write_set if self.head in self.stored.get(b, ())]
            assert len(holders) >= self.quorum.ack_quorum, "S4: acknowledged without Qa recorded copies"
            del self.valid[self.head]
        assert self.window.pending_head == self.window.lac == self.head, "acknowledged too much, too little or not yet"
        assert moved is (self.head > before)
        assert self.window.force_point() == (self.head, sum(e % 7 for e in range(self.head + 1)))
        assert len(set(self.window.ensemble)) == self.quorum.ensemble_size


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("ack"), st.integers(0, 50), st.integers(0, 6)),
    st.tuples(st.just("ack"), st.integers(0, 50), st.just(9)),
    st.tuples(st.just("ack"), st.just(0), st.just(9)),
    st.tuples(st.just("fail"), st.integers(0, 50), st.sampled_from([0, 1, 1])),
    st.tuples(st.just("freeze"), st.just(0), st.just(0)),
    st.tuples(st.just("record"), st.sampled_from([0, 0, 1, 2, 31]), st.integers(0, 1)),
    st.tuples(st.just("readmit"), st.just(0), st.just(0)),
)


@settings(max_examples=soak(600, 200), deadline=None)
@given(st.sampled_from(SHAPES), st.lists(STEPS, min_size=8, max_size=60))
def test_window_equals_the_model(shape: tuple[int, int, int], steps: list[tuple[str, int, int]]) -> None:
    quorum = Quorum(*shape)
    ensemble = tuple(f"b{p}.0" for p in range(quorum.ensemble_size))
    model = Model(quorum, AppendWindow(1, quorum, ensemble), [(0, ensemble)])
    for kind, a, b in steps:
        if kind == "append":
            model.append(a)
        elif kind == "ack" and model.wire:
            model.acknowledge(a, b)
        elif kind == "fail" and model.wire:
            model.fail(a)
            if b:
                model.freeze()
        elif kind == "freeze":
            model.freeze()
        elif kind == "record" and model.frozen:
            model.record(a, bool(b))
        elif kind == "readmit":
            model.readmit()
    # L4, L3: with everybody back and every answer given nothing is left pending, whatever happened before.
    if model.frozen:
        model.record(0, reuse=False)
    model.readmit()
    while model.wire:
        model.acknowledge(0, 99)
    window = model.window
    assert window.pending_head == window.next_entry - 1
    assert (window.pending_entries, window.pending_bytes) == (0, 0)
    assert window.close() == (window.next_entry - 1, sum(e % 7 for e in range(window.next_entry)))


@settings(max_examples=soak(200, 100), deadline=None)
@given(st.sampled_from(SHAPES), st.permutations(range(12)), st.lists(st.integers(0, 60)), st.booleans())
def test_explicit_ids_are_acknowledged_in_id_order(
    shape: tuple[int, int, int], order: list[int], picks: list[int], deferred: bool
) -> None:
    quorum = Quorum(*shape)
    window = AppendWindow(
        1, quorum, [f"b{p}" for p in range(quorum.ensemble_size)], explicit_ids=True, deferred_sync=deferred
    )
    acks: dict[int, int] = {}
    wire: list[tuple[int, int]] = []

    def deliver(index: int) -> None:
        slot, entry = wire.pop(index)
        acks[entry] = acks.get(entry, 0) + 1
        window.acked(slot, entry, entry)
        head = -1
        while acks.get(head + 1, 0) >= quorum.ack_quorum:
            head += 1
        assert window.pending_head == head
        assert window.lac == (-1 if deferred else head)

    for entry in order:
        window.enqueue_at(entry, entry % 7)
        run = make_run(entry, 1)
        window.start(run)
        wire += [(send.slot, entry) for send in window.stripe(run)]
        if picks:
            deliver(picks.pop() % len(wire))
    while wire:
        deliver(0)
    assert window.pending_head == len(order) - 1
