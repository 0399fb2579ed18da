"""SQL databases on the log: SQLite as the table engine, and every commit in the log before it is anywhere else.

`ns.database("main")` gives a `Database` (`db/database.py`). `buckram.db.connect(uri, "shop/main")` is DB-API 2.0, whose
names this package has from `buckram.sql`, where they are made. docs/tutorial/database.md shows the use of both,
docs/explanation/databases-design.md how databases work.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.sql import (
        DatabaseError,
        DataError,
        Error,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        Warning,
        apilevel,
        connect,
        paramstyle,
        threadsafety,
    )

__all__ = [
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]


def __getattr__(name: str) -> Any:
    """The names of DB-API 2.0 come when they are asked for: what works without them does not import them."""
    if name in __all__:
        return getattr(import_module("buckram.sql"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
