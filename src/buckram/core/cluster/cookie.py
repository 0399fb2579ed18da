"""The cookie: text in the data directory and in the metadata store that names the bookie and cluster they belong to,
and which directory of a bookie id is its member.

A directory is born with an incarnation; the newest one that the store knows is the only member. The witness key of an
id keeps the incarnation that has it, and a generation, which grows by one with each take-over of the id. A bookie that
reads a later claim than its own was replaced; one that knows of a later claim than the store does knows that the store
went back. This module formats, parses and compares.

Not here: writing cookies, the first claim of an empty directory, and a mismatch at start (`bookie/trust/cookie.py`);
reading the key (`bookie/trust/witness.py`); what shows that a store went back (`core/cluster/store_history.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime

from buckram.core.cluster.store_history import Judgement, WitnessStatement
from buckram.core.wire import protobuf_text as text_format
from buckram.core.wire.protobuf_text import TextError, quote
from buckram.errors import MalformedRecord, WrongCookie
from buckram.types import BookieId


class Standing(enum.Enum):
    """Status of a bookie in its cluster."""

    MEMBER = "member"
    """The bookie has the id; it may still suspect that the store went back."""
    RETURNING = "returning"
    """The metadata were restored and that is not accepted yet, and they lack its cookie: it writes the cookie again."""
    REPLACED = "replaced"
    """A later incarnation has the id."""
    REMOVED = "removed"
    """Its cookie was removed: it was decommissioned or forgotten."""


@dataclass(frozen=True, slots=True)
class IncarnationVerdict:
    """`suspicion`: how the store shows that it went back; "" if it does not."""

    standing: Standing
    suspicion: str = ""

    @property
    def out(self) -> bool:
        """Return whether the bookie has permanently ceased to be a member."""
        return self.standing in (Standing.REPLACED, Standing.REMOVED)


def decide(
    mine: str,
    known: WitnessStatement | None,
    found: WitnessStatement | None,
    past: Judgement,
    *,
    has_cookie: bool,
    restored: bool,
) -> IncarnationVerdict:
    """Decide what the incarnation `mine` is.

    `known`: what the store confirmed to it last; `found`: what the witness key of its id says; `past`: whether the
    store went back; `has_cookie`: whether the store has a cookie of this bookie; `restored`: a restore of the metadata
    waits to be accepted.
    """
    if found is not None and found.incarnation != mine:
        theirs, ours = _rank(found), _rank(known)
        unnumbered = not found.generation and not past.why and not past.adopt  # a bookie of an earlier release wrote it
        if theirs > ours or unnumbered or (theirs == ours and not past.why):
            return IncarnationVerdict(Standing.REPLACED)
        if not past.why and not past.adopt:
            past = Judgement(
                f"its witness key names incarnation {found.incarnation} (generation {found.generation}), whose id this "
                f"one took over as generation {ours[1]}"
            )
    if has_cookie:
        return IncarnationVerdict(Standing.MEMBER, past.why)
    if restored:
        return IncarnationVerdict(Standing.RETURNING, past.why)
    return IncarnationVerdict(Standing.MEMBER, past.why) if past.why else IncarnationVerdict(Standing.REMOVED)


def _rank(statement: WitnessStatement | None) -> tuple[int, int]:
    """Return the order of a claim: an accepted epoch outranks a generation of an earlier epoch."""
    return (0, 0) if statement is None else (statement.epoch, statement.generation)


def next_generation(mine: str, known: WitnessStatement | None, found: WitnessStatement | None) -> int:
    """Return the generation with which the incarnation `mine` writes the key. In keys of earlier releases it is 0."""
    own = 0 if known is None else known.generation
    if found is None:
        return max(own, 1)
    if found.incarnation == mine:
        return max(own, found.generation, 1)
    return max(own, found.generation) + 1


def why_replaced(bookie: BookieId, mine: str, found: WitnessStatement) -> str:
    """Say in words that a later incarnation has the id, and how the machine comes back."""
    since = f" at {datetime.fromtimestamp(found.since, UTC):%Y-%m-%d %H:%M:%S} UTC" if found.since else ""
    return (
        f"bookie {bookie} was replaced: this directory is its incarnation {mine}, and incarnation {found.incarnation} "
        f"(generation {found.generation}) took the id over{since}. No request is served from here, because this "
        f"directory lacks all entries that were written since. {_COME_BACK}"
    )


def why_removed(bookie: BookieId, mine: str) -> str:
    """Say in words that the cookie was removed while the bookie ran, and how the machine comes back."""
    return (
        f"bookie {bookie} was taken out of the cluster (`buckram bookie decommission`, `forget`, `replace` or "
        f"`rejoin`) while its process hung or ran: the cluster has no cookie of it, incarnation {mine} serves nothing "
        "any more. If the cookie is missing because metadata was restored from a backup older than this "
        "bookie: `buckram cluster "
        f"restore` that backup again, start all bookies, and only then `buckram cluster accept-restore`. {_COME_BACK}"
    )


_COME_BACK = (
    "No ledger named the id when it was given away, so the files here are needed only if `buckram ledger check` finds "
    "one that lacks entries: keep them until then. Start this machine again with an empty directory: `buckram bookie "
    "run --data EMPTY-DIRECTORY --id NEW-ID`; for the same id, once no bookie runs under it, `buckram bookie rejoin` "
    "it first"
)


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
