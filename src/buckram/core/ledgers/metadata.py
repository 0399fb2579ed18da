"""Ledger metadata: what a legal record is, and the only legal transitions between records.

Pure functions from record to record; anything illegal raises InvariantViolation with the invariant's id
(docs/reference/protocol.md). Every function derives the change from the record that it is given, so that a
compare-and-set loop may call it again on a newer record.
Not here: bytes (`core/ledgers/metadata_codec.py`); the compare-and-set loop (`client/shared/ledger_metadata.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import InvalidArgument, check, invariant_failed
from buckram.types import (
    BIRTH_SIZE,
    NO_BIRTH,
    NO_ENTRY,
    BookieId,
    DigestType,
    EntryId,
    Fragment,
    LedgerMetadata,
    LedgerState,
)

FORMAT_VERSIONS = (1, 2, 3)
BIRTH = "buckram.birth"
"""Key in custom metadata that tells ledgers of the same id apart: 16 random bytes, drawn at creation."""
_CTIME = b"ctime"
_MAX_ID = 2**63 - 1
_MAX_INT32 = 2**31 - 1


def birth_of(md: LedgerMetadata) -> bytes:
    """Return the ledger's birth, 16 bytes that are only compared for equality; b"" if the record has none.

    Ledgers of Apache's clients have the time of their creation in place of a birth.
    """
    birth = md.custom_metadata.get(BIRTH)
    if birth is not None and len(birth) == BIRTH_SIZE and birth != NO_BIRTH:
        return bytes(birth)
    if md.creation_time_ms is None:
        return b""
    return (_CTIME + (md.creation_time_ms & _MAX_ID).to_bytes(8, "big")).ljust(BIRTH_SIZE, b"\0")


def creation_time_of(birth: bytes) -> int | None:
    """Return the time of creation in ms that stands for a birth; None for a random or unknown birth."""
    if len(birth) != BIRTH_SIZE or not birth.startswith(_CTIME):
        return None
    return int.from_bytes(birth[len(_CTIME) : len(_CTIME) + 8], "big")


def names_mac(metadata: LedgerMetadata) -> bool:
    """Return whether entries are sealed with a MAC whose key is in the record and unknown to bookies.

    A digest that does not match is then not the reader's mistake.
    """
    return metadata.digest_type is DigestType.MAC and metadata.password is not None


def is_certain(birth: bytes) -> bool:
    """Return whether a birth is random, and therefore unique. Two ledgers may have the same time of creation
    instead.
    """
    return len(birth) == BIRTH_SIZE and birth != NO_BIRTH and not birth.startswith(_CTIME)


def quorum_problem(ensemble_size: int, write_quorum: int, ack_quorum: int) -> str | None:
    """Return what is wrong with E, Qw, Qa; None if E >= Qw >= Qa >= 1."""
    if _MAX_INT32 >= ensemble_size >= write_quorum >= ack_quorum >= 1:
        return None
    return (
        f"ensemble size {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}: "
        "needs ensemble size >= write quorum >= ack quorum >= 1"
    )


def metadata_problem(md: LedgerMetadata) -> str | None:
    """Return in words what makes this record illegal; None if it is legal.

    A CLOSED ledger may end before its last fragment: an ensemble change that no entry followed leaves that.
    """
    problem = quorum_problem(md.ensemble_size, md.write_quorum, md.ack_quorum) or _fragments_problem(md)
    if problem:
        return problem
    if md.format_version not in FORMAT_VERSIONS:
        return f"format version {md.format_version} is not one of 1, 2, 3"
    if not md.closed:
        if md.last_entry is not None or md.length is not None:
            return f"a ledger that is {md.state.name} has no last entry and no length yet"
        return None
    if md.last_entry is None or md.length is None:
        return "a CLOSED ledger needs a last entry and a length"
    if not NO_ENTRY <= md.last_entry <= _MAX_ID:
        return f"last entry {md.last_entry} is not between -1 and 2^63-1"
    if not 0 <= md.length <= _MAX_ID:
        return f"length {md.length} is not between 0 and 2^63-1"
    return None


def _fragments_problem(md: LedgerMetadata) -> str | None:
    if not md.fragments:
        return "a ledger needs at least one fragment"
    if md.fragments[0].first_entry != 0:
        return f"the first fragment begins at entry {md.fragments[0].first_entry}, not 0"
    previous = -1
    for fragment in md.fragments:
        if not previous < fragment.first_entry <= _MAX_ID:
            return f"fragment {fragment.first_entry} follows {previous}: first entries must rise"
        previous = fragment.first_entry
        if len(fragment.ensemble) != md.ensemble_size:
            return f"fragment {previous} has {len(fragment.ensemble)} members, the ensemble size is {md.ensemble_size}"
        if len(dict.fromkeys(fragment.ensemble)) != md.ensemble_size:
            return f"fragment {previous} names a bookie twice: {', '.join(fragment.ensemble)}"
        for member in fragment.ensemble:
            if not valid_bookie_id(member):
                return f"fragment {previous}: {member!r} is not a bookie id"
    return None


def check_metadata(md: LedgerMetadata) -> LedgerMetadata:
    """Return the record. Raises InvariantViolation (S10) if it is illegal."""
    problem = metadata_problem(md)
    if problem:
        invariant_failed("S10", problem)
    return md


def fragment_index(md: LedgerMetadata, entry: EntryId) -> int:
    """Return the index of the fragment that holds `entry`, or will hold it once it is written."""
    if entry < 0:
        raise InvalidArgument(f"entry {entry}: entry ids begin at 0")
    return bisect_right(md.fragments, entry, key=lambda fragment: fragment.first_entry) - 1


def fragment_of(md: LedgerMetadata, entry: EntryId) -> Fragment:
    return md.fragments[fragment_index(md, entry)]


def fragment_end(md: LedgerMetadata, index: int) -> EntryId | None:
    """Return the last entry that fragment `index` can hold; None while it can still grow.

    In a closed ledger a last fragment without entries ends before it begins.
    """
    if index + 1 < len(md.fragments):
        end = md.fragments[index + 1].first_entry - 1
        return end if md.last_entry is None else min(end, md.last_entry)
    return md.last_entry


def created(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    ensemble: Sequence[BookieId],
    *,
    digest_type: DigestType = DigestType.CRC32C,
    password: bytes = b"",
    custom_metadata: Mapping[str, bytes] | None = None,
    creation_time_ms: int | None = None,
    creator_token: int = 0,
    format_version: int = 3,
    birth: bytes = b"",
) -> LedgerMetadata:
    """Return a new ledger's record. Raises InvalidArgument for sizes, a token or a birth outside their limits."""
    problem = quorum_problem(ensemble_size, write_quorum, ack_quorum)
    if problem:
        raise InvalidArgument(problem)
    if not 0 <= creator_token < 2**63:
        raise InvalidArgument(f"creator token {creator_token} is not between 0 and 2^63-1")
    custom = dict(custom_metadata or {})
    if BIRTH in custom:
        raise InvalidArgument(f"custom metadata {BIRTH!r} is drawn when the ledger is made: leave it out")
    if birth:
        if len(birth) != BIRTH_SIZE:
            raise InvalidArgument(f"a ledger's birth has {BIRTH_SIZE} bytes, not {len(birth)}")
        custom[BIRTH] = birth
    if format_version not in (2, 3):
        raise InvalidArgument(f"new ledgers are written in format version 2 or 3, not {format_version}")
    return check_metadata(
        LedgerMetadata(
            ensemble_size,
            write_quorum,
            ack_quorum,
            (Fragment(0, tuple(ensemble)),),
            digest_type=digest_type,
            password=password,
            custom_metadata=_frozen(custom),
            creation_time_ms=creation_time_ms,
            creator_token=creator_token if format_version == 3 else 0,
            format_version=format_version,
        )
    )


