"""Making a ledger: who its members are, its record, and the writer's first look at it.

Where too few bookies are there, a ledger may begin with members that are away (M11): known ones, at most Qw - Qa, so
that each write set has an ack quorum. They are absent as one is that a running writer has lost.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from buckram.client.cluster.bookie_changes import log
from buckram.client.shared.services import Services
from buckram.core.backoff import STORE_CALL
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Chosen
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE, namespace_of_ledger
from buckram.core.streams.names import owner_of
from buckram.core.streams.replication_links import check_ledger, decode_link
from buckram.errors import (
    LedgerExists,
    LedgerIdRefused,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    NotEnoughBookies,
)
from buckram.runtime.process.retry import Attempt, retry
from buckram.types import LedgerId, LedgerMetadata, Versioned

T = TypeVar("T")
_WITHIN_S = 10.0
ID_TRIES = 10
"""Ids that are asked for, one after the other, where the connection to the bookie that gave one was lost each time."""


async def choose_members(
    services: Services, quorum: Quorum, *, policy: PlacementPolicy | None = None, degraded: bool
) -> Chosen:
    """Return an ensemble for a new ledger. Raises NotEnoughBookies, which names what is missing and what can be
    done."""
    if (policy or services.bookies.policy).weights:
        await services.weights.refresh(services)
    try:
        found = await services.bookies.choose_fresh(quorum, policy=policy, degraded=degraded)
    except NotEnoughBookies as error:
        await services.identities.past.explain(error)
        raise NotEnoughBookies(error.needed, error.available, f"{error}{_cure(quorum, error)}") from error
    if found.short:
        _say_short(services, quorum, policy or services.bookies.policy, found)
    return found


def _say_short(services: Services, quorum: Quorum, policy: PlacementPolicy, found: Chosen) -> None:
    """Warn that a new ledger falls short of its placement: once per shape, level and policy until bookies move, because
    streams make ledgers all the time."""
    lacking = {one.level: str(one) for one in services.bookies.shortages(quorum, policy)}
    for breach in {one.level: one for one in reversed(found.short)}.values():
        kind = f"{quorum} {policy} {breach.level} {breach.level in lacking}"
        if kind not in services.bookies.said_short:
            services.bookies.said_short.add(kind)
            why = lacking.get(breach.level, f"suitable bookies failed a moment ago; {breach}")
            log.warning("a new ledger falls short of placement `%s`, level %s: %s", policy, breach.level, why)


def _cure(quorum: Quorum, error: NotEnoughBookies) -> str:
    there, missing = error.available, quorum.ensemble_size - error.available
    if missing <= 0:
        return ""  # places are the trouble
    hint = f"; with {there} of them ensemble={fitting(there, quorum)} would do" if there else ""
    if missing <= quorum.write_quorum - quorum.ack_quorum:
        hint += (
            f"; up to {missing} may be away if the cluster knows them (their cookies exist) and "
            "degraded=False is left out"
        )
    return hint


def fitting(bookies: int, quorum: Quorum) -> Quorum:
    """Return the largest ensemble for this number of bookies, at most the write quorum of `quorum`: each of them holds
    a copy, acknowledged by most."""
    return Quorum.parse(max(1, min(bookies, quorum.write_quorum)))


async def register(services: Services, wanted: LedgerId | None, record: LedgerMetadata) -> tuple[LedgerId, Versioned]:
    """Create the record under the wanted or a generated id. The creator token tells our own lost write apart.

    Bookies take an id only from the session that they gave it to. So after a reconnection the id is a lost one, and
    another one is asked for.
    """
    store, refused = services.store, 0
    while True:
        ledger_id = wanted if wanted is not None else await _retried(store.allocate_ledger_id)
        try:
            return ledger_id, await _retried(lambda: store.create_ledger(ledger_id, record))  # noqa: B023
        except LedgerExists:
            if wanted is not None:
                raise
        except LedgerIdRefused:
            refused += 1
            if wanted is not None or refused == ID_TRIES:
                raise


async def check_side(services: Services, ledger_id: LedgerId, made: Versioned) -> None:
    """Raise ReplicationRefused, and delete the ledger again, if the side of its namespace was replaced.

    Call it after the ledger was made, for ledgers that name their namespace: whoever fences a side later finds the
    ledger, and a fence from before is found here. Nothing was written into the ledger yet.
    """
    custom, store = made.metadata.custom_metadata, services.store
    if LEDGER_NAMESPACE not in custom or owner_of(custom) is not None:
        return
    namespace = namespace_of_ledger(custom)
    key = f"{store.own}/streams/replication/{namespace}"
    try:
        await _retried(store.keys.sync)
        try:
            found = await _retried(lambda: store.keys.get(key))
        except NoSuchKey:
            return
        check_ledger(namespace, decode_link(key, found.value, found.version))
    except BaseException:
        with suppress(MetadataError, NoSuchLedger):
            await store.delete_ledger(ledger_id, made.version)
        raise


async def _retried(attempt: Attempt[T]) -> T:
    """Repeat an idempotent request while the metadata store is away, for a while."""
    return await retry(attempt, MetadataUnavailable, STORE_CALL, within_s=_WITHIN_S)
