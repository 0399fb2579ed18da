"""Streams by name in SQL: a temporary view of each stream of a namespace, which is read anew by each query.

PySpark plans a Python source once for a view that is made with USING, so such a view is a snapshot. A view that is the
text of a query is analysed again whenever it is used; its text names a table of the catalog that says which format and
columns there are, and with WITH which stream.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from buckram.core.streams.names import check_name, stream_name
from buckram.errors import InvalidArgument, NoSuchStream
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.clients import connection
from buckram.spark.shared.cluster_uri import cluster_uri
from buckram.spark.shared.columns import STREAM_COLUMNS
from buckram.spark.source.planning import StreamOptions
from buckram.spark.source.stream_planner import Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buckram.cluster import Client

TABLE = "buckram_records"


def views(
    session: SparkSession, metadata: str, namespace: str = "default", *, pattern: str = ".*", prefix: str = ""
) -> dict[str, str]:
    """Make a temporary view of each stream of a namespace whose name matches `pattern`; the view's name is `prefix` and
    the stream's name. Returns the full names of the streams by view.

    Each query of a view reads what is readable then. Views of streams that are made later need another call. The logs
    of databases and machines are left out. The table `buckram_records`, which has no rows of its own, is made in the
    catalog's current database. The token is that of the driver's environment. Raises InvalidArgument, NoSuchNamespace,
    MetadataUnavailable.
    """
    check_name("namespace", namespace)
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise InvalidArgument(f"pattern {pattern!r}: needs a regular expression of Python ({error})") from None
    names = connection(cluster_uri(metadata, {})).run(lambda client: _streams(client, namespace))
    columns = ", ".join(
        f"`{name}` {kind.replace('timestamp', 'TIMESTAMP_LTZ')}" for name, kind in STREAM_COLUMNS.items()
    )
    session.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING buckram")
    made: dict[str, str] = {}
    for full in names:
        name = stream_name(full).stream
        if not matches(name):
            continue
        options = f"metadata = {_text(metadata)}, subscribe = {_text(full)}"
        view = "`" + f"{prefix}{name}".replace("`", "``") + "`"
        session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS SELECT * FROM {TABLE} WITH ({options})")
        made[f"{prefix}{name}"] = full
    return made


async def _streams(client: Client, namespace: str) -> list[str]:
    """Return the full names of the streams of a namespace, without the logs of machines."""
    await client.namespaces.get(namespace)
    planner = Planner(client)
    options = StreamOptions.parse({"metadata": "x", "subscribePattern": f"{re.escape(namespace)}/.*"}, "read")
    names = await planner.names(options)
    plain = await run_in_order([partial(_is_plain, planner, name) for name in names])
    return [name for name, is_plain in zip(names, plain, strict=True) if is_plain]


async def _is_plain(planner: Planner, name: str) -> bool:
    try:
        head = (await planner.streams.read(stream_name(name))).head
    except NoSuchStream:  # Deleted since the names were listed.
        return False
    return head.snapshots is None and not head.deleting and not head.incomplete


def _text(value: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
