"""Checks of single keys: whether the peer of a connection may do something to a key.

The judge first reads what the answer depends on. The keys in which tenants report ledgers that lack copies and slow
bookies are shared by all of them; each report has a key of its own form, so that no tenant takes the places of others
or changes their reports.

Not here: what a whole change may do beyond the rights on each of its keys (`bookie/service/metadata/change_gate.py`),
noting refusals for the audit trail (`bookie/service/metadata/key_session.py`), the size and number of reports
(`core/security/write_limits.py`), who reads them (`metadata/records/incomplete_copies.py`,
`metadata/records/bookie_health.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buckram.bookie.service.connections.session import Session
from buckram.core.healing.absences import parse_note
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.core.security.key_access import KeyRules, KeyUse
from buckram.core.security.namespace_rules import UNSEEN, ClusterKeys
from buckram.errors import AccessRefused, NoSuchKey
from buckram.metadata.records.bookie_health import DEGRADED
from buckram.metadata.records.incomplete_copies import BEHIND
from buckram.metadata.tree.key_grammar import MAX_PAGE
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.layout import SECURITY
from buckram.metadata.tree.store import TreeStore
from buckram.types import Create, SetValue

_BETWEEN_SCANS_S = 1.0
"""Least time between two scans of all heads for the stream of an unknown key, seconds."""


class KeyJudge:
    """`rules` is None for a principal that may do everything. `store` gives the one that the connection uses now."""

    def __init__(self, session: Session, rules: KeyRules | None, store: Callable[[], TreeStore]) -> None:
        self.rules = rules
        self._session, self._store = session, store
        self._scanned = float("-inf")
        self._secrets = f"{store().own}/{SECURITY}"
        self.places = ClusterKeys(
            store().root, store().own, lambda key: self._store().layout.ledger_of(key) is not None
        )

    async def check(self, key: str, use: KeyUse, value: bytes | None = None, trial: KeyRules | None = None) -> None:
        """Raise AccessRefused unless the principal may do that, by `trial` in place of the connection's rules."""
        self.refuse_secrets(key)
        rules = self.rules
        if rules is None:
            return
        judge = trial or rules
        why = judge.refusal(key, use, value)
        if why is None:
            await self.find_out(rules, key)
            why = judge.refusal(key, use, value)
        if why != "":
            raise self.refused(key, use, why or UNSEEN)

    def refused(self, key: str, use: KeyUse, why: str) -> AccessRefused:
        """Return the error for a refused request. Its message for the peer does not name the key; `place` has it for
        the audit trail."""
        found = f"{self._session.principal} may not {use.value} it: {why}"
        return _placed(AccessRefused(self._called(key), found, advice=""), key)

    def _called(self, key: str) -> str:
        store = self._store()
        for record in (key, key.rpartition("/")[0]):  # or a key by which a stream holds the ledger
            ledger = store.layout.ledger_of(record)
            if ledger is not None:
                return f"ledger {ledger}"
        return self.places.called(key)

    def refuse_secrets(self, key: str) -> None:
        """Refuse keys of the cluster's security, also to administrators: with the signing key one can pose as anybody,
        so these keys are seen in the store itself only."""
        if self.is_secret(key):
            why = "keys, revocations and grants are read and written in the store itself only"
            raise _placed(AccessRefused("the cluster's security", why, advice=""), key)

    def is_secret(self, key: str) -> bool:
        secrets = self._secrets
        return key.startswith(secrets) and key[len(secrets) : len(secrets) + 1] in ("", "/")

    async def find_out(self, rules: KeyRules, key: str) -> None:
        """Read which namespace a key belongs to, from a ledger's record or from the heads of streams. Raises
        NoSuchKey."""
        keys, streams = self._store().keys, f"{self._store().own}/streams"
        ledger = key.rpartition("/")[0]
        if rules.is_ledger(ledger):  # a stream holds it: whose both are matters
            rules.learn(ledger, (await keys.get(ledger)).value)
        elif not key.startswith(f"{streams}/data/"):
            rules.learn(key, (await keys.get(key)).value)
            return
        now = asyncio.get_running_loop().time()
        if now < self._scanned + _BETWEEN_SCANS_S:
            return
        self._scanned = now
        heads = f"{streams}/heads"
        async for namespace in all_names(keys, heads, page=MAX_PAGE):
            if rules.refusal(f"{heads}/{namespace}", KeyUse.LIST) != "":
                continue
            after = ""
            while page := await keys.children_with_values(f"{heads}/{namespace}", after=after):
                for name, found in page:
                    rules.learn(f"{heads}/{namespace}/{name}", found.value)
                after = page[-1][0]


def _placed(error: AccessRefused, key: str) -> AccessRefused:
    error.place = key
    return error


# -- reports of tenants to healing ----------------------------------------------------------------------------


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
        raise judge.refused(op.key, use, "a report of a slow bookie is named BOOKIE@CLIENT")
    if isinstance(op, Create):
        if not op.ephemeral:
            raise judge.refused(
                op.key, use, "a report of a slow bookie belongs to the session that makes it and ends with it"
            )
        await _check_bookie(judge, store, op, use, bookie)
    elif not (await store.keys.get(op.key)).owned:
        raise judge.refused(op.key, use, "another session made this report")


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