def ensemble_changed(md: LedgerMetadata, first_entry: EntryId, ensemble: Sequence[BookieId]) -> LedgerMetadata:
    """OPEN -> OPEN, by the writer only: from `first_entry` (its LAC + 1) on, `ensemble` stores the ledger.

    Equal to the last fragment's first entry it replaces that fragment, greater it begins a new one.
    """
    check(md.state is LedgerState.OPEN, "S4", f"an ensemble change needs an OPEN ledger, this one is {md.state.name}")
    return _updated(md, fragments=_with_fragment(md.fragments, Fragment(first_entry, tuple(ensemble))))


def in_recovery(md: LedgerMetadata) -> LedgerMetadata:
    """OPEN -> IN_RECOVERY, by any recoverer. One that is IN_RECOVERY already needs no write."""
    check(md.state is LedgerState.OPEN, "S2", f"recovery begins on an OPEN ledger, this one is {md.state.name}")
    return _updated(md, state=LedgerState.IN_RECOVERY)


def closed(md: LedgerMetadata, last_entry: EntryId, length: int) -> LedgerMetadata:
    """OPEN or IN_RECOVERY -> CLOSED, by the writer: it knows what it acknowledged."""
    _check_end(md, last_entry, length)
    return _updated(md, state=LedgerState.CLOSED, last_entry=last_entry, length=length)


