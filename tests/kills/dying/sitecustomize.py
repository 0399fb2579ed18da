"""Kills its own process group before the n-th change that a command makes; Python loads it at its start.

A change is a step that something of the command's outlives: a file or a name below the directories `BUCKRAM_KILL_IN`
(separated by colons), a statement that changes an SQLite database, a request that changes a key of ZooKeeper or etcd,
entries handed to bookies. Opening a file that is made or emptied by it is two: before it, and before it has content.
Each change of all processes that a command starts is a line of 128 bytes in the file `BUCKRAM_KILL_LOG`; the one whose
number is `BUCKRAM_KILL_AT`, from 1 on, is never made.

Not seen: what Java and C code do by themselves, and writes to mapped pages.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.abc
import importlib.machinery
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

ROOTS = tuple(os.path.realpath(one) for one in os.environ["BUCKRAM_KILL_IN"].split(":"))
AT = int(os.environ["BUCKRAM_KILL_AT"])
LOG = os.open(os.environ["BUCKRAM_KILL_LOG"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
LINE = 128
_pwrite = os.pwrite
BY_NAME = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
BY_DESCRIPTOR = ("write", "pwrite", "pwritev", "writev", "fsync", "fdatasync", "ftruncate", "posix_fallocate")
NO_CHANGE = ("PRAGMA", "SELECT", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "ATTACH", "DETACH", "EXPLAIN", "WITH")
KEY = re.compile(r"'(/[^']*)','([^']*)'")
KEPT_BY_PRAGMA = ("journal_mode=", "application_id=", "user_version=", "wal_checkpoint(")


def step(kind: str, what: object) -> None:
    """Log one change, and die before the chosen one is made."""
    line = f"{kind} {what}".encode(errors="replace").replace(b"\n", b" ")[: LINE - 1].ljust(LINE - 1) + b"\n"
    fcntl.flock(LOG, fcntl.LOCK_EX)
    size = os.fstat(LOG).st_size
    _pwrite(LOG, line, size)
    fcntl.flock(LOG, fcntl.LOCK_UN)
    if size // LINE + 1 == AT:
        os.killpg(0, signal.SIGKILL)  # the command and all that it started


# -- files --------------------------------------------------------------------------------------------------


def named(path: object, folder: object = -1) -> str:
    """The path below the roots that an argument of a call means; empty for one that is elsewhere."""
    try:
        if isinstance(path, int):
            found = os.readlink(f"/proc/self/fd/{path}")
        elif isinstance(folder, int) and folder >= 0:
            found = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))  # type: ignore[arg-type]
        else:
            found = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        return ""
    for root in ROOTS:
        if found == root or found.startswith(root + "/"):
            return found[len(root) + 1 :] or "."
    return ""


def watched(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and isinstance(path, str | bytes) and makes(path, flags) and (name := named(path)):
            step("open", name)
            sys.setprofile(functools.partial(opened, name))
    elif event in BY_NAME:
        folder = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
        if name := named(arguments[0], folder):
            step(event.removeprefix("os."), name)


def makes(path: str | bytes, flags: int) -> bool:
    """Return whether opening makes a file, or empties it."""
    return bool(flags & os.O_TRUNC) or (bool(flags & os.O_CREAT) and not os.path.lexists(path))


def opened(name: str, _: FrameType, __: str, call: Any) -> None:
    """Die between the opening of a file and its first content, at whatever its thread calls or returns from next."""
    if getattr(call, "__name__", "") != "setprofile":
        sys.setprofile(None)
        step("opened", name)


def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(descriptor: int, *arguments: Any) -> Any:
        if path := named(descriptor):
            step(name, path)
        return call(descriptor, *arguments)

    return counted


# -- metadata and entries -----------------------------------------------------------------------------------


class Statements:
    """Counts the statements of a connection that are a transaction by themselves, or that end one.

    What is not committed is undone by SQLite. A statement that fires triggers is traced once more for each of them.
    """

    def __init__(self, connection: Any) -> None:
        self._connection, self._last = connection, ""
        connection.set_trace_callback(self.begun)

    def begun(self, statement: str) -> None:
        again, self._last = statement == self._last, statement
        words = statement.split(None, 3)
        if again or not words or words[1:2] == ["TEMP"]:
            return
        if words[0] == "COMMIT" or (not self._connection.in_transaction and changes(words[0], statement)):
            keys = ["/".join(one) for one in KEY.findall(statement)]
            step("sql", " ".join(keys) or " ".join(statement.split()))


def changes(word: str, text: str) -> bool:
    return word not in NO_CHANGE or (word == "PRAGMA" and any(one in text for one in KEPT_BY_PRAGMA))


def before(kind: str, what: Callable[..., object]) -> Callable[[Any], Any]:
    """A wrapper of a method that counts a change for each call of which `what` tells one."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapped(self: Any, *given: Any, **more: Any) -> Any:
            if found := what(*given):
                step(kind, found)
            return method(self, *given, **more)

        return wrapped

    return wrap


def _keys_of(ops: Sequence[Any]) -> str:
    return f"multi {len(ops)} {ops[0].key}" if ops else ""


def _etcd_change(path: str, *_: object) -> str:
    return path if path in ("kv/txn", "kv/put", "kv/deleterange", "lease/grant", "lease/revoke") else ""


def patch_sqlite(module: Any) -> None:
    connect = module.connect

    def connected(*given: Any, **more: Any) -> Any:
        connection = connect(*given, **more)
        Statements(connection)
        return connection

    module.connect = connected


def patch_zookeeper(module: Any) -> None:
    for name in ("create", "set", "delete"):
        wrap = before("zookeeper", lambda path, *_, name=name: f"{name} {path}")
        setattr(module.KazooSession, name, wrap(getattr(module.KazooSession, name)))
    module.KazooSession.multi = before("zookeeper", _keys_of)(module.KazooSession.multi)


def patch_etcd(module: Any) -> None:
    module.EtcdClient.call = before("etcd", _etcd_change)(module.EtcdClient.call)


def patch_outbox(module: Any) -> None:
    module.Outbox.add = before("append", lambda bodies, size: f"{len(bodies)} entries")(module.Outbox.add)


PATCHES: dict[str, Callable[[Any], None]] = {
    "sqlite3": patch_sqlite,
    "buckram.metadata.zookeeper.kazoo_session": patch_zookeeper,
    "buckram.metadata.etcd.client": patch_etcd,
    "buckram.client.write.outbox": patch_outbox,
}


class Patching(importlib.abc.MetaPathFinder):
    """Changes some modules as soon as they were imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            PATCHES[name](module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]  # of this one loader
        return spec


if AT >= 0:
    for name in BY_DESCRIPTOR:
        setattr(os, name, counting(name, getattr(os, name)))
    sys.meta_path.insert(0, Patching())
    sys.addaudithook(watched)
