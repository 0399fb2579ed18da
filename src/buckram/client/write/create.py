"""Making a ledger: who its members are, its record, and the writer's first look at it.

Where too few bookies are there, a ledger may begin with members that are away (M11): known ones, at most Qw - Qa, so
that each write set has an ack quorum. They are absent as one is that a running writer has lost.
"""

from __future__ import annotations

from typing import TypeVar

from buckram.client.shared.log import log
from buckram.client.shared.services import Services
from buckram.core.backoff import STORE_CALL
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Chosen
from buckram.core.placement.policy import PlacementPolicy
from buckram.errors import LedgerExists, MetadataUnavailable, NotEnoughBookies
from buckram.net.retry import Attempt, retry
from buckram.types import LedgerId, LedgerMetadata, Versioned

T = TypeVar("T")
_WITHIN_S = 10.0


async def choose_members(
    services: Services, quorum: Quorum, *, policy: PlacementPolicy | None = None, degraded: bool
) -> Chosen:
    """An ensemble for a new ledger. NotEnoughBookies says what is missing and what can be done."""
    if (policy or services.bookies.policy).weights:
        await services.weights.refresh(services)
    try:
        found = await services.bookies.choose_fresh(quorum, policy=policy, degraded=degraded)
    except NotEnoughBookies as error:
        await services.identities.past.explain(error)
        raise NotEnoughBookies(error.needed, error.available, f"{error}{_cure(quorum, error)}") from error
    if found.short:
        log.info("a new ledger falls short of placement `%s`: %s", policy or services.bookies.policy, found.short[0])
    return found


def _cure(quorum: Quorum, error: NotEnoughBookies) -> str:
    there, missing = error.available, quorum.ensemble_size - error.available
    if missing <= 0:
        return ""  # places are the trouble
    hint = f"; with {there} of them ensemble={fitting(there, quorum)} would do" if there else ""
    if missing <= quorum.write_quorum - quorum.ack_quorum:
        hint += f"; up to {missing} could be away, were they known (their cookie exists) and degraded=False left out"
    return hint


def fitting(bookies: int, quorum: Quorum) -> Quorum:
    """The largest ensemble like `quorum` that so many bookies can be: each of them a copy, acknowledged by most."""
    return Quorum.parse(max(1, min(bookies, quorum.write_quorum)))


async def register(services: Services, wanted: LedgerId | None, record: LedgerMetadata) -> tuple[LedgerId, Versioned]:
    """Create the record under the wanted or a generated id. The creator token tells our own lost write apart."""
    store = services.store
    while True:
        ledger_id = wanted if wanted is not None else await _retried(store.allocate_ledger_id)
        try:
            return ledger_id, await _retried(lambda: store.create_ledger(ledger_id, record))  # noqa: B023
        except LedgerExists:
            if wanted is not None:
                raise


async def _retried(attempt: Attempt[T]) -> T:
    """Repeat an idempotent request while the metadata store is away, for a while."""
    return await retry(attempt, MetadataUnavailable, STORE_CALL, within_s=_WITHIN_S)
