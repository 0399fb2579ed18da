"""What SQLite can do and cannot, for SQLAlchemy's suite."""

from __future__ import annotations

from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    """Open: the suite asserts that it works. Closed: its tests are skipped."""
