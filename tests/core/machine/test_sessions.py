"""The session table: what it keeps, what it drops and when, and its bytes."""

from __future__ import annotations

import pytest

from buckram.core.machine import sessions
from buckram.core.machine.sessions import CommandToken, Forgotten, Outcome, Sequences, SessionTable, parse_token
from buckram.errors import InvalidArgument


def stored(table: SessionTable, session: int, sequence: int, result: bytes = b"r", *, time_us: int = 0) -> None:
    assert table.known(session, sequence) is None
    table.store(session, sequence, 0, Outcome(result), time_us, 0)


def test_only_silence_in_time_and_in_commands_ends_a_session() -> None:
    for time_us, commands, left in [
        (sessions.SILENT_US, 10, 2),
        (10, sessions.SILENT_COMMANDS, 2),
        (sessions.SILENT_US, sessions.SILENT_COMMANDS, 1),
    ]:
        table = SessionTable()
        table.open(0, 0, 0)
        table.open(1, time_us, commands)
        assert len(table) == left


def test_the_session_that_was_silent_the_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    table = SessionTable()
    for session in range(3):
        table.open(session, 0, 0)
    stored(table, 0, 0)
    table.open(3, 0, 0)
    assert isinstance(table.known(1, 0), Forgotten)
    assert table.known(0, 0) == Outcome(b"r")


def test_results_are_dropped_for_room_and_their_commands_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_RESULT_BYTES", 1000)
    table = SessionTable()
    table.open(0, 0, 0)
    for sequence in range(11):
        stored(table, 0, sequence, bytes(100))
    assert table.result_bytes <= 1000 * 7 // 8
    first = table.known(0, 0)
    assert isinstance(first, Forgotten)
    assert "was executed" in first.message
    assert table.known(0, 10) == Outcome(bytes(100))


def test_the_window_of_one_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SEQUENCES", 4)
    table = SessionTable()
    table.open(0, 0, 0)
    for sequence in range(6):
        stored(table, 0, sequence)
    assert isinstance(table.known(0, 1), Forgotten)
    assert table.known(0, 2) == Outcome(b"r")


def test_encoding_and_decoding_give_the_same_table() -> None:
    table = SessionTable()
    table.open(7, 5, 6)
    table.open(8, 9, 10)
    stored(table, 8, 3, b"three", time_us=11)
    table.store(7, 0, 0, Outcome(b"no", refused=True), 12, 13)
    table.store(7, 1, 1, Outcome(b""), 12, 13)
    again = SessionTable.decode(table.encode())
    assert again.encode() == table.encode()
    assert again.result_bytes == table.result_bytes == 5
    assert again.known(7, 1) == Outcome(b"")
    for cut in (1, 20, len(table.encode()) - 1):
        with pytest.raises(ValueError, match="cut"):
            SessionTable.decode(table.encode()[:cut])


def test_sequences_say_which_results_are_still_wanted() -> None:
    own = Sequences(5)
    tokens = [own.take() for _ in range(4)]
    assert tokens[3] == CommandToken(5, 3)
    own.done(tokens[1])
    assert own.lowest == 0
    own.done(tokens[0])
    assert own.lowest == 2
    own.done(CommandToken(6, 2))
    assert own.lowest == 2


def test_a_token_that_nobody_uses_is_given_up_after_many_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.core.machine.sessions.MAX_SEQUENCES", 8)
    own = Sequences(5)
    own.take()
    for _ in range(4):
        own.done(own.take())
    assert own.lowest == 5


LOG = "0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    ["", "1:2", f"{LOG}:1", f"{LOG}:1:", f"{LOG}:-1:2", f"{LOG}:1:2:3", f"{LOG}:²:1", f"{LOG}:{2**63}:0", 7, None],
)
def test_a_malformed_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="token"):
        parse_token(text)
    assert parse_token(CommandToken(3, 4).text(LOG)) == (LOG, CommandToken(3, 4))
