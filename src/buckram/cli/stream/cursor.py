"""`buckram stream cursor`: list, set and delete the durable positions of readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import cluster_options, confirm_loss, connected, run_async, yes_option
from buckram.cli.shared.output import emit, table
from buckram.core.streams.names import stream_name
from buckram.errors import CursorMoved, StreamError
from buckram.serve.json_views.streams import cursor_json

if TYPE_CHECKING:
    from buckram.streams.read.cursors import CursorInfo

OFFSET = click.IntRange(min=0)
_PAGE = 1000


@click.group()
def cursor() -> None:
    """Manage cursors, the durable named positions of readers."""


@cursor.command("list")
@click.argument("name", shell_complete=completion.streams)
@cluster_options
def list_cursors(name: str, uri: str | None, as_json: bool) -> None:
    """List the cursors of a stream, each with its lag in records.

    \b
    Example:
      buckram stream cursor list shop/orders
    """
    full = stream_name(name)

    async def main() -> list[CursorInfo]:
        async with connected(uri) as client:
            ns = client.namespace(full.namespace)
            found: list[CursorInfo] = []
            while page := await ns.cursors(full.stream, after=found[-1].name if found else "", limit=_PAGE):
                found += page
            return found

    found = run_async(main())
    if as_json:
        emit({"stream": str(full), "cursors": [cursor_json(one) for one in found]})
    else:
        rows = [(one.name, one.offset, one.lag, values.iso(one.changed)) for one in found]
        table(("CURSOR", "OFFSET", "LAG", "CHANGED"), rows)


class CursorBackwards(CursorMoved):
    """Error of `cursor set`: the cursor stands there, no other reader has moved it."""

    def __init__(self, stream: str, cursor: str, offset: int, wanted: int) -> None:
        StreamError.__init__(
            self,
            stream,
            f"cursor {cursor!r} is at {offset} and does not go back to {wanted}: to move it down, "
            f"`buckram stream cursor delete {stream} {cursor}` first",
        )
        self.cursor, self.offset, self.wanted = cursor, offset, wanted


@cursor.command("set")
@click.argument("name", shell_complete=completion.streams)
@click.argument("cursor_name", metavar="CURSOR")
@click.argument("offset", type=OFFSET)
@cluster_options
def set_cursor(name: str, cursor_name: str, offset: int, uri: str | None, as_json: bool) -> None:
    """Make a cursor, or move it up. To move it down delete it first.

    \b
    Example:
      buckram stream cursor set shop/orders billing 1000
    """
    full = stream_name(name)

    async def main() -> None:
        async with connected(uri) as client:
            try:
                await client.namespace(full.namespace).move_cursor(full.stream, cursor_name, offset)
            except CursorMoved as error:
                raise CursorBackwards(str(full), cursor_name, error.offset, offset) from None

    run_async(main())
    if as_json:
        emit({"stream": str(full), "cursor": cursor_name, "offset": offset})
    else:
        print(f"cursor {cursor_name} of stream {full} is at {offset}")


@cursor.command("delete")
@click.argument("name", shell_complete=completion.streams)
@click.argument("cursor_name", metavar="CURSOR")
@yes_option
@cluster_options
def delete_cursor(name: str, cursor_name: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Forget a position; a reader that uses it fails at its next commit.

    \b
    Example:
      buckram stream cursor delete shop/orders billing --yes
    """
    full = stream_name(name)
    question = f"Delete cursor {cursor_name} of stream {full}?"
    confirm_loss(question, yes, f"cursor {cursor_name} of stream {full} is not deleted")

    async def main() -> None:
        async with connected(uri) as client:
            await client.namespace(full.namespace).delete_cursor(full.stream, cursor_name)

    run_async(main())
    if as_json:
        emit({"stream": str(full), "cursor": cursor_name, "deleted": True})
    else:
        print(f"cursor {cursor_name} of stream {full} deleted")
