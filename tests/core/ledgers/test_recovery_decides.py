"""Recovery against every small cluster state: what was acknowledged stays, nothing is guessed, Qa copies at the end."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.ledgers.answers import Answer, Negative, Positive, Unknown
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import Fencing, ForwardRead, Resend, WriteBack
from buckram.errors import BookieUnavailable, Code, DigestMismatch, RecoveryFailed
from buckram.types import Entry, EntryId, Fragment, LedgerMetadata, LedgerState

SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]
NO = Negative(Code.NO_ENTRY)


class World:
    """Bookies with what they hold of one ledger whose last fragment begins at `first`; some down, some damaged."""

    def __init__(self, rng: random.Random, shape: tuple[int, int, int]) -> None:
        self.rng = rng
        self.quorum = Quorum(*shape)
        self.first = rng.choice([0, 0, 3])
        members = tuple(f"b{i}" for i in range(shape[0]))
        self.metadata = LedgerMetadata(
            *shape,
            (Fragment(0, members),) if self.first == 0 else (Fragment(0, members[::-1]), Fragment(3, members)),
            LedgerState.IN_RECOVERY,
        )
        self.members = members
        self.stored: dict[str, dict[EntryId, Entry]] = {f"b{i}": {} for i in range(shape[0] + 2)}
        self.written = self.first + rng.randint(0, 5)
        self.acked = self.first - 1
        for entry_id in range(self.first, self.written):
            self._write(entry_id)
        self.down = {b for b in self.stored if rng.random() < 0.2}
        self.damaged = {b for b in self.stored if rng.random() < 0.1}
        self.breaks_on_add = {b for b in self.stored if rng.random() < 0.2}

    def _write(self, entry_id: EntryId) -> None:
        copies = 0
        for position in self.quorum.write_set(entry_id):
            if self.rng.random() < 0.7:
                lac = self.rng.randint(self.first - 1, self.acked)
                self.stored[self.members[position]][entry_id] = Entry(1, entry_id, b"%d" % entry_id, lac, 10 + entry_id)
                copies += 1
        if copies >= self.quorum.ack_quorum and self.acked == entry_id - 1:
            self.acked = entry_id

    def read(self, bookie: str, entry_id: EntryId | None) -> Answer[Entry]:
        if bookie in self.down:
            return Unknown(BookieUnavailable(bookie, "down"))
        held = self.stored[bookie]
        if entry_id is None:
            entry_id = max(held, default=-1)
        if entry_id not in held:
            return NO
        if bookie in self.damaged:
            return Unknown(DigestMismatch(1, "flipped"))
        return Positive(held[entry_id])


def recover(world: World) -> tuple[WriteBack, EntryId]:
    rng = world.rng
    fencing = Fencing(1, world.metadata)
    for position in rng.sample(range(len(world.members)), len(world.members)):
        if fencing.answered(position, world.read(world.members[position], None)):
            break
    assert fencing.covered
    reads, back = ForwardRead(1, world.metadata, fencing.start), WriteBack(1, world.metadata, fencing.start)
    flying: list[Resend] = []
    while not (reads.finished and back.pending == 0):
        wanted = reads.next_reads(3)
        rng.shuffle(wanted)
        for entry_id in wanted:
            race = reads.race(entry_id, {})
            asked = list(race.start())
            while race.outcome is None:
                bookie = asked.pop(rng.randrange(len(asked)))
                asked += race.answered(bookie, world.read(bookie, entry_id))
            reads.decided(entry_id, race.outcome)
        flying += back.add(reads.take())
        for _ in range(rng.randint(0, 4)):
            if flying:
                deliver(world, back, flying)
        if reads.finished and flying:
            deliver(world, back, flying)
        if back.to_replace:
            spare = [b for b in world.stored if b not in back.ensemble and b not in back.failed]
            flying += back.replaced(dict(zip(back.to_replace, spare, strict=False)))
    return back, fencing.start


def deliver(world: World, back: WriteBack, flying: list[Resend]) -> None:
    send = flying.pop(world.rng.randrange(len(flying)))
    if send.bookie in world.down or send.bookie in world.breaks_on_add:
        back.add_failed(send.position, send.bookie)
        return
    for entry in send.entries:
        world.stored[send.bookie][entry.entry_id] = entry
    first, last = send.entries[0].entry_id, send.entries[-1].entry_id
    for entry_id in range(first, last + 1):
        if world.quorum.holds(send.position, entry_id):
            back.acked(send.position, send.bookie, entry_id, entry_id)


@settings(max_examples=soak(400, 200), deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 2**48))
def test_recovery_keeps_what_was_acknowledged_and_stores_it_at_the_ack_quorum(
    shape: tuple[int, int, int], seed: int
) -> None:
    world = World(random.Random(seed), shape)
    try:
        back, start = recover(world)
    except RecoveryFailed:
        assert world.down | world.damaged | world.breaks_on_add  # F13: it gives up only for a reason
        return
    assert start >= world.first - 1  # F9
    assert back.frozen_lac == start  # F10
    assert world.acked <= back.head < max(world.written, world.first)  # S1, S9
    assert all(world.first <= key <= back.head for key in back.fragments)  # S10
    for entry_id in range(start + 1, back.head + 1):  # S5
        keys = [key for key in back.fragments if key <= entry_id]
        ensemble = back.fragments[max(keys)] if keys else world.members
        copies = [ensemble[p] for p in world.quorum.write_set(entry_id) if entry_id in world.stored[ensemble[p]]]
        assert len(copies) >= world.quorum.ack_quorum
        assert len(set(ensemble)) == len(ensemble)
