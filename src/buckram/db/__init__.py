"""Public API for SQL databases: the names of DB-API 2.0, and `Shelf` for programs that serve many databases.

`buckram.db.connect(uri, "shop/main")` is DB-API 2.0, made in `buckram.sql`. docs/tutorial/database.md shows the use.
Not here: how databases work (`state/db/database.py`).
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
    from buckram.state.db.opening import Shelf

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
    "Shelf",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that programs which do not need it do not load its modules."""
    if name in __all__:
        return getattr(import_module("buckram.state.db.opening" if name == "Shelf" else "buckram.sql"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
