"""The history of a metadata store and the bookies' witness keys in it, which reveal that a store went back. Pure.

A bookie records in a key of the store how far its own files reach, and in a file what the store last confirmed. A
store that knows less than such a file was restored to an earlier state.

Not here: reading and writing these records (`bookie/trust/witness.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from buckram.errors import MalformedRecord
from buckram.types import History, LedgerId

LONGEST_RECORD = 64 * 1024
HIGHEST_EPOCH = 2**40
"""Highest number that can be an epoch: no store is restored that often."""


@dataclass(frozen=True, slots=True)
class WitnessStatement:
    """The content of a witness key: how far a bookie's log was durable, and the metadata history at that time.

    `generation` counts the incarnations that took the id over; 0 in keys of earlier releases. `since`: when this one
    did, in seconds since 1970; 0 if unknown.
    """

    incarnation: str
    starts: int
    seq: int
    offset: int
    epoch: int
    restore: str
    nonce: str
    generation: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A key's value and version, as a store gave them."""

    version: int
    value: WitnessStatement


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A ledger that the store does not have any more under the birth that it had; `why` describes it in words."""

    ledger_id: LedgerId
    birth: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Memory:
    """State of the metadata store that a bookie remembers, in its file WITNESS.

    `heard` is the highest epoch that clients have reported to it. The names of the fields are those in the file.
    """

    history: History = field(default_factory=History)
    heard: int = 0
    confirmed: Confirmed | None = None
    collected: str = ""
    """Nonce of the last `cluster collect` that was carried out: each one is carried out once."""
    reviewed: str = ""
    """The restore id of the history that an operator has reviewed, or of the first one. In any other history no ledger
    is deleted for its absence."""
    contradiction: Contradiction | None = None
    """Evidence that the store went back, until the store has the ledger again or another history begins."""
    settled: LedgerId = -1
    """The highest ledger id here when this history was accepted; up to it, ids may be in use twice."""

    @property
    def epoch(self) -> int:
        return max(self.history.epoch, self.heard)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why`: how the store shows that it went back; "" if it does not. `adopt`: another history begins, by a restore
    that was accepted.
    """

    why: str = ""
    adopt: bool = False


def judge(memory: Memory, history: History, found: Confirmed | None) -> Judgement:
    """Compare what a bookie remembers with the present history and witness key of the store."""
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
"""The first word of `History.moved`. Before the URI of the other store: this store is an unfinished copy of it
(COPYING), is being copied there (LEAVING), or was copied there (GONE). Before the name of a move: the metadata came by
it and are in use here (HERE)."""
_MOVES = {
    COPYING: "it is an unfinished copy of {}: call `buckram cluster move-metadata` again with the same stores",
    LEAVING: "its metadata are being moved to {}: call `buckram cluster move-metadata` again with the same stores, or "
    "with --abandon",
    GONE: "its metadata were moved to {}: name that one instead",
}


def why_not_accepted(history: History) -> str:
    """Return in words why a history is not accepted; "" if it is."""
    if history.accepted:
        return ""
    state, _, other = history.moved.partition(" ")
    if state in _MOVES:
        return _MOVES[state].format(other)
    return "it was restored from a backup, and no operator has accepted that yet"


def _came(memory: Memory, history: History) -> bool:
    """Return whether the history that the bookie remembers was moved to this store and goes on here."""
    mine = memory.history
    return (
        history.moved.startswith(f"{HERE} ")
        and history.moved != mine.moved
        and history.restore == mine.restore
        and history.epoch > mine.epoch
    )


def _compare_moved(confirmed: Confirmed | None, found: Confirmed | None) -> str:
    """Compare the content of the witness key in another store, where keys have other versions.

    It must be what was confirmed, or what the same directory recorded later (a change whose answer was lost).
    """
    if confirmed is None:
        return ""
    if found is None:
        return "the witness key did not come with the metadata that were moved here"
    if found.value == confirmed.value or _reach(found.value) > _reach(confirmed.value):
        return ""
    return (
        "the metadata that were moved here are older than what this bookie has seen: their witness key is of "
        "an earlier time"
    )


def _reach(value: WitnessStatement) -> tuple[int, int, int]:
    return value.starts, value.seq, value.offset


def _compare(confirmed: Confirmed | None, found: Confirmed | None) -> str:
    if confirmed is None:
        return ""
    if found is None:
        return f"the witness key is missing, it was at version {confirmed.version}"
    if found.version < confirmed.version:
        return f"the witness key is at version {found.version}, it was at {confirmed.version}"
    if found.version == confirmed.version and found.value != confirmed.value:
        return f"the witness key holds something else at version {confirmed.version} than this bookie wrote"
    return ""  # a higher version: a change whose answer was lost


def learn(memory: Memory, history: History, confirmed: Confirmed, highest: LedgerId = -1) -> Memory:
    """Return the memory after the store confirmed a change. `highest`: the highest ledger id here."""
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
    """Encode the record by which an operator lets collection go on, once for each bookie."""
    return json.dumps({"nonce": nonce}).encode()


def parse_word(key: str, record: bytes) -> str:
    return _text(key, _object(key, record), "nonce")


def encode_statement(value: WitnessStatement) -> bytes:
    return json.dumps(asdict(value)).encode()


def parse_statement(key: str, record: bytes) -> WitnessStatement:
    return _statement(key, _object(key, record))


def _statement(what: str, fields: dict[str, Any]) -> WitnessStatement:
    return WitnessStatement(
        _text(what, fields, "incarnation"),
        _number(what, fields, "starts"),
        _number(what, fields, "seq"),
        _number(what, fields, "offset"),
        _number(what, fields, "epoch"),
        _text(what, fields, "restore"),
        _text(what, fields, "nonce"),
        _number(what, fields, "generation") if "generation" in fields else 0,
        _number(what, fields, "since") if "since" in fields else 0,
    )


def encode_memory(memory: Memory) -> bytes:
    fields = asdict(memory)
    if memory.contradiction is not None:
        fields["contradiction"]["birth"] = memory.contradiction.birth.hex()
    return json.dumps(fields).encode()


def parse_memory(name: str, record: bytes) -> Memory:
    fields = _object(name, record)
    history, witness = fields.get("history"), fields.get("confirmed")
    if not isinstance(history, dict) or not (witness is None or isinstance(witness, dict)):
        raise MalformedRecord(f"{name}: has no history or a malformed witness")
    confirmed = None
    if witness is not None:
        value = witness.get("value")
        if not isinstance(value, dict):
            raise MalformedRecord(f"{name}: the confirmed witness has no value")
        confirmed = Confirmed(_number(name, witness, "version"), _statement(name, value))
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
