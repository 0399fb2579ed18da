"""Names of namespaces, streams, cursors and producers, and the owner mark of a stream's ledgers. Pure grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from buckram.errors import InvalidArgument

DEFAULT_NAMESPACE = "default"
OBJECTS_LOG = "buckram.objects"
"""The log of the machine that is the index of a namespace's objects."""
MAX_NAME_BYTES = 200
MAX_PRODUCER_BYTES = 128
OWNER, OWNER_UID, OWNER_PURPOSE = "buckram.stream", "buckram.stream.uid", "buckram.stream.purpose"
"""Keys of a stream's ledger in its custom metadata, written before the first entry."""


class StreamName(NamedTuple):
    """A stream by its full name, NAMESPACE/STREAM."""

    namespace: str
    stream: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.stream}"


class StreamId(NamedTuple):
    """Identity of a stream by its name and uid: one that was deleted and made anew under the same name differs in
    uid.
    """

    name: StreamName | None
    """Name of the stream; None where only the uid is known, as for the remains of a deleted stream."""
    uid: str


def stream_name(name: str, namespace: str | None = None) -> StreamName:
    """Parse NAMESPACE/STREAM, or a bare name in `namespace` (None: default). Raises InvalidArgument with the fault."""
    if isinstance(name, str) and "/" in name:
        space, _, bare = name.partition("/")
        if namespace is not None and space != namespace:
            raise InvalidArgument(f"stream {name!r}: this is namespace {namespace!r}; give the bare name")
    else:
        space, bare = namespace if namespace is not None else DEFAULT_NAMESPACE, name
    return StreamName(check_name("namespace", space), check_name("stream", bare))


def check_name(what: str, name: str) -> str:
    """Return `name` if it is valid: 1 to 200 bytes, printable, no separator, no blank at its ends, no leading dot."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a {what} must be a str, not {type(name).__name__}")
    if not name:
        raise InvalidArgument(f"the name of a {what} must not be empty")
    trouble = ""
    if "/" in name:
        trouble = "holds a separator (/), which only stands between namespace and stream"
    elif not (name.isascii() and name.isprintable()) and (bad := next(filter(_why_not, name), "")):
        trouble = f"holds U+{ord(bad):04X}{_named(bad)}, {_why_not(bad)}"
    elif name != name.strip():
        trouble = "begins or ends with a blank"
    elif name.startswith("."):
        trouble = "begins with a dot"
    elif len(name.encode()) > MAX_NAME_BYTES:
        trouble = f"has {len(name.encode())} bytes, the limit is {MAX_NAME_BYTES}"
    if trouble:
        shown = name if len(name) <= 60 else name[:60] + "..."
        raise InvalidArgument(f"{what} name {shown!r} {trouble}; choose another")
    return name


def _why_not(character: str) -> str:
    """Return why no name may have this character; empty if it may.

    ZooKeeper looks at the halves of a pair of UTF-16, and refuses both, so it takes no character beyond U+FFFF. The
    other stores would, but a cluster's metadata may move from one store to another.
    """
    if character > "\uffff":
        return "and ZooKeeper, where a cluster's metadata may be, takes no character beyond U+FFFF (emoji, for example)"
    if "\ud800" <= character <= "\udfff":
        return "one half of a character, which is no text by itself"
    if "\ue000" <= character <= "\uf8ff" or character >= "\ufff0":
        return "which ZooKeeper, where a cluster's metadata may be, does not take"
    return "" if character.isprintable() else "a control or unprintable character"


def _named(character: str) -> str:
    import unicodedata

    name = unicodedata.name(character, "")
    return f" ({name})" if name else ""


def check_producer(producer: str) -> str:
    if not isinstance(producer, str) or not 0 < utf8_size(producer) <= MAX_PRODUCER_BYTES:
        raise InvalidArgument(
            f"producer {_shown(producer)}: an id is a str of 1 to {MAX_PRODUCER_BYTES} bytes that no other producer has"
        )
    return producer


def check_writer_name(name: str) -> str:
    """Return a writer's name, which is shown to others, if it has at most 200 bytes; it may be empty."""
    if not isinstance(name, str) or not 0 <= utf8_size(name) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"the name of a writer is a str of at most {MAX_NAME_BYTES} bytes, not {_shown(name)}")
    return name


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8, bytes; -1 if it contains surrogates, which have none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def owner_mark(name: StreamName, uid: str, purpose: str) -> dict[str, bytes]:
    """Return the custom metadata that names a ledger's owner. `purpose`: "segment" or "bulk APPLICATION VERSION"."""
    return {OWNER: str(name).encode(), OWNER_UID: uid.encode(), OWNER_PURPOSE: purpose.encode()}


def owner_of(custom_metadata: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Return (full stream name, uid) of the stream that a ledger was made for; None for a ledger of its own."""
    uid = custom_metadata.get(OWNER_UID)
    if uid is None:
        return None
    return custom_metadata.get(OWNER, b"?").decode(errors="replace"), uid.decode(errors="replace")


def is_made_for(custom_metadata: Mapping[str, bytes], stream: StreamId) -> bool:
    """Return whether a ledger was made for this stream, as its owner mark says."""
    owner = owner_of(custom_metadata)
    if owner is None or owner[1] != stream.uid:
        return False
    return stream.name is None or owner[0] == str(stream.name)
