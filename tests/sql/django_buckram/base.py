"""Django's backend for SQLite over `buckram.sql`, as far as migrations and the tests of them need it.

What it leaves out are the functions in Python that Django gives its connections (dates, regular expressions, hashes).
NAME is NAMESPACE/DATABASE, and OPTIONS has the `uri` of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.backends.sqlite3 import base

import buckram.sql
from buckram.sql.dbapi import Connection


class Cursor:
    """One of DB-API that takes Django's placeholders and gives rows by itself."""

    def __init__(self, connection: Connection) -> None:
        self._cursor = connection.cursor()

    def execute(self, query: str, parameters: Any = None) -> Cursor:
        self._cursor.execute(_converted(query, parameters), () if parameters is None else parameters)
        return self

    def executemany(self, query: str, many: Any) -> Cursor:
        given = list(many)
        self._cursor.executemany(_converted(query, given[0] if given else ()), given)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __iter__(self) -> Any:
        return iter(self._cursor)


def _converted(query: str, parameters: Any) -> str:
    if parameters is None:
        return query
    if isinstance(parameters, Mapping):
        return query % {name: f":{name}" for name in parameters}
    return base.FORMAT_QMARK_REGEX.sub("?", query).replace("%%", "%")


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]  # Django has no types
    vendor = "sqlite"
    Database = buckram.sql

    def get_connection_params(self) -> dict[str, Any]:
        settings = self.settings_dict
        self.transaction_mode = "IMMEDIATE"
        return {"uri": settings["OPTIONS"]["uri"], "database": settings["NAME"], "isolation": "autocommit"}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        return buckram.sql.connect(**conn_params)

    def create_cursor(self, name: str | None = None) -> Cursor:
        return Cursor(self.connection)

    def _set_autocommit(self, autocommit: bool) -> None:
        with self.wrap_database_errors:
            self.connection.isolation = "autocommit" if autocommit else "read committed"

    def is_in_memory_db(self) -> bool:
        return False
