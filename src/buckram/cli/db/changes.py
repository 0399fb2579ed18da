"""`buckram db changes`: what transactions did to rows, as lines or as JSON lines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async, watch_async
from buckram.cli.shared.output import emit
from buckram.core.db.changes import Change
from buckram.core.streams.names import stream_name
from buckram.serve.json_views.databases import plain


@click.command("changes")
@click.argument("name", shell_complete=completion.streams)
@click.option("--from", "first", type=click.IntRange(min=0), help="The first offset; default the oldest that is kept.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until SIGINT.")
@metadata_option
@json_option
def changes(name: str, first: int | None, follow: bool, uri: str | None, as_json: bool) -> None:
    """Print what committed transactions did to rows, in order. The database has to be made with --cdc.

    With --json blobs are {"base64": TEXT}. A program that was stopped goes on with --from and the offset after the last
    one that it has seen.

    \b
    Examples:
      buckram db changes shop/main
      buckram db changes shop/main --from 1200 --follow --json
    """
    full = stream_name(name)

    async def main() -> None:
        async with connected(uri) as client:
            async for change in client.namespace(full.namespace).database_changes(full.stream, first, follow=follow):
                if as_json:
                    emit({key: plain(value) for key, value in asdict(change).items()})
                else:
                    print(_line(change), flush=True)

    (watch_async if follow else run_async)(main())


def _line(change: Change) -> str:
    begin = f"{change.offset} {values.iso(int(change.time * 1e6))} {change.operation}"
    if change.sql is not None:
        return f"{begin} {' '.join(change.sql.split())}"
    row, old, new = change.key or {"rowid": change.rowid}, change.old, change.new
    if old is None or new is None:
        return f"{begin} {change.table} {_shown(new or old or row)}"
    changed = {name: new[name] for name in new if repr(old[name]) != repr(new[name])}
    return f"{begin} {change.table} {_shown(row)}: {_shown(changed)}"


def _shown(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


__all__ = ["changes"]
