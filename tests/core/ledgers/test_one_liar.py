"""Recovery with one lying member: what an honest member that answers holds is never cut off (F18, F20)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.ledgers.test_recovery_decides import NO, SHAPES, World, recover
from tests.support.soak import soak

from buckram.core.ledgers.answers import Answer, Positive, Unknown
from buckram.core.ledgers.reading import Race, Strategy
from buckram.core.ledgers.recovery import Promises
from buckram.errors import BookieUnavailable, RecoveryFailed
from buckram.types import Entry, EntryId

YES: Answer[int] = Positive(1)
GONE: Answer[int] = Unknown(BookieUnavailable("x", "refused"))
TOLERANT = [shape for shape in SHAPES if shape[2] >= 2]


class LyingWorld(World):
    """b0 acknowledged what it never stored, denies what it likes and shows an old entry for its last."""

    def __init__(self, rng: random.Random, shape: tuple[int, int, int]) -> None:
        super().__init__(rng, shape)
        self.down.discard("b0")
        self.damaged.clear()
        self.breaks_on_add.clear()

    def _write(self, entry_id: EntryId) -> None:
        super()._write(entry_id)
        claims = [self.members[position] for position in self.quorum.write_set(entry_id)]
        honest = [bookie for bookie in claims if bookie != "b0" and entry_id in self.stored[bookie]]
        if "b0" in claims and len(honest) + 1 >= self.quorum.ack_quorum and self.acked == entry_id - 1:
            self.acked = entry_id
            self.stored["b0"].pop(entry_id, None)

    def read(self, bookie: str, entry_id: EntryId | None) -> Answer[Entry]:
        if bookie == "b0" and self.rng.random() < 0.8:
            return NO
        return super().read(bookie, entry_id)


@settings(max_examples=soak(400, 200), deadline=None)
@given(st.sampled_from(TOLERANT), st.integers(0, 2**48))
def test_a_liar_cuts_off_nothing_that_an_honest_member_shows(shape: tuple[int, int, int], seed: int) -> None:
    world = LyingWorld(random.Random(seed), shape)
    held = {bookie: set(entries) for bookie, entries in world.stored.items()}
    try:
        back, _ = recover(world)
    except RecoveryFailed:
        assert world.down
        return
    lost = back.head + 1
    if lost <= world.acked:
        members = [world.members[position] for position in world.quorum.write_set(lost)]
        assert all(bookie in world.down for bookie in members if lost in held[bookie] and bookie != "b0")


@settings(max_examples=soak(300, 150), deadline=None)
@given(st.lists(st.sampled_from(["no", "yes", "silent", "gone"]), min_size=1, max_size=5), st.data())
def test_a_patient_race_ends_with_a_copy_or_when_nobody_is_left(says: list[str], data: st.DataObject) -> None:
    """Whatever the order: a copy that comes before the time is over wins, and silence never decides by itself."""
    names = [f"b{i}" for i in range(len(says))]
    enough = data.draw(st.integers(1, len(says)))
    race: Race[int] = Race(names, Strategy.PARALLEL, enough_negatives=enough, patient=True)
    race.start()
    answers: dict[str, Answer[int]] = {"no": NO, "gone": GONE, "yes": YES}
    order = data.draw(st.permutations(range(len(says))))
    for place in order:
        if says[place] != "silent":
            race.answered(names[place], answers[says[place]])
    if "yes" in says:
        assert race.outcome == YES
        return
    assert (race.outcome is None) == ("silent" in says)
    race.give_up()
    denied = says.count("no") >= enough
    assert race.denied == denied
    if denied:
        assert race.outcome == NO
    elif "silent" in says:
        assert race.outcome is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20), st.booleans())), st.integers(-1, 20))
def test_an_end_is_refused_exactly_where_a_promise_lies_beyond_it(heard: list[tuple[int, int, bool]], end: int) -> None:
    promises = Promises(1)
    for bookie, lac, sealed in heard:
        if sealed:
            promises.sealed_lac(f"b{bookie}", lac)
        else:
            promises.entry(f"b{bookie}", Entry(1, lac + 1, b"", lac, 0))
    broken = any(lac > end for _, lac, _ in heard)
    assert promises.broken_by(end) == broken
    if broken:
        with pytest.raises(RecoveryFailed, match=f"entry {end + 1} does not exist"):
            promises.check_end(end)
    else:
        promises.check_end(end)
