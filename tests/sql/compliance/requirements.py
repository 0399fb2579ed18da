"""What the dialect can do and cannot, for SQLAlchemy's suite: of what is closed the suite skips the tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    """Differences from what the suite takes for granted. The first three are Buckram's, the others SQLite's."""

    temporary_tables = exclusions.closed()
    temp_table_reflection = exclusions.closed()
    schemas = exclusions.closed()  # these are attached files in SQLite

    isolation_level = exclusions.open()
    savepoints = exclusions.open()
    views = exclusions.open()
    autocommit = exclusions.open()
    insert_returning = exclusions.open()
    update_returning = exclusions.open()
    delete_returning = exclusions.open()
    ctes = exclusions.open()
    window_functions = exclusions.open()
    json_type = exclusions.open()
    unique_constraint_reflection = exclusions.open()
    empty_inserts = exclusions.open()
    datetime_historic = exclusions.open()
    date_historic = exclusions.open()

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        return {"default": "READ COMMITTED", "supported": ["READ COMMITTED", "SERIALIZABLE", "AUTOCOMMIT"]}
