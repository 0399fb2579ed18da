"""History of a stream, the pure part: which sealed segments may be offloaded, their manifests and rows, and the places.

An offloaded segment is a few Parquet files, its *parts*, and a manifest that has the digest of each. The row in the
segment list has the manifest's digest, so every byte can be proved from the list. Entries keep their ids: a part has
their headers as they were, beside the columns of the records.

Servers follow a stream's policy to a place only where the operator lists it for the stream's namespace. A stream's
files are in NAMESPACE/STREAM/UID below one of these locations and nowhere else, whatever its policy, its segment list
or its intents say.

Not here: the bytes of a part (`streams/shared/history_parts`), the order of steps (`streams/maintain/offload`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from buckram.core.streams.metadata.changes import is_dead
from buckram.core.streams.metadata.head import HISTORY, LEDGER, Head, Offloaded, Segment, Summary
from buckram.core.streams.names import StreamId, StreamName, check_name
from buckram.core.streams.records.record_format import HEADER_SIZE, EntryHeader, parse_header
from buckram.errors import ConfigError, InvalidArgument, MalformedBatch, MalformedRecord
from buckram.types import Buffer, EntryId, LedgerId

FORMAT = 1

PART_BYTES = 32 * 1024 * 1024
"""Bytes of entries at which a part is closed: a reader holds one part in memory."""

PART_ENTRIES = 65_536

UNFINISHED = ".unfinished"
"""Suffix of a local file's name while it is written; such a name begins with a dot."""

_US = 1_000_000

_COMPRESSION_AT = 4
"""Offset of the compression in an entry's header."""


