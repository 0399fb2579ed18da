"""The cookie: text in the data directory and in the metadata store that names the bookie and cluster they belong to.

This module formats, parses and compares cookies.

Not here: writing cookies, and a mismatch at start (`bookie/trust/cookie.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.core.wire import protobuf_text as text_format
from buckram.core.wire.protobuf_text import TextError, quote
from buckram.errors import MalformedRecord, WrongCookie
from buckram.types import BookieId

CURRENT_VERSION = 5
"""The layout version that is written. 5 added indexDirs to 4; 3 is plain lines; older ones are not supported."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """One cookie. Directories are the raw configured values; `layout_version` is the one that was read."""

    bookie_host: BookieId
    journal_dir: str
    ledger_dirs: str
    instance_id: str | None = None
    index_dirs: str | None = None
    layout_version: int = CURRENT_VERSION


def encode_dirs(directories: list[str]) -> str:
    """Encode ledgerDirs or indexDirs: the count and the names, separated by tabs."""
    return "\t".join((str(len(directories)), *directories))


def decode_dirs(encoded: str) -> list[str]:
    """Return the names in ledgerDirs or indexDirs; the count is ignored."""
    return encoded.split("\t")[1:]


def serialise_cookie(cookie: Cookie) -> bytes:
    """Encode a cookie, always in the current version."""
    lines = [
        str(CURRENT_VERSION),
        f"bookieHost: {quote(cookie.bookie_host)}",
        f"journalDir: {quote(cookie.journal_dir)}",
        f"ledgerDirs: {quote(cookie.ledger_dirs)}",
    ]
    if cookie.instance_id:
        lines.append(f"instanceId: {quote(cookie.instance_id)}")
    if cookie.index_dirs:
        lines.append(f"indexDirs: {quote(cookie.index_dirs)}")
    return ("\n".join(lines) + "\n").encode("ascii")


def parse_cookie(record: bytes) -> Cookie:
    """Parse a cookie of versions 3 to 5. Raises MalformedRecord, and nothing else, if that fails."""
    line, _, body = record.partition(b"\n")
    version = line.strip()
    if version not in (b"3", b"4", b"5"):
        raise MalformedRecord(f"cookie has layout version {line[:20]!r}; known are 3, 4 and {CURRENT_VERSION}")
    try:
        if version == b"3":
            lines = text_format.utf8(body).split("\n")
            if len(lines) < 3:
                raise TextError("fewer than four lines")
            return Cookie(lines[0], lines[1], lines[2], layout_version=3)
        message = text_format.parse(body)
        host, journal, ledgers = (message.string(name) for name in ("bookieHost", "journalDir", "ledgerDirs"))
        if host is None or journal is None or ledgers is None:
            raise TextError("bookieHost, journalDir or ledgerDirs is missing")
        instance_id, index_dirs = message.string("instanceId") or None, message.string("indexDirs") or None
        return Cookie(host, journal, ledgers, instance_id, index_dirs, int(version))
    except TextError as error:
        raise MalformedRecord(f"cookie: {error}") from None


def check_cookie(configured: Cookie, stored: Cookie, *, allow_expansion: bool = False) -> None:
    """Raise WrongCookie, which names the first difference, unless `stored` belongs to what is `configured`.

    With `allow_expansion` the configured directories may be more than the stored ones; otherwise their text must be
    the same, order included. The journal directory must always be the same.
    """
    _same("bookie id", configured.bookie_host, stored.bookie_host)
    _same("journal directory", configured.journal_dir, stored.journal_dir)
    _same_dirs("ledger directories", configured.ledger_dirs, stored.ledger_dirs, allow_expansion)
    ours, theirs = configured.index_dirs or configured.ledger_dirs, stored.index_dirs or stored.ledger_dirs
    _same_dirs("index directories", ours, theirs, allow_expansion)
    _same("cluster instance id", configured.instance_id, stored.instance_id)


def same_cookie(configured: Cookie, stored: Cookie) -> bool:
    """Return whether `stored` belongs to what is `configured`."""
    try:
        check_cookie(configured, stored)
    except WrongCookie:
        return False
    return True


def _same_dirs(what: str, configured: str, stored: str, allow_expansion: bool) -> None:
    if allow_expansion:
        ours = decode_dirs(configured)
        if all(directory in ours for directory in decode_dirs(stored)):
            return
    _same(what, configured, stored)


def _same(what: str, configured: str | None, stored: str | None) -> None:
    if configured != stored:
        raise WrongCookie(
            f"{what}: the cookie says {stored!r}, this bookie is configured with {configured!r}: "
            "use the directory and cluster it was made for, or an empty directory under a new --id"
        )
