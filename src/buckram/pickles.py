"""Pickles of public values and classes, and how those of earlier releases are read.

Programs keep records, settings and descriptions of objects in pickles, and Spark sends classes by their names. A module
that moved is found under its old name when nothing else has that name; a value that has more fields than it had gets
the defaults of the new ones. Not here: errors, which name `buckram.errors` for good (`errors/__init__.py`). Kept free
of imports, because each `import buckram` loads it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MOVED = {
    "buckram.client.client": "buckram.cluster",
    "buckram.core.streams.batch": "buckram.core.streams.records.batch",
    "buckram.db.database": "buckram.state.db.database",
    "buckram.db.settings": "buckram.state.db.settings",
    "buckram.db.transactions": "buckram.state.db.commits.transactions",
    "buckram.files.file": "buckram.files.filesystem",
    "buckram.java": "buckram.launch.java",
    "buckram.machine": "",
    "buckram.machine.machine": "buckram.state.machine.machine",
    "buckram.machine.settings": "buckram.state.machine.settings",
    "buckram.objects": "",
    "buckram.objects.objects": "buckram.state.objects.objects",
    "buckram.objects.values": "buckram.state.objects.values",
    "buckram.sql.exceptions": "buckram.sql.dbapi_types",
    "buckram.sync.bulk": "buckram.sync.records",
    "buckram.sync.machine": "buckram.sync.machines",
    "buckram.sync.objects": "buckram.sync.machines",
    "buckram.sync.reader": "buckram.sync.ledgers",
    "buckram.sync.writer": "buckram.sync.ledgers",
    "buckram.testing.threaded": "buckram.testing.in_process",
}
"""Module of release 0.2.0 and earlier -> module of today; "" for a package that only led to the others."""


class MovedModules:
    """Finder and loader of the modules in MOVED; the last of `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to load a module that moved; None for all others."""
        new = MOVED.get(name)
        if new is None:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, MovedModules, origin=new or None, is_package=not new)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Leave it to the import system: a module of its own, whose attributes are looked up in the new one."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Let the module answer with what the new one has."""
        new = MOVED[module.__name__]
        if new:
            from importlib import import_module

            found = import_module(new)
            module.__dict__["__getattr__"] = lambda name: getattr(found, name)


def state_of(value: Any) -> dict[str, Any]:
    """Return the fields of a frozen dataclass with slots by their names: its `__getstate__`.

    What dataclasses does by itself is a list in the order of the fields, which another release reads as other fields.
    """
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def restore(value: Any, state: Any, before: tuple[str, ...]) -> None:
    """Set the fields of such a dataclass: its `__setstate__`. Fields that the state lacks get their defaults.

    `before`: the fields in the order of release 0.2.0 and earlier, whose states are lists.
    """
    given = state if isinstance(state, dict) else dict(zip(before, state, strict=True))
    for name, field in value.__dataclass_fields__.items():
        object.__setattr__(value, name, given.get(name, field.default))


def install() -> None:
    """Look here after all other finders. Idempotent."""
    if MovedModules not in sys.meta_path:
        sys.meta_path.append(MovedModules)
