"""The keys in which tenants report to the cluster's healing, shared by all of them: which ledgers lack copies, which
bookies are slow. Each report has a key of its own form there, so that no tenant takes the places of others or changes
their words.

Not here: how large and how many they are (`core/security/write_limits.py`), who reads them
(`metadata/records/incomplete_copies.py`, `metadata/records/degraded.py`).
"""

from __future__ import annotations

from buckram.bookie.service.metadata.key_checks import KeyJudge
from buckram.core.healing.behind import parse_note
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.core.security.key_access import KeyUse
from buckram.errors import NoSuchKey
from buckram.metadata.records.degraded import DEGRADED
from buckram.metadata.records.incomplete_copies import BEHIND
from buckram.metadata.tree.store import TreeStore
from buckram.types import Create, SetValue


async def check_healing_report(judge: KeyJudge, store: TreeStore, op: Create | SetValue) -> None:
    """Raise AccessRefused for a note about what is none of the principal's business, NoSuchKey where its ledger is
    gone."""
    use = KeyUse.CREATE if isinstance(op, Create) else KeyUse.SET
    if op.key.startswith(f"{store.own}/{BEHIND}/"):
        found = parse_note(op.key.removeprefix(f"{store.own}/{BEHIND}/"))
        if found is None:
            raise judge.refused(op.key, use, "notes are named LEDGER@BOOKIE")
        ledger, bookie = found
        await _check_bookie(judge, store, op, use, bookie)
        key = await store.ledger_key(ledger)
        await judge.check(key, KeyUse.SET, (await store.keys.get(key)).value)  # only its writers and recoverers know
        return
    bookie, _, client = op.key.removeprefix(f"{store.own}/{DEGRADED}/").rpartition("@")
    if not bookie or not client:
        raise judge.refused(op.key, use, "what is told of a slow bookie is named BOOKIE@CLIENT")
    if isinstance(op, Create):
        if not op.ephemeral:
            raise judge.refused(op.key, use, "what is told of a slow bookie goes with the session that tells it")
        await _check_bookie(judge, store, op, use, bookie)
    elif not (await store.keys.get(op.key)).owned:
        raise judge.refused(op.key, use, "another session told it")


async def _check_bookie(judge: KeyJudge, store: TreeStore, op: Create | SetValue, use: KeyUse, bookie: str) -> None:
    """Check that a report names a known bookie, which limits the reports about a ledger, or of a client, to the number
    of bookies."""
    if valid_bookie_id(bookie):
        try:
            await store.keys.get(store.cookie_key(bookie))
            return
        except NoSuchKey:
            pass
    raise judge.refused(op.key, use, f"no bookie {bookie[:60]!r} is known")


__all__ = ["check_healing_report"]
