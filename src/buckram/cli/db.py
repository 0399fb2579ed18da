"""`buckram db`: replicated SQL databases."""

from __future__ import annotations

import click

from buckram.cli.db_serve import serve


@click.group("db")
def db() -> None:
    """SQL databases on the log: SQLite's SQL, replicated."""


db.add_command(serve)


__all__ = ["db"]
