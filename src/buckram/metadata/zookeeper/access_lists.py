"""A cluster whose ledger tree Apache's software shares, on a ZooKeeper that lets in nobody without a login.

The nodes of that tree are for the cluster's own user, and in part for whoever has a login; all others are for that user
alone. `others_may` defines which part, and is pure; `share_tree` gives nodes that are there already what new ones get;
it blocks, for commands. Not here: who has a login (`cli/up/security_files.py`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from buckram.errors import MetadataError, MetadataUnavailable
from buckram.metadata.zookeeper.ledger_managers import HEALTH_CHECK_SWITCH, OWN_KEYS, RACK_MAP

READ_ONLY = ("LAYOUT", "INSTANCEID", "available", "cookies", "underreplication", RACK_MAP, HEALTH_CHECK_SWITCH)
"""Children of the ledgers root that Apache's clients and shell read, and only bookies and operators change."""
CONFINED = ("/", "/zookeeper/quota", OWN_KEYS)
"""Nodes that ZooKeeper, or a cluster whose credentials are not the only ones, leaves open to everybody."""
_BATCH = 500
WAIT_S, ENTER_S = 10.0, 2.0


def others_may(root: str, path: str) -> str:
    """Return what whoever has a login may do with a node: the letters of ZooKeeper for create, delete, read and write.

    Only the cluster's user may change access lists, delete a child of the root, or do anything outside of it.
    """
    if path == root:
        return "cr"
    if not path.startswith(f"{root}/"):
        return ""
    return "r" if path[len(root) + 1 :].partition("/")[0] in READ_ONLY else "cdrw"


def access_list(others: str, scheme: str = "auth", user: str = "") -> list[Any]:
    """Return the access list of a node: everything for the user, or for who is logged in, and `others` for
    all logins.
    """
    from kazoo.security import ACL, Id, Permissions, make_acl

    own = ACL(Permissions.ALL, Id(scheme, user))
    if not others:
        return [own]
    may = {"create": "c" in others, "delete": "d" in others, "read": "r" in others, "write": "w" in others}
    return [own, make_acl("world", "anyone", **may)]


async def may_enter(hosts: str, user: str, password: str, tls: Callable[[], ssl.SSLContext]) -> bool:
    """Return whether a server lets the login in."""
    from buckram.metadata.zookeeper.kazoo_session import KazooSession

    session = KazooSession(hosts, auth=[("sasl", f"{user}:{password}")], tls=tls, operation_timeout_s=ENTER_S)
    try:
        await session.get("/")
    except MetadataError:
        return False
    finally:
        await session.close()
    return True


@contextmanager
def _session(hosts: str, user: str, password: str, tls: Callable[[], ssl.SSLContext]) -> Iterator[Any]:
    """Return a started kazoo client. Raises MetadataUnavailable."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException

    from buckram.metadata.zookeeper.kazoo_link import ThreadingHandler, sasl_options

    client = KazooClient(
        hosts=hosts, timeout=WAIT_S, handler=ThreadingHandler(tls), sasl_options=sasl_options(user, password)
    )
    try:
        client.start(WAIT_S)
        yield client
    except (client.handler.timeout_exception, KazooException, OSError) as error:
        raise MetadataUnavailable(f"ZooKeeper at {hosts}: access lists could not be set: {error!r}") from error
    finally:
        client.stop()
        client.close()


def share_tree(hosts: str, root: str, user: str, password: str, tls: Callable[[], ssl.SSLContext]) -> int:
    """Give every node its access list; return how many had another one. Raises MetadataUnavailable."""
    changed = 0
    with _session(hosts, user, password, tls) as client:
        for path in CONFINED:
            changed += _set(client, [path], lambda path: "" if path == OWN_KEYS else "r", user)
        level = [root]
        while level:
            changed += _set(client, level, lambda path: others_may(root, path), user)
            level = [child for part in _batches(level) for child in _children(client, part)]
    return changed


def _batches(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[first : first + _BATCH] for first in range(0, len(paths), _BATCH))


def _children(client: Any, paths: Sequence[str]) -> list[str]:
    from kazoo.exceptions import NoNodeError

    found = []
    for path, asked in [(path, client.get_children_async(path)) for path in paths]:
        try:
            found += [f"{path}/{name}" for name in asked.get()]
        except NoNodeError:
            continue  # deleted meanwhile
    return found


def _set(client: Any, paths: Sequence[str], others: Callable[[str], str], user: str) -> int:
    from kazoo.exceptions import NoNodeError

    changed = 0
    for part in _batches(paths):
        pending = []
        for path, asked in [(path, client.get_acls_async(path)) for path in part]:
            wanted = access_list(others(path), "sasl", user)
            try:
                if sorted(asked.get()[0]) != sorted(wanted):
                    pending.append(client.set_acls_async(path, wanted))
            except NoNodeError:
                continue
        for one in pending:
            try:
                one.get()
                changed += 1
            except NoNodeError:
                continue
    return changed
