"""Planted bugs of readers: digests, limits, denials, LACs, the end of a tail."""

from __future__ import annotations

from typing import Any

from buckram.client.maintain.recover import recover_ledger
from buckram.client.read import lac, reader, replicas, tail
from buckram.client.read import open as opening
from buckram.client.read.local import LocalReads
from buckram.client.read.polls import LacPolls
from buckram.client.read.reader import Reader
from buckram.core.entries.entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, Digest
from buckram.core.ledgers import answers
from buckram.core.ledgers.answers import FailureFold, Negative, Positive
from buckram.errors import BookieError, Code, DigestMismatch
from buckram.types import Entry
from simulator.engine.plan import Plan
from simulator.engine.planting import plant
from simulator.ledgers.mutants.base import Mutant

_classify = answers.classify


def _open_unchecked(self: Digest, ledger_id: int, entry_id: int | None, stored: bytes) -> Entry:
    if len(stored) < ENTRY_HEADER_BYTES + self.size:
        raise DigestMismatch(ledger_id, "short")
    _, entry, last, length = ENTRY_HEADER.unpack_from(stored)
    payload = stored[ENTRY_HEADER_BYTES + self.size :]
    return Entry(ledger_id, entry if entry_id is None else entry_id, payload, last, length)


def _open_prefix_unchecked(self: Digest, ledger_id: int, first: int, bodies: Any) -> list[Entry]:
    return [_open_unchecked(self, ledger_id, first + n, body) for n, body in enumerate(bodies)]


def _mix_up(self: Digest, ledger_id: int, first: int, bodies: Any) -> list[Entry]:
    entries = _open_prefix(self, ledger_id, first, bodies)
    if len(entries) > 2:
        entries[0], entries[1] = entries[1]._replace(entry_id=first), entries[0]._replace(entry_id=first + 1)
    return entries


_open_prefix = Digest.open_prefix
_chunks_of_files = LocalReads.chunks


def _from_files_unchecked(self: LocalReads, span: Any, bookies: Any, opener: Any) -> Any:
    def unchecked(ledger_id: int, first: int, bodies: Any) -> list[Any]:
        entries = _open_prefix_unchecked(self._digest, ledger_id, first, bodies)
        return entries if opener == self._digest.open_prefix else [entry.payload for entry in entries]

    return _chunks_of_files(self, span, bookies, unchecked)


async def _no_limit(self: Reader, first: int, last: int) -> None:
    self._check_open()


def _silence_is_absence(bookie: str, reply: Any, verify: Any) -> Any:
    found = _classify(bookie, reply, verify)
    if isinstance(found, answers.Unknown) and isinstance(found.error, BookieError):
        return Negative(Code.NO_ENTRY)
    return found


def _any_negative(self: FailureFold, failure: Any) -> None:
    if self.result is None or isinstance(failure, Negative):
        self.result = failure


def _believe(self: LacPolls, poll: Any, reply: Any) -> Any:
    claimed = getattr(reply, "max_lac", None)
    return Positive(claimed) if claimed is not None else _judge(self, poll, reply)


_judge = LacPolls._judge


def _not_the_end(metadata: Any, last_confirmed: int) -> int:
    return last_confirmed


def _lower(self: Reader, value: int) -> None:
    self._known_lac = value - 1


async def _open_recovers(services: Any, ledger_id: int, **kwargs: Any) -> Any:
    return await recover_ledger(services, ledger_id, **kwargs)


def _reading(plan: Plan) -> bool:
    return plan.readers > 0 and plan.entries > 0


MUTANTS = [
    Mutant(
        "digest-not-checked",
        "S6, S17",
        "readers do not check digests",
        plant((Digest, "open", _open_unchecked), (Digest, "open_prefix", _open_prefix_unchecked)),
        lives=lambda plan: plan.liar and plan.entries > 0,
        seeds=200,
    ),
    Mutant(
        "batch-mixed-up",
        "S15, S6",
        "the first two entries of a long batch change places",
        plant((Digest, "open_prefix", _mix_up)),
        lives=lambda plan: plan.entries >= 8 and plan.readers > 0 and plan.shape[0] == plan.shape[1],
        seeds=200,
    ),
    Mutant(
        "files-not-checked",
        "S6, S17",
        "entries read from a bookie's files are not checked against their digest",
        plant((LocalReads, "chunks", _from_files_unchecked)),
        lives=lambda plan: (
            "flip" in plan.faults and plan.readers > 0 and plan.entries > 0 and plan.shape[0] == plan.shape[1]
        ),
        seeds=400,
    ),
    Mutant(
        "reads-beyond-the-lac",
        "17, S16",
        "a read returns entries above the LAC",
        plant((Reader, "_check_range", _no_limit)),
        lives=_reading,
        seeds=200,
    ),
    Mutant(
        "silence-is-absence",
        "10, 22, S18, F13, S1",
        "a missing answer or an error counts as a denial",
        plant((replicas, "classify", _silence_is_absence), (lac, "classify", _silence_is_absence)),
        scenarios=("D1",),
        lives=lambda plan: plan.entries > 0,
        seeds=200,
    ),
    Mutant(
        "claimed-lac",
        "S16, S17",
        "a tail accepts a LAC of a bookie without a digest",
        plant((LacPolls, "_judge", _believe)),
        lives=lambda plan: plan.liar and plan.readers > 0 and plan.entries > 0,
        seeds=200,
    ),
    Mutant(
        "first-negative-wins",
        "S18",
        "one denial is reported although other replicas did not answer",
        plant((FailureFold, "add", _any_negative)),
        scenarios=("one-denial",),
        lives=_reading,
        seeds=800,
    ),
    Mutant(
        "closed-end-ignored",
        "S19, L6",
        "readers of a closed ledger stop at the LAC they knew",
        plant((reader, "readable_until", _not_the_end), (tail, "readable_until", _not_the_end)),
        lives=_reading,
        seeds=300,
    ),
    Mutant(
        "lac-falls",
        "S12",
        "a handle's LAC becomes the one that was read last, even if it is lower",
        plant((Reader, "_raise_lac", _lower)),
        lives=_reading,
        seeds=400,
    ),
    Mutant(
        "open-fences",
        "F16",
        "open recovers the ledger",
        plant((opening, "open_ledger", _open_recovers)),
        scenarios=("idle-writer",),
        lives=_reading,
    ),
]
