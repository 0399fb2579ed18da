"""The table of all options of the data source `buckram`: role, default, meaning, and how a text becomes a value.

Source and sink share the table, and docs/tutorial/spark.md shows it. Nothing here does I/O. Not here: checks of options
against one another (`planning.py`, `spark/sink/stream_sink.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from buckram.core.streams.names import check_name, stream_name
from buckram.errors import ConfigError, InvalidArgument
from buckram.metadata.default import VARIABLE, default_uri
from buckram.spark.shared.cluster_uri import SECRET_OPTIONS, cluster_uri
from buckram.types import MAX_LEDGER_ID

Role = Literal["read", "stream", "write"]
READ: tuple[Role, ...] = ("read",)
STREAM: tuple[Role, ...] = ("stream",)
READS: tuple[Role, ...] = ("read", "stream")
WRITE: tuple[Role, ...] = ("write",)
ALL: tuple[Role, ...] = ("read", "stream", "write")
ROLE_NAMES: Mapping[Role, str] = {"read": "batch reads", "stream": "streaming reads", "write": "writes"}
CLUSTER_TABLES, STREAM_TABLES = ("usage", "ledgers"), ("segments", "cursors", "transactions")
"""Values of the option `table`; those of streams may be asked for of some."""
SPARKS_OWN = ("checkpointlocation", "queryname", "provider", "owner", "comment")
"""Options that Spark itself adds, for a streaming query or a table of the catalog."""


class Parser(Protocol):
    def __call__(self, name: str, text: str, /) -> Any:
        """Convert the text of an option to its value; InvalidArgument names both and says what is needed."""
        ...


class LedgerRange(NamedTuple):
    """Ledger ids from `first` to `last`, both inclusive."""

    first: int
    last: int


class Position(NamedTuple):
    """Where to begin or end: offsets by full stream name, and a word for all other streams."""

    word: Literal["earliest", "latest"]
    offsets: Mapping[str, int] = {}


class Times(NamedTuple):
    """Milliseconds since 1970: for all streams, and by full stream name."""

    of_all: int | None = None
    of_one: Mapping[str, int] = {}


# -- how texts become values ------------------------------------------------------------------------------


def bad(name: str, text: str, needs: str) -> InvalidArgument:
    """Return the error for an option's value."""
    shown = text if len(text) <= 100 else text[:100] + "..."
    return InvalidArgument(f'option "{name}" = {shown!r}: needs {needs}')


def a_text(name: str, text: str) -> str:
    """Parse a text that is not empty."""
    if not text.strip():
        raise bad(name, text, "a value that is not empty")
    return text


def any_text(name: str, text: str) -> str:
    """Parse any text."""
    return text


