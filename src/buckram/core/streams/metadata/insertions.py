"""Request of a bulk step to the stream's writer to list the step's ledgers between its own segments. Pure.

The request is the value of a key of the stream, which is deleted in the very step that lists the ledgers. Not here: the
change of the head (`changes.py`), asking and answering (`streams/write/insertion.py`).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.metadata.transactions import StepId
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import LedgerId

MAX_LEDGERS = 100
"""The most ledgers of one insertion: etcd changes no more than 120 keys in one step."""
_MOST = 2**63
_NUMBERS = len(Summary._fields)
_STEP = 5
"""Number of a step's leading fields in the key: writers of earlier releases know only these."""


class InsertedLedger(NamedTuple):
    """A closed ledger to be listed, and what it holds."""

    ledger: LedgerId
    summary: Summary


class Insertion(NamedTuple):
    """A step, its ledgers in their order, and a `nonce` that no other insertion has."""

    step: StepId
    ledgers: tuple[InsertedLedger, ...]
    nonce: str


def encode_insertion(stream: str, wanted: Insertion) -> bytes:
    """Return the value of the key. Raises InvalidArgument for too many ledgers."""
    if len(wanted.ledgers) > MAX_LEDGERS:
        raise InvalidArgument(
            f"stream {stream}: {len(wanted.ledgers)} ledgers in one step beside a writer, the limit is {MAX_LEDGERS}; "
            "write fewer, larger ones"
        )
    rows = [[one.ledger, *one.summary] for one in wanted.ledgers]
    step = list(wanted.step[:_STEP])  # `was` was compared by who asks, and there are no further streams.
    said = {"planned": wanted.step.planned, "history": wanted.step.history}
    more = {name: value for name, value in said.items() if value}
    return json.dumps({"step": step, "ledgers": rows, "nonce": wanted.nonce, **more}).encode()


def decode_insertion(key: str, data: bytes) -> Insertion:
    """Parse the value of the key. Raises MalformedRecord, also for rows that no bulk step has."""
    try:
        raw = json.loads(data)
        application, version, query, place, new_epoch = raw["step"]
        texts, rows = (application, query, place, raw["nonce"]), raw["ledgers"]
        if not all(isinstance(text, str) for text in texts) or not application or type(new_epoch) is not bool:
            raise ValueError("its step")
        if len(rows) > MAX_LEDGERS:
            raise ValueError(f"{len(rows)} ledgers")
        planned, history = _number(raw.get("planned", 0)), raw.get("history", "")
        if not isinstance(history, str):
            raise ValueError("its history")
        step = StepId(application, _number(version), query, place, new_epoch, planned=planned, history=history)
        return Insertion(step, tuple(map(_ledger, rows)), raw["nonce"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not an insertion of a bulk step ({error!r})") from None


def _ledger(row: Any) -> InsertedLedger:
    ledger, *numbers = row
    if len(numbers) != _NUMBERS or not all(type(one) is int and -_MOST <= one < _MOST for one in numbers):
        raise ValueError(f"ledger {ledger}: its contents")
    summary = Summary(*numbers)
    if summary.records < 1 or summary.last_entry < 0 or summary.bytes < 0:
        raise ValueError(f"ledger {ledger} without records")
    return InsertedLedger(_number(ledger), summary)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no number from 0 on")
    return value