class Part(NamedTuple):
    """One file of an offloaded segment: `entries` entries from `first_entry` on."""

    file: str
    bytes: int
    sha256: str
    first_entry: EntryId
    entries: int
    records: int
    last_header: str
    """The header of its last entry, hexadecimal: it tells how far the part goes in offsets, times and txids."""

    @property
    def last_entry(self) -> EntryId:
        return self.first_entry + self.entries - 1

    @property
    def end(self) -> EntryHeader:
        return parse_header(_header_alone(bytes.fromhex(self.last_header)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of an offloaded segment: the stream and ledger that it was made of, and its parts in order."""

    stream: str
    uid: str
    copy: LedgerId
    """The id that names the files and stands in the row for the ledger's."""
    ledger: LedgerId
    birth: str
    """Birth of the ledger that was offloaded, hexadecimal."""
    base: int
    summary: Summary
    parts: tuple[Part, ...]


def encode_manifest(manifest: Manifest) -> bytes:
    return json.dumps(
        {
            "format": FORMAT,
            "stream": manifest.stream,
            "uid": manifest.uid,
            "copy": manifest.copy,
            "ledger": manifest.ledger,
            "birth": manifest.birth,
            "base": manifest.base,
            "end": manifest.base + manifest.summary.records,
            "summary": manifest.summary._asdict(),
            "parts": [part._asdict() for part in manifest.parts],
        },
        indent=1,
        ensure_ascii=False,
    ).encode()


def decode_manifest(file: str, data: bytes) -> Manifest:
    """Return the manifest. MalformedRecord names the file."""
    try:
        raw: Any = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{file}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        parts = tuple(_part(row) for row in raw["parts"])
        summary = Summary(**raw["summary"])
        if any(type(number) is not int for number in (*summary, raw["copy"], raw["ledger"], raw["base"])):
            raise ValueError("a number is none")
        found = Manifest(
            str(raw["stream"]),
            str(raw["uid"]),
            raw["copy"],
            raw["ledger"],
            str(raw["birth"]),
            raw["base"],
            summary,
            parts,
        )
    except (ValueError, KeyError, TypeError, RecursionError, MalformedBatch) as error:
        raise MalformedRecord(f"{file}: not the manifest of an offloaded segment ({error!r})") from None
    if why := _unsound(found):
        raise MalformedRecord(f"{file}: {why}")
    return found


def _part(row: dict[str, Any]) -> Part:
    part = Part(**row)
    numbers = (part.bytes, part.first_entry, part.entries, part.records)
    if any(type(number) is not int or number < 0 for number in numbers) or "/" in part.file or part.entries < 1:
        raise ValueError(f"a part {row!r}")
    return part


def _unsound(manifest: Manifest) -> str:
    """Say what keeps the parts from being the whole segment, or nothing."""
    due = records = 0
    for part in manifest.parts:
        if part.first_entry != due:
            return f"part {part.file} begins with entry {part.first_entry}, {due} is due"
        due, records = due + part.entries, records + part.records
        if part.end.first + part.end.records != records:
            return f"part {part.file} ends at record {part.end.first + part.end.records}, {records} are in the parts"
    summary = manifest.summary
    if due != summary.last_entry + 1 or records != summary.records:
        return f"its parts have {due} entries and {records} records, the segment has {summary}"
    return ""


def digest_of(data: Buffer) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    return hashlib.sha256(data).hexdigest()


# -- names of files ---------------------------------------------------------------------------------------


def directory_of(location: str, name: StreamName, uid: str) -> str:
    """Return the directory of a stream's history below the location that a policy names.

    The stream's uid is part of it, so that a stream that was deleted and made anew never meets files of the old one.
    """
    return f"{location.rstrip('/')}/{name.namespace}/{name.stream}/{uid}"


def stream_of_directory(directory: str) -> str:
    """Return the full name of the stream whose history is in a directory; "" for a directory of none."""
    _, namespace, stream, uid = ("", "", "", *directory.rsplit("/", 3))[-4:]
    return f"{namespace}/{stream}" if namespace and stream and uid else ""


def is_directory_of(directory: str, stream: StreamId) -> bool:
    """Return whether a directory is that of this stream's history, whatever its location is."""
    own = f"/{stream.uid}" if stream.name is None else directory_of("", stream.name, stream.uid)
    return directory.endswith(own)


def manifest_file(base: int, copy: LedgerId) -> str:
    """Return a manifest's name. It begins with `_`, so that engines that read the directory as a table skip it."""
    return f"_{base:020d}-{copy:019d}.json"


def part_file(base: int, copy: LedgerId, number: int) -> str:
    """Return the name of a part: names are in the order of offsets."""
    return f"{base:020d}-{copy:019d}-{number:06d}.parquet"


def copy_of(file: str) -> LedgerId | None:
    """Return the id that the name of a file of history has; None for any other file."""
    file = file.removeprefix(".").removesuffix(UNFINISHED)
    fields = file.removeprefix("_").split(".")[0].split("-")
    if not file.endswith((".json", ".parquet")) or len(fields) not in (2, 3) or not fields[1].isdecimal():
        return None
    return int(fields[1])


def check_location(location: str, what: str = "offload_to") -> str:
    """Return the location without a slash at its end. InvalidArgument for one that means another place elsewhere.

    `what` is the name of the setting or option that has it.
    """
    if not isinstance(location, str) or not location or not location.isprintable():
        raise InvalidArgument(f"{what} {location!r}: needs an absolute path or a URL such as s3://bucket/history")
    scheme, found, rest = location.partition("://")
    if not (found and scheme and rest.strip("/")) and not (not found and location.startswith("/")):
        raise InvalidArgument(
            f"{what} {location!r}: needs an absolute path, the same on every machine that reads the stream, or a "
            "URL such as s3://bucket/history"
        )
    if found and "@" in rest.split("/")[0] and scheme not in ("file", "local"):
        raise InvalidArgument(
            f"{what} {scheme}://...: has a name or a password in it, which all who may read the stream's metadata "
            "would see; set it in the configuration of fsspec instead"
        )
    return location.rstrip("/")


# -- which segments ---------------------------------------------------------------------------------------


def may_offload(head: Head, row: Segment) -> bool:
    """Return whether the segment may be offloaded: it is sealed, on bookies, needed, and has no producers' table."""
    return row.sealed and row.kind == LEDGER and row.number != head.producers and not is_dead(head, row)


def due_segments(
    head: Head, rows: Iterable[Segment], *, now: int | None, after_s: float | None, keep_bytes: int | None
) -> list[Segment]:
    """Return the segments that a policy wants offloaded now, the oldest first.

    `after_s`: those whose last record is older; none while the time is in doubt (`now` None). `keep_bytes`: those that
    are not needed to keep so many bytes of the newest segments on bookies. Either reason is enough.
    """
    sealed = [row for row in rows if row.sealed]
    newer, large = 0, set[int]()
    for row in reversed(sealed):
        if keep_bytes is not None and newer >= keep_bytes:
            large.add(row.number)
        newer += row.summary.bytes if row.summary is not None else 0
    return [row for row in sealed if may_offload(head, row) and (row.number in large or _old(row, now, after_s))]


def _old(row: Segment, now: int | None, after_s: float | None) -> bool:
    if now is None or after_s is None or row.summary is None:
        return False
    return row.summary.last_append <= now - round(after_s * _US)


def offloaded_row(row: Segment, copy: LedgerId, offloaded: Offloaded) -> Segment:
    """Return the row that takes the place of `row`; all facts about the records stay."""
    return replace(row, ledger=copy, kind=HISTORY, offloaded=offloaded)


# -- headers of entries, as a part has them ---------------------------------------------------------------


def plain_header(payload: Buffer) -> bytes:
    """Return the header of an entry as of its uncompressed form."""
    header = bytearray(memoryview(payload)[:HEADER_SIZE])
    header[_COMPRESSION_AT] = 0
    return bytes(header)


def split_headers(data: bytes, count: int) -> Iterator[bytes]:
    """Yield the headers of `count` entries. Raises MalformedBatch if there are fewer."""
    if len(data) < count * HEADER_SIZE:
        raise MalformedBatch(f"{len(data)} bytes of headers, {count} entries need {count * HEADER_SIZE}")
    for at in range(0, count * HEADER_SIZE, HEADER_SIZE):
        yield data[at : at + HEADER_SIZE]


def _header_alone(header: bytes) -> bytes:
    if len(header) != HEADER_SIZE:
        raise MalformedBatch(f"a header of {len(header)} bytes, it has {HEADER_SIZE}")
    return header


def place_of(row: Segment) -> Offloaded:
    """Return where an offloaded segment is. InvalidArgument for one on bookies."""
    if row.offloaded is None:
        raise InvalidArgument(f"segment {row.number} from offset {row.base} on is on bookies, not in history")
    return row.offloaded


def whole(parts: Sequence[Part]) -> int:
    """Return the bytes of all parts' files."""
    return sum(part.bytes for part in parts)


# -- places that the operator lists ---------------------------------------------------------------------------

SETTING = "[janitor] offload_places"

EVERY = "*"
"""Stands for every namespace."""


@dataclass(frozen=True, slots=True)
class OffloadPlaces:
    """Locations by namespace; those under EVERY hold for all namespaces."""

    listed: Mapping[str, tuple[str, ...]]

    def of(self, namespace: str) -> tuple[str, ...]:
        """Return the locations that streams of a namespace may use."""
        return (*self.listed.get(namespace, ()), *self.listed.get(EVERY, ()))

    def check_policy(self, namespace: str, location: str) -> None:
        """Raise InvalidArgument for an offload_to that the operator has not listed for the namespace."""
        if location not in self.of(namespace):
            known = ", ".join(self.of(namespace)) or "none"
            raise InvalidArgument(
                f"its policy has offload_to = {location!r}, which is no place for namespace {namespace} (they are: "
                f"{known}): an operator adds {namespace}={location} to {SETTING}, or the policy names another place"
            )

    def why_not(self, directory: str, namespace: str, uid: str) -> str:
        """Return why this directory may not hold files of the stream with this uid; "" if it may. An empty namespace
        means that the stream is gone and its namespace unknown: every listed location is accepted then.
        """
        roots = [f"{root}/{namespace}" for root in self.of(namespace)] if namespace else self._all()
        for root in roots:
            below = directory.removeprefix(f"{root}/").split("/") if directory.startswith(f"{root}/") else []
            if below and below[-1] == uid and not {"", ".", ".."} & set(below) and "::" not in directory[len(root) :]:
                return ""
        return f"{directory} is no directory for the history of this stream: {SETTING} lists where it may be"

    def why_not_read(self, directory: str) -> str:
        """Return why files in a directory may not be read; "" if they may. The reader has already compared the
        directory's last names with those of the stream.
        """
        root, *names = directory.rsplit("/", 3)
        if len(names) == 3 and root in self.of(names[0]):
            return ""
        return f"{directory} is at no place for history: {SETTING} of this server lists where it may be"

    def _all(self) -> list[str]:
        return [root for roots in self.listed.values() for root in roots]


def parse_offload_places(text: str) -> OffloadPlaces:
    """Parse NAMESPACE=LOCATION pairs between spaces; `*` stands for every namespace. Raises ConfigError."""
    found: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        namespace, equals, location = word.partition("=")
        try:
            if not equals:
                raise InvalidArgument(f"{word!r}: needs NAMESPACE=LOCATION, or *=LOCATION for every namespace")
            if namespace != EVERY:
                check_name("namespace", namespace)
            found[namespace] = (*found.get(namespace, ()), check_location(location, namespace))
        except InvalidArgument as error:
            raise ConfigError(f"{SETTING}: {error}") from None
    return OffloadPlaces(found)
