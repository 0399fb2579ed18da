"""`buckram db shell`: statements from the command line, from a terminal or from a pipe, and their results."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from buckram.cli.shared import completion
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, remark, table
from buckram.core.streams.names import stream_name
from buckram.errors import BuckramError, InvalidArgument, MirrorStream, NotLeader

# Imported by what runs: help needs no table engine.
if TYPE_CHECKING:
    from buckram.core.db.sql import SqlResult
    from buckram.state.db.database import Database

_LEAD_WITHIN_S = 3.0


@click.command("shell")
@click.argument("name", shell_complete=completion.streams)
@click.argument("sql", required=False)
@click.option("--create", is_flag=True, help="Create the database if it does not exist.")
@cluster_options
def shell(name: str, sql: str | None, create: bool, uri: str | None, as_json: bool) -> None:
    """Execute SQL from the argument or standard input. Each statement is executed by itself.

    This process leads meanwhile if no other does. While another one leads, and in a mirror, it reads and cannot write.

    \b
    Examples:
      buckram db shell shop/main "SELECT count(*) FROM item"
      buckram db shell shop/main < schema.sql
    """
    full = stream_name(name)

    async def main() -> None:
        async with (
            connected(uri) as client,
            client.namespace(full.namespace).database(full.stream, create=create) as db,
        ):
            try:
                async with asyncio.timeout(_LEAD_WITHIN_S):
                    await db.lead()
            except TimeoutError:
                if (nobody := client.services.bookies.nobody()) is not None:
                    raise nobody from None
                remark(
                    f"{await db.leader_address() or 'another process'} leads {full}: it can be read here, not written"
                )
            except MirrorStream:
                remark(f"{full} is a mirror of a database in another cluster: it can be read here, not written")
            if sql is not None:
                for one in _split(iter((sql,))):
                    _print(await _execute(db, one), as_json)
            else:
                await _read(db, as_json)

    run_async(main())


async def _read(db: Database, as_json: bool) -> None:
    person = sys.stdin.isatty()
    for one in _split(_lines(f"{db.name}> " if person else "")):
        try:
            _print(await _execute(db, one), as_json)
        except BuckramError as error:
            if not person:
                raise
            remark(str(error))


def _lines(prompt: str) -> Iterator[str]:
    if not prompt:
        yield from sys.stdin
        return
    while True:
        try:
            yield input(prompt) + "\n"
        except EOFError:
            print()
            return


def _split(lines: Iterator[str]) -> Iterator[str]:
    """Statements, which may have several lines. Raises InvalidArgument for one that has no end."""
    held = ""
    for line in lines:
        # A line may have several statements, and a semicolon may stand within a text or a trigger.
        for piece in line.replace(";", ";\0").split("\0"):
            held += piece
            if held.strip() and sqlite3.complete_statement(held):
                yield held.strip()
                held = ""
    if held.strip():
        if not sqlite3.complete_statement(f"{held};"):
            raise InvalidArgument(f"the statement {held.strip()[:60]!r} has no end")
        yield held.strip()


async def _execute(db: Database, sql: str) -> SqlResult:
    try:
        return await db.execute(sql)
    except (NotLeader, MirrorStream) as error:
        # What is new in a mirror is asked by whoever copies into it; what is there when the shell begins is shown.
        at_most_s = 0 if isinstance(error, NotLeader) else None
        with suppress(BuckramError):
            return await db.query(sql, consistency="stale", at_most_s=at_most_s)
        raise error


def _print(result: SqlResult, as_json: bool) -> None:
    if as_json:
        emit(
            {
                "columns": result.columns,
                "rows": result.rows,
                "rows_affected": result.rows_affected,
                "last_insert_rowid": result.last_insert_rowid,
            }
        )
    elif result.columns:
        table(result.columns, [["" if value is None else value for value in row] for row in result.rows])
    else:
        print(f"{counted(result.rows_affected, 'row')} affected")
