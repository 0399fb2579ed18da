"""The dialect of SQLAlchemy 2: `create_engine("buckram:///shop/main?metadata=zk://host:2181/ledgers")`.

It is SQLAlchemy's own dialect for SQLite, and says so (`dialect.name` is "sqlite"), so that whatever knows SQLite, such
as pandas and Alembic, knows this. Isolation levels: READ COMMITTED, SERIALIZABLE, AUTOCOMMIT (see `aio.py`).
"""

from __future__ import annotations

from typing import Any, cast

from buckram.extras import needed_for
from buckram.sql import dbapi
from buckram.sql.aio import Isolation

with needed_for("buckram.sql.dialect", "sqlalchemy"):
    from sqlalchemy import exc, pool
    from sqlalchemy.dialects.sqlite.base import SQLiteDialect
    from sqlalchemy.engine import URL
    from sqlalchemy.engine.interfaces import ConnectArgsType, DBAPIConnection, IsolationLevel

_LEVELS: dict[str, Isolation] = {
    "READ COMMITTED": "read committed",
    "SERIALIZABLE": "serializable",
    "AUTOCOMMIT": "autocommit",
}
_OPTIONS: dict[str, Any] = {
    "metadata": str,
    "isolation": str,
    "consistency": str,
    "at_most_s": float,
    "create": lambda text: text.lower() in ("1", "true", "yes"),
    "leader_wait_s": float,
}


class BuckramDialect(SQLiteDialect):
    """SQLite's dialect on `buckram.sql`."""

    driver = "buckram"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    supports_native_boolean = False

    @classmethod
    def import_dbapi(cls) -> Any:
        return dbapi

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        return pool.QueuePool

    def create_connect_args(self, url: URL) -> ConnectArgsType:
        """buckram:///NAMESPACE/DATABASE?metadata=URI; further options are arguments of `buckram.db.connect`."""
        if url.host or url.username or not url.database:
            raise exc.ArgumentError(
                f"{url!r}: needs buckram:///NAMESPACE/DATABASE?metadata=URI, with three slashes and no host"
            )
        unknown = set(url.query) - set(_OPTIONS)
        if unknown:
            raise exc.ArgumentError(f"{url!r}: {min(unknown)!r} is none of the options {', '.join(_OPTIONS)}")
        try:
            options = {name: _OPTIONS[name](value) for name, value in url.query.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise exc.ArgumentError(f"{url!r}: {error}") from None
        return [options.pop("metadata", None), url.database], options

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        return dbapi.sqlite_version_info

    # -- isolation ----------------------------------------------------------------------------------------

    def get_isolation_level_values(self, dbapi_conn: DBAPIConnection) -> list[IsolationLevel]:
        return cast("list[IsolationLevel]", list(_LEVELS))

    def get_default_isolation_level(self, dbapi_conn: DBAPIConnection) -> IsolationLevel:
        return self.get_isolation_level(dbapi_conn)

    def get_isolation_level(self, dbapi_connection: DBAPIConnection) -> IsolationLevel:
        isolation = cast(dbapi.Connection, dbapi_connection).isolation
        return cast("IsolationLevel", isolation.upper())

    def set_isolation_level(self, dbapi_connection: DBAPIConnection, level: IsolationLevel) -> None:
        connection = cast(dbapi.Connection, dbapi_connection)
        if connection.isolation != _LEVELS[level]:
            connection.rollback()
            connection.isolation = _LEVELS[level]

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Return whether the connection is unusable after this error, so that a pool replaces it."""
        return isinstance(e, dbapi.InterfaceError | dbapi.InternalError)


dialect = BuckramDialect
