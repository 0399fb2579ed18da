"""Grants and denials of a mirrored namespace: they become those of the source, also if the source revokes one.

Patterns for several namespaces, tokens, keys and revoked tokens belong to one cluster and stay as they are. Not here:
what grants allow (`core/security/acl.py`).
"""

from __future__ import annotations

from buckram.metadata.records.security import SecurityStore
from buckram.replication.sides import Side


async def mirror_grants(source: Side, target: Side, namespace: str) -> None:
    """Give the target the grants and denials that the source has for the namespace.

    Raises MalformedRecord, MetadataUnavailable, and InvalidArgument for denials if a bookie of the target does not know
    denials.
    """
    wanted = (await SecurityStore(source.client.services.store).acl()).of_namespace(namespace)
    store = SecurityStore(target.client.services.store)
    if (await store.acl()).of_namespace(namespace) != wanted:
        await store.change_acl(lambda acl: acl.with_namespace(namespace, wanted))


__all__ = ["mirror_grants"]