def recovered(
    md: LedgerMetadata, private_fragments: Sequence[Fragment], last_entry: EntryId, length: int
) -> LedgerMetadata:
    """Close a ledger IN_RECOVERY, by its recoverer, with the ensembles it changed to on the way (F8), in ascending
    order.
    """
    check(
        md.state is LedgerState.IN_RECOVERY, "S2", f"recovery closes a ledger IN_RECOVERY, this one is {md.state.name}"
    )
    _check_end(md, last_entry, length)
    fragments = md.fragments
    for fragment in private_fragments:
        check(
            fragment.first_entry <= last_entry + 1,
            "S10",
            f"private fragment {fragment.first_entry} begins after last entry {last_entry}",
        )
        fragments = _with_fragment(fragments, fragment)
    return _updated(md, fragments=fragments, state=LedgerState.CLOSED, last_entry=last_entry, length=length)


def member_replaced(md: LedgerMetadata, first_entry: EntryId, old: BookieId, new: BookieId) -> LedgerMetadata:
    """Any state: `new` takes the position of `old` in the fragment that begins at `first_entry`.

    For repair, after `new` holds every entry of the fragment. The last fragment of a ledger that is not CLOSED
    can still grow and is refused (M7).
    """
    index = fragment_index(md, first_entry)
    fragment = md.fragments[index]
    check(fragment.first_entry == first_entry, "M7", f"no fragment begins at entry {first_entry}")
    check(old in fragment.ensemble, "M7", f"bookie {old} is not in fragment {first_entry}")
    grows = not md.closed and fragment is md.last_fragment
    check(not grows, "M7", f"fragment {first_entry} can still grow: recover the ledger first")
    ensemble = tuple(new if member == old else member for member in fragment.ensemble)
    fragments = (*md.fragments[:index], Fragment(first_entry, ensemble), *md.fragments[index + 1 :])
    return _updated(md, fragments=fragments)


def _with_fragment(fragments: tuple[Fragment, ...], new: Fragment) -> tuple[Fragment, ...]:
    last = fragments[-1].first_entry
    check(new.first_entry >= last, "S10", f"fragment {new.first_entry} would begin before the last one, {last}")
    return (*fragments[:-1], new) if new.first_entry == last else (*fragments, new)


def _check_end(md: LedgerMetadata, last_entry: EntryId, length: int) -> None:
    check(not md.closed, "S2", f"the ledger is CLOSED at entry {md.last_entry}, length {md.length}, for ever")
    before = md.last_fragment.first_entry - 1
    # A fragment begins after the LAC of its time, so everything before it is confirmed and must stay.
    check(last_entry >= before, "S1", f"last entry {last_entry} would cut off confirmed entries up to {before}")
    check(last_entry >= 0 or length == 0, "S13", f"a ledger without entries has length 0, not {length}")


def _updated(md: LedgerMetadata, **changes: object) -> LedgerMetadata:
    # Peers drop the creator token on every update, so it says something right after the creation only.
    return check_metadata(replace(md, creator_token=0, **changes))  # type: ignore[arg-type]  # replace is not generic


def _frozen(custom_metadata: Mapping[str, bytes]) -> Mapping[str, bytes]:
    for key, value in custom_metadata.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidArgument(f"custom metadata {key!r}: {value!r}: keys are str, values are bytes")
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"custom metadata key {key!r} is not valid Unicode") from None
    return MappingProxyType(dict(custom_metadata))
