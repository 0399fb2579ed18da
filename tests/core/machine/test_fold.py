"""The fold of a machine's log: commands count once, digests are compared, a replica stops where it cannot go on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from buckram.core.machine import records
from buckram.core.machine.fold import Fold, LogEntry
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.sessions import Forgotten, Outcome
from buckram.core.machine.snapshot_format import SnapshotDecoder, SnapshotEncoder
from buckram.errors import CommandRefused, InvariantViolation, ReplicaDiverged, ReplicaStopped, UnknownCommand


class Words:
    """A list of words, as a Replicated."""

    def __init__(self, wrong: bytes = b"") -> None:
        self.words: list[bytes] = []
        self.wrong = wrong

    def apply_entry(self, entry: LogEntry) -> bytes:
        if entry.payload == b"refuse":
            raise CommandRefused("not that word")
        if entry.payload == b"new":
            raise UnknownCommand("new")
        if entry.payload == b"bug":
            raise KeyError("bug")
        self.words.append(entry.payload + (b"!" if entry.payload == self.wrong else b""))
        return b"%d" % len(self.words)

    def snapshot(self) -> Iterable[bytes]:
        return (b" ".join(self.words),)

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.words = b"".join(chunks).split()

    def digest(self) -> bytes:
        return b" ".join(self.words)


class Log:
    """Records with their offsets, applied to folds."""

    def __init__(self, *folds: Fold) -> None:
        self.folds = folds
        self.records: list[bytes] = []
        self.put(records.encode_plain(records.SESSION, 1))

    def put(self, record: bytes) -> list[Outcome | Forgotten | None]:
        offset = len(self.records)
        self.records.append(record)
        return [fold.apply(offset, record).outcome for fold in self.folds]

    def word(self, sequence: int, word: bytes, *, lowest: int = 0, time_us: int = 2) -> Outcome | Forgotten | None:
        return self.put(records.encode_command(CommandRecord(time_us, 0, sequence, lowest, word)))[0]


def fold(wrong: bytes = b"") -> Fold:
    return Fold("shop/words", Words(wrong))


def test_a_repeated_command_is_applied_once_and_gives_the_first_result() -> None:
    one = fold()
    log = Log(one)
    assert log.word(0, b"a") == Outcome(b"1")
    assert log.word(1, b"b") == Outcome(b"2")
    assert log.word(0, b"a") == Outcome(b"1")
    assert log.word(2, b"refuse") == Outcome(b"not that word", refused=True)
    assert log.word(2, b"refuse") == Outcome(b"not that word", refused=True)
    assert one.state.snapshot() == (b"a b",)
    assert one.commands == 3


def test_a_command_that_was_given_up_or_has_no_session_is_not_applied() -> None:
    one = fold()
    log = Log(one)
    log.word(0, b"a")
    log.word(5, b"b", lowest=4)
    assert isinstance(log.word(0, b"a"), Forgotten)
    assert isinstance(log.word(3, b"c"), Forgotten)
    assert isinstance(log.put(records.encode_command(CommandRecord(2, 99, 0, 0, b"d")))[0], Forgotten)
    assert one.state.snapshot() == (b"a b",)


@pytest.mark.parametrize(("word", "text"), [(b"new", "does not know the command"), (b"bug", "failed with KeyError")])
def test_a_replica_stops_before_what_it_cannot_apply(word: bytes, text: str) -> None:
    one = fold()
    log = Log(one)
    log.word(0, b"a")
    with pytest.raises(ReplicaStopped, match=text) as caught:
        log.word(1, word)
    assert caught.value.offset == one.applied == 2
    with pytest.raises(ReplicaStopped, match=text):
        log.word(2, b"b")
    assert one.state.snapshot() == (b"a",)


@pytest.mark.parametrize("value", [None, b"", b"plain record", b"\x09\x01" + bytes(8), b"\x01\x77" + bytes(8)])
def test_a_record_of_another_kind_stops_the_replica(value: bytes | None) -> None:
    with pytest.raises(ReplicaStopped):
        fold().apply(0, value)


def test_a_gap_in_the_offsets_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="R1"):
        fold().apply(1, records.encode_plain(records.NOOP, 1))


def test_a_digest_that_differs_stops_and_names_both_marks() -> None:
    right, wrong = fold(), fold(wrong=b"c")
    log = Log(right, wrong)

    def compare() -> int:
        log.put(records.encode_plain(records.MARK, 1))
        mark = len(log.records) - 1
        digest = right.marked(mark)
        assert digest is not None
        log.put(records.encode_digest(1, mark, digest))
        return mark

    log.word(0, b"a")
    first = compare()
    assert right.agreed == wrong.agreed == first
    log.word(1, b"c")
    with pytest.raises(ReplicaDiverged) as caught:
        compare()
    assert (caught.value.offset, caught.value.agreed) == (first + 3, first)
    assert wrong.stopped is caught.value


def test_a_result_that_differs_shows_in_the_digest_too() -> None:
    one, two = fold(), fold()
    Log(one).word(0, b"refuse")
    Log(two).word(0, b"a")
    two.state.restore(())
    assert one.state.digest() == two.state.digest()
    assert one.digest() != two.digest()


def test_a_snapshot_gives_the_same_state_sessions_and_digest() -> None:
    one = fold()
    log = Log(one)
    for sequence in range(10):
        log.word(sequence, b"w%d" % sequence, time_us=100 - sequence)
    encoder = SnapshotEncoder(one.header(), one.sessions.encode(), one.state.snapshot())
    decoder = SnapshotDecoder()
    for payload in encoder:
        decoder.feed(payload)
    two = fold()
    two.restore(*decoder.finish(one.applied, encoder.digest))
    assert (two.applied, two.commands, two.time_us, two.digest()) == (11, 10, 100, one.digest())
    again = records.encode_command(CommandRecord(0, 0, 3, 0, b"w3"))
    assert one.apply(11, again) == two.apply(11, again)
    assert one.state.snapshot() == two.state.snapshot()
    assert one.digest() == two.digest()


class Dated(Words):
    """Keeps a time of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0

    def apply_entry(self, entry: LogEntry) -> bytes:
        self.latest = entry.time_us
        return super().apply_entry(entry)

    def set_back(self, time_us: int) -> None:
        self.latest = min(self.latest, time_us)


def test_the_time_of_the_log_goes_back_only_by_a_record_that_says_so() -> None:
    state = Dated()
    fold = Fold("m", state)
    log = Log(fold)
    log.word(1, b"ahead", time_us=1000)
    log.word(2, b"later", time_us=10)
    assert (fold.time_us, state.latest) == (1000, 1000)
    log.put(records.encode_plain(records.TIME, 2000))
    assert fold.time_us == 1000
    log.put(records.encode_plain(records.TIME, 20))
    assert (fold.time_us, state.latest) == (20, 20)
    log.word(3, b"right", time_us=30)
    assert (fold.time_us, state.latest) == (30, 30)
    assert fold.sessions.encode() == fold.sessions.decode(fold.sessions.encode()).encode()


def test_a_state_that_keeps_no_times_needs_not_know_that_the_log_went_back() -> None:
    fold = Fold("m", Words())
    log = Log(fold)
    log.word(1, b"ahead", time_us=1000)
    log.put(records.encode_plain(records.TIME, 20))
    assert fold.time_us == 20
