"""The history of a metadata store and the bookies' witness keys in it, which reveal that a store went back. Pure.

A bookie records in a key of the store how far its own files reach, and in a file what the store last confirmed. A
store that knows less than such a file was restored to an earlier state.

Not here: reading and writing these records (`bookie/witness.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from buckram.errors import MalformedRecord
from buckram.types import History, LedgerId

LONGEST_RECORD = 64 * 1024
HIGHEST_EPOCH = 2**40
"""Nobody restores that often: a higher number is not an epoch."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a witness key says: how far a bookie's directory was, and the history in which it said so."""

    incarnation: str
    starts: int
    seq: int
    offset: int
    epoch: int
    restore: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A key's value and version, as a store gave them."""

    version: int
    value: Statement


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What a store said of a ledger that it knew by that birth before; gone when it knows it so again."""

    ledger_id: LedgerId
    birth: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What a bookie remembers of the store, in its file WITNESS. `heard`: the highest epoch that anybody told it."""

    history: History = field(default_factory=History)
    heard: int = 0
    confirmed: Confirmed | None = None
    collected: str = ""
    """The last word to collect that was followed: each counts once."""
    reviewed: str = ""
    """The restore since which somebody gave such a word, or that was the first: until then nothing goes for absence."""
    contradiction: Contradiction | None = None
    """What the store said that cannot be so in the history that the bookie has seen, until it takes it back or another
    history begins."""
    settled: LedgerId = -1
    """The highest ledger that was here when this history was accepted: who did that knew that ids were given twice."""

    @property
    def epoch(self) -> int:
        return max(self.history.epoch, self.heard)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why`: the store went back, in words; "" for one that did not. `adopt`: another history begins, by a restore
    that was accepted."""

    why: str = ""
    adopt: bool = False


def judge(memory: Memory, history: History, found: Confirmed | None) -> Judgement:
    """Compare what a bookie remembers with what the store says now."""
    if not history.accepted:
        return Judgement(why_not_accepted(history))
    if history.epoch < memory.epoch:
        return Judgement(f"its epoch is {history.epoch}, and {memory.epoch} was seen before")
    if _came(memory, history):
        return Judgement(memory.contradiction.why if memory.contradiction else _compare_moved(memory.confirmed, found))
    if history.epoch > memory.history.epoch:
        if history.restore == memory.history.restore:
            return Judgement(f"its epoch is {history.epoch}, but its restore id is still {history.restore!r}")
        return Judgement(adopt=True)
    if history.restore != memory.history.restore:
        return Judgement(
            f"its epoch {history.epoch} began with restore {history.restore!r}, "
            f"this bookie's began with {memory.history.restore!r}"
        )
    return Judgement(memory.contradiction.why if memory.contradiction else _compare(memory.confirmed, found))


COPYING, LEAVING, GONE, HERE = "copying", "leaving", "gone", "here"
"""Of metadata that move from one store to another, the word before the other store's URI: this one is the copy and not
whole yet; it is what is copied; it was copied. Before a name of the move: they came by it, and are used here."""
_MOVES = {
    COPYING: "it is an unfinished copy of {}: call `buckram cluster move-metadata` again with the same stores",
    LEAVING: "its metadata are being moved to {}: call `buckram cluster move-metadata` again with the same stores, or "
    "with --abandon",
    GONE: "its metadata were moved to {}: name that one instead",
}


def why_not_accepted(history: History) -> str:
    """In words, for one that is not; "" for one that is."""
    if history.accepted:
        return ""
    state, _, other = history.moved.partition(" ")
    if state in _MOVES:
        return _MOVES[state].format(other)
    return "it was restored from a backup and nobody has accepted that yet"


def _came(memory: Memory, history: History) -> bool:
    """Whether the same history goes on in another store since the bookie remembered it."""
    mine = memory.history
    return (
        history.moved.startswith(f"{HERE} ")
        and history.moved != mine.moved
        and history.restore == mine.restore
        and history.epoch > mine.epoch
    )


def _compare_moved(told: Confirmed | None, found: Confirmed | None) -> str:
    """Keys have other versions in another store, so what they say is compared: it must be what was confirmed, or what
    the same directory said later (a change whose answer was lost)."""
    if told is None:
        return ""
    if found is None:
        return "the witness key did not come with the metadata that were moved here"
    if found.value == told.value or _reach(found.value) > _reach(told.value):
        return ""
    return "the metadata that were moved here are older than what this bookie has seen: its witness key says less"


def _reach(value: Statement) -> tuple[int, int, int]:
    return value.starts, value.seq, value.offset


def _compare(told: Confirmed | None, found: Confirmed | None) -> str:
    if told is None:
        return ""
    if found is None:
        return f"the witness key is missing, it was at version {told.version}"
    if found.version < told.version:
        return f"the witness key is at version {found.version}, it was at {told.version}"
    if found.version == told.version and found.value != told.value:
        return f"the witness key holds something else at version {told.version} than this bookie wrote"
    return ""  # a higher version: a change whose answer was lost


def learn(memory: Memory, history: History, confirmed: Confirmed, highest: LedgerId = -1) -> Memory:
    """What to remember when the store has confirmed a change in that history. `highest`: the highest ledger here."""
    first = memory.history.epoch == 0 and memory.confirmed is None
    if history.epoch > memory.history.epoch > 0 and history.restore != memory.history.restore:
        memory = replace(memory, contradiction=None, settled=highest)
    return replace(memory, history=history, confirmed=confirmed, reviewed=history.restore if first else memory.reviewed)


# Bytes


def encode_history(history: History) -> bytes:
    fields: dict[str, Any] = {"epoch": history.epoch, "restore": history.restore}
    if not history.accepted:
        fields["accepted"] = False
    if history.moved:
        fields["moved"] = history.moved
    return json.dumps(fields).encode()


def parse_history(key: str, record: bytes) -> History:
    fields = _object(key, record)
    return _history(key, fields)


def _history(what: str, fields: dict[str, Any]) -> History:
    moved = fields.get("moved", "")
    accepted = fields.get("accepted", True) is True
    epoch, restore = _number(what, fields, "epoch"), _text(what, fields, "restore")
    return History(epoch, restore, accepted, moved if isinstance(moved, str) else "")


def encode_word(nonce: str) -> bytes:
    """The word that collection may go on, once for each bookie."""
    return json.dumps({"nonce": nonce}).encode()


def parse_word(key: str, record: bytes) -> str:
    return _text(key, _object(key, record), "nonce")


def encode_statement(value: Statement) -> bytes:
    return json.dumps(asdict(value)).encode()


def parse_statement(key: str, record: bytes) -> Statement:
    return _statement(key, _object(key, record))


def _statement(what: str, fields: dict[str, Any]) -> Statement:
    return Statement(
        _text(what, fields, "incarnation"),
        _number(what, fields, "starts"),
        _number(what, fields, "seq"),
        _number(what, fields, "offset"),
        _number(what, fields, "epoch"),
        _text(what, fields, "restore"),
        _text(what, fields, "nonce"),
    )


def encode_memory(memory: Memory) -> bytes:
    fields = asdict(memory)
    if memory.contradiction is not None:
        fields["contradiction"]["birth"] = memory.contradiction.birth.hex()
    return json.dumps(fields).encode()


def parse_memory(name: str, record: bytes) -> Memory:
    fields = _object(name, record)
    history, told = fields.get("history"), fields.get("confirmed")
    if not isinstance(history, dict) or not (told is None or isinstance(told, dict)):
        raise MalformedRecord(f"{name}: has no history or a malformed witness")
    confirmed = None
    if told is not None:
        value = told.get("value")
        if not isinstance(value, dict):
            raise MalformedRecord(f"{name}: the confirmed witness has no value")
        confirmed = Confirmed(_number(name, told, "version"), _statement(name, value))
    return Memory(
        _history(name, history),
        _number(name, fields, "heard"),
        confirmed,
        _text(name, fields, "collected"),
        _text(name, fields, "reviewed"),
        _contradiction(name, fields.get("contradiction")),
        _number(name, fields, "settled", -1),
    )


def _contradiction(name: str, fields: object) -> Contradiction | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise MalformedRecord(f"{name}: contradiction is {fields!r}, it must be an object or null")
    try:
        birth = bytes.fromhex(_text(name, fields, "birth"))
    except ValueError:
        raise MalformedRecord(f"{name}: birth is {fields['birth']!r}, it must be hexadecimal") from None
    return Contradiction(_number(name, fields, "ledger_id"), birth, _text(name, fields, "why"))


def _object(what: str, record: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(record[:LONGEST_RECORD])
    except ValueError as error:
        raise MalformedRecord(f"{what}: {error}") from None
    if not isinstance(fields, dict):
        raise MalformedRecord(f"{what}: {record[:40]!r} is no JSON object")
    return fields


def _number(what: str, fields: dict[str, Any], name: str, least: int = 0) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value < 2**63:
        raise MalformedRecord(f"{what}: {name} is {value!r}, it must be a whole number from {least} on")
    return value


def _text(what: str, fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedRecord(f"{what}: {name} is {value!r}, it must be text")
    return value