def a_flag(name: str, text: str) -> bool:
    """Parse true or false."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise bad(name, text, "true or false") from None


def a_number(minimum: int) -> Parser:
    """Return a parser of whole numbers of at least `minimum`."""

    def parse(name: str, text: str) -> int:
        needs = f"a whole number of at least {minimum}"
        try:
            value = int(text)
        except ValueError:
            raise bad(name, text, needs) from None
        if value < minimum:
            raise bad(name, text, needs)
        return value

    return parse


def a_duration(name: str, text: str) -> float:
    """Parse a time as in 500ms, 30s, 15m or 2h; a plain number is of milliseconds. Returns seconds."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)?", text.strip().lower())
    if match is None:
        raise bad(name, text, "a time, such as 500ms, 30s, 15m or 2h")
    return int(match[1]) * _SECONDS[match[2] or "ms"]


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def a_size(name: str, text: str) -> int:
    """Parse a number of bytes as Spark writes sizes: 67108864, 64m, 64MB, 1GiB."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(match[1]) * SIZE_UNITS[match[2]] if match else 0
    if size < 1:
        raise bad(name, text, "bytes, at least 1, such as 67108864 or 64m")
    return size


def one_of(*choices: str) -> Parser:
    """Return a parser of one of these words, in any case."""
    known = {choice.lower(): choice for choice in choices}

    def parse(name: str, text: str) -> str:
        found = known.get(text.strip().lower())
        if found is None:
            raise bad(name, text, " or ".join(choices))
        return found

    return parse


def a_stream(name: str, text: str) -> str:
    """Parse one full stream name."""
    try:
        return str(stream_name(text.strip()))
    except InvalidArgument as error:
        raise InvalidArgument(f'option "{name}": {error}') from None


def some_streams(name: str, text: str) -> tuple[str, ...]:
    """Parse full stream names separated by commas; returns each once, in the order given."""
    parts = [part.strip() for part in text.split(",")]
    found = tuple(dict.fromkeys(a_stream(name, part) for part in parts if part))
    if not found:
        raise bad(name, text, "NAMESPACE/STREAM, several separated by commas")
    return found


def a_pattern(name: str, text: str) -> str:
    """Parse a regular expression of Python; returns its text."""
    try:
        re.compile(text)
    except re.error as error:
        raise bad(name, text, f"a regular expression of Python ({error})") from None
    return a_text(name, text)


def a_cursor(name: str, text: str) -> str:
    """Parse the name of a cursor."""
    try:
        return check_name("cursor", text)
    except InvalidArgument as error:
        raise InvalidArgument(f'option "{name}": {error}') from None


def a_position(default: Literal["earliest", "latest"]) -> Parser:
    """Return a parser of `earliest`, `latest`, or a JSON object of stream names with offsets.

    As with Kafka's source, -2 means earliest and -1 latest. Streams that are not named get `default`.
    """

    def parse(name: str, text: str) -> Position:
        word = {"earliest": Position("earliest"), "latest": Position("latest")}.get(text.strip().lower())
        if word is not None:
            return word
        needs = 'earliest, latest, or JSON such as {"shop/orders": 120}'
        try:
            raw = json.loads(text)
        except ValueError:
            raise bad(name, text, needs) from None
        if not isinstance(raw, dict) or not all(type(offset) is int and offset >= -2 for offset in raw.values()):
            raise bad(name, text, f"{needs}, with offsets from 0 on (-2: earliest, -1: latest)")
        return Position(default, {a_stream(name, stream): offset for stream, offset in raw.items()})

    return parse


def a_time(name: str, text: str) -> Times:
    """Parse milliseconds since 1970, or a JSON object of stream names with milliseconds."""
    needs = 'milliseconds since 1970, or JSON such as {"shop/orders": 1764150000000}'
    try:
        raw = json.loads(text)
    except ValueError:
        raise bad(name, text, needs) from None
    times = raw.values() if isinstance(raw, dict) else [raw]
    if not all(type(time) is int and time >= 0 for time in times):
        raise bad(name, text, needs)
    if isinstance(raw, dict):
        return Times(None, {a_stream(name, stream): time for stream, time in raw.items()})
    return Times(raw)


def some_ledgers(name: str, text: str) -> tuple[LedgerRange, ...] | None:
    """Parse `all`, or ids and ranges separated by commas: `3,5,8-12`. Returns None for all."""
    if text.strip().lower() == "all":
        return None
    ranges = []
    number = a_number(0)
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = number(name, first)
        high = number(name, last) if dash else low
        if low > high or high > MAX_LEDGER_ID:
            raise InvalidArgument(f'option "{name}": range {part.strip()!r} is empty or beyond {MAX_LEDGER_ID}')
        ranges.append(LedgerRange(low, high))
    return tuple(ranges)


# -- the table --------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """One option. `default` is a text as a user writes it; None: there is none, and the option may be absent."""

    name: str
    roles: tuple[Role, ...]
    default: str | None
    meaning: str
    parse: Parser
    shown_default: str = ""
    """Text that the table of options shows instead of `default`; empty to show that."""


OPTIONS: tuple[Option, ...] = (
    Option(
        "metadata",
        ALL,
        None,
        "The cluster: a metadata URI, such as `zk://host:2181/ledgers`",
        a_text,
        "`BUCKRAM_METADATA` of the driver, else the cluster that `buckram up` started in its directory",
    ),
    # how to enter it
    Option(
        "token",
        ALL,
        None,
        "The token, as `buckram token create` printed it; Spark hides the value of an option of this name",
        a_text,
        "`BUCKRAM_TOKEN` of the driver",
    ),
    Option("tokenFile", ALL, None, "File of the driver's machine with the token", a_text),
    Option(
        "tls.ca",
        ALL,
        None,
        "PEM file, on every machine: the trusted authorities; turns TLS on",
        a_text,
        "`BUCKRAM_CA` of the driver",
    ),
    Option("tls.certificate", ALL, None, "PEM file, on every machine: the certificate to show", a_text),
    Option("tls.key", ALL, None, "PEM file, on every machine: its private key; mode 0600", a_text),
    # what to read
    Option(
        "subscribe",
        READS,
        None,
        'Streams, NAMESPACE/STREAM separated by commas; `.load("shop/orders")` is the same for short',
        some_streams,
    ),
    Option(
        "path",
        ALL,
        None,
        "What `.load(...)`, `.save(...)` and `.start(...)` give: streams to read, or the stream to write",
        some_streams,
    ),
    Option("streams", READS, None, "Another name for `subscribe`", some_streams),
    Option(
        "subscribePattern",
        READS,
        None,
        "All streams whose whole name matches this regular expression (Python's). "
        "With a slash in it NAMESPACE/STREAM is matched, else the names in `default`. New streams are picked up "
        "from their start",
        a_pattern,
    ),
    Option(
        "startingOffsets",
        READS,
        None,
        '`earliest`, `latest`, or JSON: `{"shop/orders": 120}`. A streaming query '
        "uses it in its first run only; its checkpoint says the rest",
        a_position("earliest"),
        "earliest; streaming: latest",
    ),
    Option(
        "endingOffsets",
        READ,
        None,
        "Where the read ends, exclusive; as startingOffsets",
        a_position("latest"),
        "latest",
    ),
    Option(
        "startingTimestamp",
        READS,
        None,
        "From the first record that was appended at or after this time: milliseconds since 1970, or for some streams "
        '`{"shop/orders": 1764150000000}`; the others begin as startingOffsets says',
        a_time,
    ),
    Option(
        "endingTimestamp",
        READ,
        None,
        "Before the first record that was appended at or after this time; as startingTimestamp",
        a_time,
    ),
    Option(
        "failOnDataLoss",
        READS,
        "true",
        "Whether a query fails when records that it wants were truncated; else it "
        "goes on at the earliest and says so in the log",
        a_flag,
    ),
    Option("includeHeaders", READS, "false", "Adds the column `headers`", a_flag),
    Option("maxPartitionBytes", READS, "64m", "Partitions of about so many bytes", a_size),
    Option(
        "localReads",
        READS,
        "true",
        "Executors read the log files of bookies that run on their machine as the same "
        "user, at the places that the bookie names; the digests are checked as ever",
        a_flag,
    ),
    Option("minPartitions", READS, None, "Minimum number of partitions, if there are as many records", a_number(1)),
    Option(
        "maxRecordsPerPartition",
        READS,
        None,
        "No partition has more records, as long as 5,000 partitions are enough; it wins over maxPartitionBytes",
        a_number(1),
    ),
    Option(
        "minOffsetsPerTrigger",
        STREAM,
        None,
        "A micro-batch waits until there are so many records, or until maxTriggerDelay is over",
        a_number(1),
    ),
    Option(
        "maxTriggerDelay",
        STREAM,
        "15m",
        "How long records may wait for minOffsetsPerTrigger, counted from the batch before: 500ms, 30s, 15m, 2h",
        a_duration,
    ),
    Option("maxOffsetsPerTrigger", STREAM, None, "Maximum number of records in a micro-batch", a_number(1)),
    Option("maxBytesPerTrigger", STREAM, None, "Maximum number of bytes in a micro-batch, approximately", a_size),
    Option("cursor", STREAM, None, "This durable cursor of each stream moves as batches complete", a_cursor),
    # ledgers
    Option("ledgers", READ, None, "Ledgers instead of streams: `all`, or ids and ranges: `3,5,8-12`", some_ledgers),
    Option("ledger", READ, None, "Another name for `ledgers`", some_ledgers),
    Option("firstEntry", READ, "0", "First entry of each ledger", a_number(0)),
    Option("lastEntry", READ, None, "Last entry of each ledger, included", a_number(0)),
    Option("password", READ, "", "Password of the ledgers", any_text, "empty"),
    # tables
    Option(
        "table",
        READ,
        None,
        "A table about the cluster in place of records: `usage` of namespaces and applications (for "
        "administrators), `ledgers`, or of streams their `segments`, `cursors` or `transactions`; without `subscribe` "
        "or the like of all streams",
        one_of(*CLUSTER_TABLES, *STREAM_TABLES),
    ),
    # writing
    Option("stream", WRITE, None, "The stream to write", a_stream),
    Option("createStream", WRITE, "false", "Makes the stream if it is not there", a_flag),
    Option(
        "byStream",
        WRITE,
        "false",
        "Each row goes to the stream that its column `stream` names, or to the sink's own where that is null; all "
        "streams of a batch are published in one step, at most 100",
        a_flag,
    ),
    Option("txnAppId", WRITE, None, "Name of the writing application, for exactly-once", a_text, "the query's id"),
    Option(
        "txnVersion",
        WRITE,
        None,
        "Batch job: the version of this step; one that was published before is not written again",
        a_number(0),
    ),
    Option(
        "onCheckpointReset",
        WRITE,
        "fail",
        "`newEpoch`: go on where a new checkpoint meets batches that an earlier one has published",
        one_of("fail", "newEpoch"),
    ),
    Option(
        "onReplayDiffers",
        WRITE,
        "fail",
        "`keep`: a batch that is published already stays as it is when it comes "
        "again with other rows: for queries with `uuid()` and the like",
        one_of("fail", "keep"),
    ),
    Option(
        "smallPartBytes",
        WRITE,
        "32k",
        "A task with at most so many bytes of rows makes no ledger: its rows go to "
        "the driver, which writes neighbouring ones as one ledger",
        a_size,
    ),
    Option(
        "segmentBytes",
        WRITE,
        None,
        "A task begins another segment when one has so many bytes",
        a_size,
        "the stream's `roll_bytes`",
    ),
    Option(
        "values",
        READS,
        "auto",
        "`typed`: the column `value` is a struct of the fields of the stream's schema; `bytes`: it is binary. `auto`: "
        "typed if all streams are named and have a schema of the same fields",
        one_of("auto", "typed", "bytes"),
    ),
    Option("sealLive", WRITE, "false", "Fences the stream's live writer in the same step", a_flag),
    Option(
        "besideWriter",
        WRITE,
        "false",
        "Writes into a stream that a writer has: the writer puts the rows between its own records and goes on; not "
        "with rows for several streams in one batch",
        a_flag,
    ),
)

DROPPED: Mapping[str, str] = {
    "pushdown": "PySpark keeps what the filters of a frame's first query left, also for later ones, which lacked rows; "
    "startingOffsets, endingOffsets, startingTimestamp and endingTimestamp say safely what to read",
}
"""Options of earlier versions by their names in small letters, and why they are gone."""

EXACTLY_ONCE = tuple(
    option for option in OPTIONS if option.name in ("txnAppId", "txnVersion", "onCheckpointReset", "onReplayDiffers")
)
"""The options of every sink (`exactly_once.py`)."""
ACCESS = tuple(option for option in OPTIONS if option.name in ("metadata", *SECRET_OPTIONS))
"""The options that say how to enter the cluster, which other formats have as well."""


def values(given: Mapping[str, str], *roles: Role, known: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """Return the values of given options and of those with a default, by their names in the table, for `roles`.

    InvalidArgument: an unknown option (lists the known ones), one that is for another role, a bad value.
    """
    by_name = {option.name.lower(): option for option in known}
    takes = [option for option in known if any(role in option.roles for role in roles)]
    found = {option.name: option.parse(option.name, option.default) for option in takes if option.default is not None}
    for key, text in given.items():
        name = key.lower()
        option = by_name.get(name)
        if option is not None and option in takes:
            found[option.name] = option.parse(option.name, text)
        elif option is not None:
            others = " and ".join(ROLE_NAMES[role] for role in option.roles)
            raise InvalidArgument(f'option "{option.name}" is for {others} only; leave it out here')
        elif name in DROPPED:
            raise InvalidArgument(f"option {key!r} was dropped: {DROPPED[name]}")
        elif name not in SPARKS_OWN and not name.startswith("option."):  # Spark passes a table's options twice.
            raise InvalidArgument(f"unknown option {key!r}; known here: {', '.join(o.name for o in takes)}")
    uri = found.get("metadata") or _uri_of_driver()
    found["metadata"] = cluster_uri(uri, {name: found.pop(name, None) for name in SECRET_OPTIONS})
    return found


def _uri_of_driver() -> str:
    """Return the cluster that `connect()` would find in the driver. It travels to the tasks, which look at nothing of
    their own. InvalidArgument if there is none."""
    try:
        return default_uri(os.environ, Path.cwd())
    except ConfigError:
        raise InvalidArgument(
            'option "metadata" is missing: the URI of the cluster, for example sqlite:///abs/path (of a table of the '
            "catalog Spark tells only those that follow its name: FROM orders WITH (metadata = '...')); without it "
            f"{VARIABLE} of the driver counts, else the cluster that `buckram up` started in {Path.cwd()}"
        ) from None


def given_names(given: Mapping[str, str]) -> set[str]:
    """Return the options that were given, by their names in the table; other names are left out."""
    return {option.name for option in OPTIONS if any(key.lower() == option.name.lower() for key in given)}


def table(options: Sequence[Option] = OPTIONS) -> str:
    """Return the options as a table in Markdown."""
    lines = ["| option | for | default | meaning |", "|---|---|---|---|"]
    marks = {"read": "batch", "stream": "streaming", "write": "write"}
    for option in options:
        roles = "all" if option.roles == ALL else ", ".join(marks[role] for role in option.roles)
        default = option.shown_default or option.default or ""
        lines.append(f"| `{option.name}` | {roles} | {default} | {option.meaning} |")
    return "\n".join(lines) + "\n"
