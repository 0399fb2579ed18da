"""The gate for changes by principals that are held to grants: what they may do beyond the right to use each key.

Servers act with all rights on what tenants write: they read and delete what a head names. So a change is judged as a
whole: what it names (`core/security/ledger_claims.py`), which uid a new stream takes, what stays in a ledger's record,
and how large and how many its keys are (`core/security/write_limits.py`). docs/explanation/security-design.md has the
table, "What a key may name". Rights on single keys are `bookie/service/metadata/key_checks.py`.

What is looked up here and what the store then changes count as one step:
* heads, pages and exports that are set or deleted carry the version of what was looked at, and one that is made must
  not be there yet;
* the owner mark in a ledger's record never changes (`core/security/write_limits.py`), and no id is given twice, so a
record
  that was deleted meanwhile leaves a name that means nothing;
* a key by which a stream holds a ledger may go meanwhile: the ledger stays with whoever else holds it, and who deletes
  it asks for that again (`streams/shared/ledgers.py:let_go`);
* only a new key of that kind needs the ledger still to be there, so the record's version is checked along with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from buckram.bookie.service.metadata.immediate_changes import AtOnce
from buckram.bookie.service.metadata.key_checks import KeyJudge, check_healing_report
from buckram.core.security.key_access import KeyRules, KeyUse
from buckram.core.security.ledger_claims import Claims, naming_key, newly_named, touched
from buckram.core.security.namespace_rules import ClusterKeys, head_in, record_in, uid_in
from buckram.core.security.write_limits import (
    Bound,
    begins_deletion,
    bound_of,
    head_change_refusal,
    head_creation_refusal,
    name_refusal,
)
from buckram.core.security.write_limits import record_change_refusal as record_refusal
from buckram.core.streams.names import owner_of
from buckram.errors import (
    AccessRefused,
    InvalidArgument,
    KeyExists,
    LedgerIdRefused,
    MalformedRecord,
    NoSuchKey,
    ValueTooLarge,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import ABSENT, MAX_PAGE, PromptKeys
from buckram.metadata.tree.store import TreeStore
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, LedgerId, SetValue

USES: dict[type, KeyUse] = {
    Create: KeyUse.CREATE,
    SetValue: KeyUse.SET,
    Delete: KeyUse.DELETE,
    CheckVersion: KeyUse.READ,
}
_AT_ONCE = 64
"""Keys that are read at the same time from a store that does not take many at once."""
_MOST_COUNTED = 10_000
"""Parents whose keys a connection has counted."""
_COUNTED_FOR = 16
"""After this part of a limit was created, keys are counted anew: others create some as well."""

_OTHERS = "it keeps its own, and uses no uid of another stream"

Found = Mapping[str, KeyValue | None]


class ChangeGate:
    """`prompt` gives the keys of `store` if they answer at once. `has_unused`: whether an id was given to this
    connection, which never tried to make a ledger with it."""

    def __init__(
        self,
        judge: KeyJudge,
        rules: KeyRules,
        store: Callable[[], TreeStore],
        prompt: Callable[[], PromptKeys | None],
        has_unused: Callable[[LedgerId], bool],
    ) -> None:
        self._judge, self._rules, self._store, self._has_unused = judge, rules, store, has_unused
        self._prompt = prompt
        self._places = judge.places
        self._room: dict[str, int] = {}
        """Number of keys that may still be created below each parent before they are counted anew."""
        self.at_once = AtOnce(self._places, rules, has_unused, self._room)

    async def judged(self, ops: Sequence[KeyOp]) -> tuple[list[KeyOp], Found]:
        """Return the change with the operations that have to go with it, and what some of its keys hold now. Raises
        AccessRefused, or the error that the store would raise for the change."""
        if len(ops) == 1 and await self._is_alone(ops[0]):
            return list(ops), {}
        heads = self._new_heads(ops)
        ops = self._with_data_keys(ops, heads)
        bounds = {op.key: bound_of(self._places, op.key) for op in ops}
        deleted = dict.fromkeys(op.key for op in ops if isinstance(op, Delete))
        self._check_forms(ops, heads, bounds, deleted)
        before = await self._before(ops, heads)
        # What a client wants to create is believed by the rest of its request only, and by others when it is there.
        trial = self._rules.trial()
        for op in ops:
            if (present := before.get(op.key)) is not None:
                self._rules.learn(op.key, present.value)  # of heads and ledgers; its version makes that one step
            elif isinstance(op, SetValue | Delete) and self._rules.is_ledger(op.key):
                raise NoSuchKey(op.key)
            value = op.value if isinstance(op, Create | SetValue) else None
            await self._judge.check(op.key, USES[type(op)], value, trial)
            self._check_one(op, before, deleted)
            if _begins_deletion(self._places, op, before):
                await self._judge.check(op.key, KeyUse.DELETE, None, trial)
            if isinstance(op, Create | SetValue) and op.key.startswith(self._places.told):
                await check_healing_report(self._judge, self._store(), op)
            if isinstance(op, Create):
                trial.learn(op.key, op.value)
        await self._check_data(deleted, trial)
        checks = await self._check_shares(ops, trial)
        await self._check_names(ops, before, trial)
        await self._check_room(ops, bounds)
        return [*checks, *ops], before  # A key below one that is gone would make that anew, and be checked against it.

    async def _is_alone(self, op: KeyOp) -> bool:
        """Return whether a change of one key, which sets or makes it, needs nothing else to be judged, and is allowed.
        Raises what `judged` does."""
        if isinstance(op, SetValue) and (plain := self.at_once.plain(op.key)):
            _check_size(op, plain[0])
            await self._judge.check(op.key, KeyUse.SET, op.value)
            return True
        if isinstance(op, Create) and (plain := self.at_once.plain_anew(op.key)):
            bounds = {op.key: plain[0]}
            self._check_forms((op,), (), bounds, ())
            await self._judge.check(op.key, KeyUse.CREATE, op.value)
            await self._check_room((op,), bounds)
            return True
        return False

    # What needs no look at the store

    def _new_heads(self, ops: Sequence[KeyOp]) -> list[tuple[int, str]]:
        """Return where in a change new streams begin, with the uid of each."""
        heads = [(at, op) for at, op in enumerate(ops) if isinstance(op, Create) and self._places.head_of(op.key)]
        return [(at, uid) for at, op in heads if (uid := uid_in(op.key, op.value))]

    def _with_data_keys(self, ops: Sequence[KeyOp], heads: Sequence[tuple[int, str]]) -> list[KeyOp]:
        """Return the change with the data key of each new stream behind its head: the first to create that key has the
        uid."""
        found = list(ops)
        made = {op.key for op in ops if isinstance(op, Create)} if heads else ()
        for at, uid in reversed(heads):
            if (key := f"{self._places.data}/{uid}") not in made:
                found.insert(at + 1, Create(key, b""))
        return found

    def _check_forms(
        self,
        ops: Sequence[KeyOp],
        heads: Sequence[tuple[int, str]],
        bounds: Mapping[str, Bound | None],
        deleted: Collection[str],
    ) -> None:
        """Check the bound of each key, and refuse what no honest change does: to make and delete one key, or two
        streams of one uid."""
        for op in ops:
            bound = bounds[op.key]
            if isinstance(op, Create | SetValue):
                _check_size(op, bound)
            if not isinstance(op, Create):
                continue
            why = name_refusal(self._places, op.key, bound)
            goes = bound is not None and bound.session_key
            if not why and op.ephemeral and bound is not None and not goes:
                why = f"{bound.what} does not go with a session"
            if not why and op.key in deleted and not goes:
                why = "the same change deletes it; make it in a change of its own"
            if why:
                raise self._judge.refused(op.key, KeyUse.CREATE, why)
        for uid, times in Counter(uid for _, uid in heads).items() if len(heads) > 1 else ():
            if times > 1:
                raise self._judge.refused(f"{self._places.data}/{uid}", KeyUse.CREATE, "two new streams have this uid")

    def _check_one(self, op: KeyOp, before: Found, deleted: Collection[str]) -> None:
        """Check one operation on a head or a record: a stream's uid and a ledger's owner never change, and no stream
        may take the uid of another."""
        if isinstance(op, Create) and self._rules.is_ledger(op.key):
            raise self._judge.refused(op.key, KeyUse.CREATE, "a ledger is created under an id that the cluster gave")
        if isinstance(op, SetValue) and self._rules.is_ledger(op.key):
            record = before.get(op.key)
            if record is None or record.version != op.version:
                raise VersionConflict(op.key, op.version)
            if why := record_refusal(record.value, op.value):
                raise self._judge.refused(op.key, KeyUse.SET, why)
        if not isinstance(op, Create | SetValue) or not self._places.head_of(op.key):
            return
        uid, present = uid_in(op.key, op.value), before.get(op.key)
        why = "" if uid else "it is not the head of a stream"
        if isinstance(op, SetValue):
            if present is None:
                raise NoSuchKey(op.key)
            known = bool(uid_in(op.key, present.value))
            if uid:
                why = (
                    head_change_refusal(head_in(op.key, present.value), head_in(op.key, op.value)) if known else _OTHERS
                )
            if why and present.version != op.version:  # An honest client has not seen what it is now.
                raise VersionConflict(op.key, op.version)
        elif uid:
            # If the head is there and stays, the error is that the stream exists.
            taken = before.get(f"{self._places.data}/{uid}") is not None
            good = not taken if present is None else op.key not in deleted
            why = head_creation_refusal(head_in(op.key, op.value)) if good else _OTHERS
        if why:
            raise self._judge.refused(op.key, USES[type(op)], why)

    # What does

    async def _before(self, ops: Sequence[KeyOp], heads: Sequence[tuple[int, str]]) -> Found:
        """Return the present values of the keys that the change is judged by."""
        wanted = [*touched(self._places, ops), *(f"{self._places.data}/{uid}" for _, uid in heads)]
        wanted += [op.key for op in ops if isinstance(op, SetValue | Delete) and self._rules.is_ledger(op.key)]
        found = await self._look(wanted)
        versions = {op.key: op.version for op in ops if isinstance(op, SetValue | Delete)}
        newer = [key for key in found if versions.get(key, -1) > _version(found[key])]
        if newer:  # The client has seen more than this server of the store.
            await self._store().keys.sync()
            found = {**found, **await self._look(newer)}
        return found

    async def _look(self, wanted: Iterable[str]) -> dict[str, KeyValue | None]:
        names = list(dict.fromkeys(wanted))
        found: dict[str, KeyValue | None] = {}
        prompt = self._prompt() if names else None
        if prompt is not None:
            seen = zip(names, prompt.peek(names), strict=True)
            found = {name: None if one is ABSENT else one for name, one in seen if one is not None}
        left = [name for name in names if name not in found]
        for start in range(0, len(left), _AT_ONCE):
            some = left[start : start + _AT_ONCE]
            if prompt is not None:
                there: Sequence[KeyValue | None] = await prompt.look(some)
            else:
                there = await asyncio.gather(*map(self._get, some))
            found.update(zip(some, there, strict=True))
        return found

    async def _get(self, key: str) -> KeyValue | None:
        try:
            return await self._store().keys.get(key)
        except NoSuchKey:
            return None

    async def _check_data(self, deleted: Collection[str], trial: KeyRules) -> None:
        """Check that the key which says that a stream's uid is taken stays as long as the stream."""
        for key in deleted:
            uid = self._places.uid(key)
            name = trial.name_of(uid) if uid and key == f"{self._places.data}/{uid}" else None
            head_key = f"{self._places.heads}/{name}"
            if name is None or head_key in deleted:
                continue
            head = (await self._look([head_key]))[head_key]
            if head is not None and uid_in(head_key, head.value) == uid and not head_in(head_key, head.value).deleting:
                raise self._judge.refused(key, KeyUse.DELETE, f"stream {name} still exists")

    async def _check_names(self, ops: Sequence[KeyOp], before: Found, trial: KeyRules) -> None:
        """Check that what heads, pages, exports, intents and marks newly name is the stream's own."""
        values = {key: found.value for key, found in before.items() if found is not None}
        try:
            named = newly_named(self._places, ops, values)
        except MalformedRecord as error:
            key, _, why = str(error).partition(": ")
            raise self._judge.refused(key, KeyUse.SET, why) from None
        if not named:
            return
        for op in ops:  # What was looked at is what the store changes.
            if isinstance(op, SetValue | Delete) and op.key in before and _version(before[op.key]) != op.version:
                raise NoSuchKey(op.key) if before[op.key] is None else VersionConflict(op.key, op.version)
        created = {op.key for op in ops if isinstance(op, Create)}
        for uid, claims in named.items():
            name = trial.name_of(uid)
            left = await self._not_own(name, uid, claims, created)
            if left:
                await self._store().keys.sync()  # The record may be newer than this server of the store.
                left = await self._not_own(name, uid, claims, created)
            if left:
                await self._say_conflicts(ops)
                raise await self._not_allowed(ops, name, left, claims)

    async def _not_own(self, name: str | None, uid: str, claims: Claims, created: set[str]) -> list[LedgerId]:
        """Return those ledgers newly named by a stream that were not made for it, and that it does not hold."""
        # An id that this connection was given is nobody else's, and no ledger is there before its intent.
        intents = {ledger for ledger in claims.intents if not self._has_unused(ledger)}
        places = {ledger: await self._place(ledger) for ledger in claims.rows | intents | claims.marks}
        records = await self._look(key for ledger, key in places.items() if key and ledger not in claims.marks)
        own = {ledger for ledger, key in places.items() if _is_made_for(records.get(key), name, uid)}
        rest = sorted(places.keys() - own)
        shares = {ledger: f"{places[ledger]}/{uid}" for ledger in rest if places[ledger]}
        kept = await self._look(key for key in shares.values() if key not in created)
        return [one for one in rest if shares.get(one) not in created and kept.get(shares.get(one, "")) is None]

    async def _place(self, ledger: LedgerId) -> str:
        """Return the key of a ledger's record; "" if the number cannot be an id."""
        try:
            return await self._store().ledgers.key(ledger)
        except InvalidArgument:
            return ""

    async def _say_conflicts(self, ops: Sequence[KeyOp]) -> None:
        """Raise the error that the store would raise for versions that have changed: an honest client looks again then,
        and a ledger that was there when it looked may be gone."""
        made = [op.key for op in ops if isinstance(op, Create)]
        there = [op for op in ops if isinstance(op, SetValue | Delete | CheckVersion) and op.key not in made]
        if there:
            await self._store().keys.multi([CheckVersion(op.key, op.version) for op in there])
        for key, found in (await self._look(made)).items():
            if found is not None:
                raise KeyExists(key)

    async def _not_allowed(
        self, ops: Sequence[KeyOp], name: str | None, left: list[LedgerId], claims: Claims
    ) -> AccessRefused:
        ledger = left[0]
        if ledger in claims.intents and await self._get(await self._place(ledger) or self._places.own) is None:
            return LedgerIdRefused(ledger)
        naming = [op for op in ops if isinstance(op, Create | SetValue) and naming_key(self._places, op.key)]
        why = (
            f"it names ledger {ledger}, which was not made for stream {name or '?'} and which that stream does not hold"
        )
        return self._judge.refused(naming[0].key, USES[type(naming[0])], why)

    async def _check_shares(self, ops: Sequence[KeyOp], trial: KeyRules) -> list[CheckVersion]:
        """Check keys by which streams hold ledgers: they carry the stream's name, and the ledger's own stream has one
        before another stream gets one; otherwise the last of the others to let go would delete its ledger. Who may
        only read the ledger's own stream makes the latter's key together with that of a fork, and not otherwise.
        Returns conditions."""
        made = [op for op in ops if isinstance(op, Create | SetValue) and self._places.is_share(op.key)]
        if not made:
            return []
        parents = list(dict.fromkeys(op.key.rpartition("/")[0] for op in made))
        records = await self._look(parents)
        for op in made:
            ledger, _, uid = op.key.rpartition("/")
            record, name = records[ledger], trial.name_of(uid)
            if record is None:
                raise NoSuchKey(ledger)
            if name is None or op.value != name.encode():
                raise self._judge.refused(
                    op.key, USES[type(op)], f"its value has to be {name}, the stream that holds the ledger"
                )
            owner = _owner(record)
            own = "" if owner is None else owner[1]
            others = {one.key for one in made if isinstance(one, Create) and one.key.startswith(f"{ledger}/")}
            known = bool(own) and (uid == own or f"{ledger}/{own}" in others)
            if not known and not await self._store().keys.children(ledger, limit=1):
                raise self._judge.refused(
                    op.key, USES[type(op)], "the stream that the ledger was made for does not hold it yet"
                )
            if uid == own and others == {op.key} and (why := trial.refusal(op.key, KeyUse.SET)):
                raise self._judge.refused(
                    op.key, USES[type(op)], f"no fork comes to hold the ledger with it, and {why}"
                )
        changed = {op.key for op in ops if not isinstance(op, Create)}
        creates = {op.key.rpartition("/")[0] for op in made if isinstance(op, Create)}
        versions = {key: found.version for key, found in records.items() if found is not None and key in creates}
        return [CheckVersion(key, version) for key, version in versions.items() if key not in changed]

    async def _check_room(self, ops: Sequence[KeyOp], bounds: Mapping[str, Bound | None]) -> None:
        """Check that there is room for new keys of a bounded kind: siblings are counted once, then those that are
        created; now and then again."""
        bounded: dict[str, Bound] = {}
        parents: Counter[str] = Counter()
        for op in ops:
            bound = bounds[op.key]
            if isinstance(op, Create) and bound is not None and bound.siblings is not None:
                parent = op.key.rpartition("/")[0]
                parents[parent] += 1
                bounded[parent] = bound
        for parent, more in parents.items():
            bound = bounded[parent]
            assert bound.siblings is not None
            if len(self._room) > _MOST_COUNTED:
                self._room.clear()
            if self._room.get(parent, 0) < more:
                left = bound.siblings - await self._count(parent, bound.siblings)
                if left < more:
                    raise self._judge.refused(
                        parent,
                        KeyUse.CREATE,
                        f"{bound.siblings} keys are the limit there, each {bound.what}; delete some",
                    )
                self._room[parent] = min(left, max(more, bound.siblings // _COUNTED_FOR))
            self._room[parent] -= more

    async def _count(self, parent: str, most: int) -> int:
        count, after = 0, ""
        while count < most and (page := await self._store().keys.children(parent, after=after, limit=MAX_PAGE)):
            count, after = count + len(page), page[-1]
        return count


def _begins_deletion(places: ClusterKeys, op: KeyOp, before: Found) -> bool:
    """Return whether an operation sets a stream's head so that the deletion of the stream begins."""
    present = before.get(op.key) if isinstance(op, SetValue) and places.head_of(op.key) else None
    if present is None or not isinstance(op, SetValue):
        return False
    return begins_deletion(head_in(op.key, present.value), head_in(op.key, op.value))


def _check_size(op: Create | SetValue, bound: Bound | None) -> None:
    """Raise ValueTooLarge if a value is beyond the bound of its key."""
    if bound is not None and len(op.value) > bound.most_bytes:
        raise ValueTooLarge(f"{op.key} ({bound.what})", len(op.value), bound.most_bytes)


def _version(found: KeyValue | None) -> int:
    return -1 if found is None else found.version


def _owner(record: KeyValue) -> tuple[str, str] | None:
    try:
        return owner_of(record_in(record.value).custom_metadata)
    except MalformedRecord:
        return None


def _is_made_for(record: KeyValue | None, name: str | None, uid: str) -> bool:
    """Return whether a ledger was made for a stream, by its owner mark: the full name and the uid have to match, since
    either could be another stream's by now."""
    return record is not None and name is not None and _owner(record) == (name, uid)
