"""Ledgers that several streams list: each holds the ledger by a key, and the last to let go deletes it.

The keys are below the ledger's own record, and a metadata store deletes no key that has others below it. So the store
itself protects a shared ledger, also from a program that knows nothing of forks, such as Apache's. A fork's key is
created together with one below the fork's data, which is deleted last, so that a clean-up finds the first by the
second. A holding key has the stream's name as its value: a move of all metadata by a program that does not know such
keys would lose empty ones, and is refused for others. Not here: forking (`streams/maintain/fork.py`), letting go
(`let_go` of `streams/shared/ledgers.py`).

    ledgers/.../L                                   the record
    ledgers/.../L/<uid>                             the stream of this uid holds it: NAMESPACE/STREAM
    streams/data/<uid>/shared/<ledger, 19 digits>   the same, of a fork: empty
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from buckram.core.streams.names import StreamId
from buckram.errors import MetadataUnavailable, NoSuchKey, NoSuchLedger, VersionConflict
from buckram.metadata.tree.key_operations import all_names
from buckram.seams import KeyStore
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerId

_PAGE = 1000


async def holders(streams: StreamStore, ledger: LedgerId) -> list[str]:
    """Return the uids of the streams that hold a shared ledger; none of one that is not shared, or does not exist."""
    key = await streams.metadata.ledger_key(ledger)

    async def read() -> list[str]:
        return [name async for name in all_names(streams.keys, key)]

    return await retry_metadata(read)


async def sharing_ops(streams: StreamStore, ledger: LedgerId, source: StreamId, fork: StreamId) -> Sequence[KeyOp]:
    """Return the operations by which these streams hold a ledger; none if both do already.

    The multi fails if the ledger was deleted. NoSuchLedger if it is gone now.
    """
    key = await streams.metadata.ledger_key(ledger)
    try:
        version = (await streams.keys.get(key)).version
    except NoSuchKey:
        raise NoSuchLedger(ledger) from None
    ops: list[KeyOp] = []
    for party in (source, fork):
        if await _delete_op(streams.keys, f"{key}/{party.uid}") is None:
            ops.append(Create(f"{key}/{party.uid}", str(party.name).encode()))
            if party is fork and not await held(streams, fork.uid, ledger):
                ops.append(Create(_mark(streams, fork.uid, ledger), b""))
    return [CheckVersion(key, version), *ops] if ops else []


async def held(streams: StreamStore, uid: str, ledger: LedgerId) -> bool:
    """Return whether a fork has held a ledger and not yet let go of it: as the last holder it must delete it."""
    try:
        await retry_metadata(lambda: streams.keys.get(_mark(streams, uid, ledger)))
    except NoSuchKey:
        return False
    return True


async def release(streams: StreamStore, uid: str, ledger: LedgerId) -> bool:
    """Take away the key by which a stream holds a ledger. False if there was none. MetadataUnavailable.

    The key below the fork's data stays until `forget`, so that a deletion that was stopped in between can go on.
    """
    return await _remove(streams, f"{await streams.metadata.ledger_key(ledger)}/{uid}")


async def forget(streams: StreamStore, uid: str, ledger: LedgerId) -> None:
    """Take away the key below a fork's data, when the ledger is gone or is others' to delete. MetadataUnavailable."""
    await _remove(streams, _mark(streams, uid, ledger))


async def _remove(streams: StreamStore, key: str) -> bool:
    retries, asked = head_retries(), False
    while True:
        try:
            op = await _delete_op(streams.keys, key)
            if op is None:
                return asked  # An earlier request whose reply was lost may have done it.
            asked = True
            await streams.keys.delete(op.key, op.version)
            return True
        except (NoSuchKey, VersionConflict, MetadataUnavailable) as error:
            await retries.wait(error)  # Another process cleans up as well, or a reply was lost: look again.


async def shared_by(streams: StreamStore, uid: str, *, after: LedgerId = -1) -> list[LedgerId]:
    """Return some of the ledgers with ids above `after` that a fork holds together with others, in order; none if it
    holds none of these."""
    parent, last = streams.layout.shared(uid), f"{after:019d}" if after >= 0 else ""
    return [int(name) for name in await retry_metadata(lambda: streams.keys.children(parent, after=last, limit=_PAGE))]


async def _delete_op(keys: KeyStore, key: str) -> Delete | None:
    with suppress(NoSuchKey):
        return Delete(key, (await keys.get(key)).version)
    return None


def _mark(streams: StreamStore, uid: str, ledger: LedgerId) -> str:
    return f"{streams.layout.shared(uid)}/{ledger:019d}"
