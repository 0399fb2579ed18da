"""Records of the underreplication tree, in Apache's formats: marks, locks, votes, switches and dates.

Pure: paths and bytes (docs/reference/metadata.md, "Underreplicated ledgers"). Not here: reading and writing them
(`metadata/records/underreplication`), and the reasons why ledgers wait, which are in keys of our own
(`core/healing/status`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.core.wire.protobuf_text import TextError, parse, quote
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId

FOLDER = "underreplication"
LAYOUT = b'type: "BASIC"\nversion: 1\n'
VOTE_PREFIX = "V_"
_LEAF = "urL"
EVERY_MEMBER = ""
"""Entry of a mark, beside names of bookies, that asks for a check of every copy, too. No bookie has this name."""


@dataclass(frozen=True, slots=True)
class UnderreplicationMark:
    """A ledger that lacks copies. `replicas`: the bookies that were missing when it was marked, perhaps none."""

    ledger: LedgerId
    replicas: tuple[BookieId, ...]
    ctime_ms: int = -1
    """Time of the mark by the marker's clock, milliseconds since 1970; -1: not recorded."""
    version: int = 0
    """Version of the record that was read. A later mark has another one, so that it is not removed by mistake."""


@dataclass(frozen=True, slots=True)
class TreePaths:
    """Keys of the underreplication tree below a cluster's root."""

    root: str

    @property
    def base(self) -> str:
        return f"{self.root}/{FOLDER}"

    @property
    def layout(self) -> str:
        return f"{self.base}/LAYOUT"

    @property
    def marks(self) -> str:
        return f"{self.base}/ledgers"

    @property
    def locks(self) -> str:
        return f"{self.base}/locks"

    @property
    def election(self) -> str:
        return f"{self.base}/auditorelection"

    @property
    def disabled(self) -> str:
        return f"{self.base}/disable"

    @property
    def delay(self) -> str:
        return f"{self.base}/lostBookieRecoveryDelay"

    def last_run(self, check: str) -> str:
        """Return the key with the date of a check: "checkallledgers", "placementpolicycheck" or "replicascheck"."""
        return f"{self.base}/{check}ctime"

    def mark(self, ledger: LedgerId) -> str:
        return "/".join([self.marks, *levels_of(ledger), leaf_of(ledger)])

    def lock(self, ledger: LedgerId) -> str:
        return f"{self.locks}/{leaf_of(ledger)}"


def levels_of(ledger: LedgerId) -> list[str]:
    """Return the four folders above a mark: sixteen bits of the id each, in hexadecimal digits."""
    if not 0 <= ledger <= MAX_LEDGER_ID:
        raise InvalidArgument(f"ledger id {ledger}: must be between 0 and {MAX_LEDGER_ID}")
    digits = f"{ledger:016x}"
    return [digits[i : i + 4] for i in range(0, 16, 4)]


def ledger_of_levels(levels: list[str]) -> LedgerId | None:
    """Return the ledger whose mark is below these four folders; None for any other names."""
    try:
        ledger = int("".join(levels), 16)
    except ValueError:
        return None
    return ledger if 0 <= ledger <= MAX_LEDGER_ID and levels == levels_of(ledger) else None


def leaf_of(ledger: LedgerId) -> str:
    """Return the name of a ledger's mark and of its lock."""
    return f"{_LEAF}{ledger:010d}"


def ledger_of(leaf: str) -> LedgerId | None:
    """Return the ledger of a mark or lock by its name; None for any other name."""
    digits = leaf.removeprefix(_LEAF)
    if digits == leaf or not (digits.isascii() and digits.isdigit()) or len(digits) < 10:
        return None
    ledger = int(digits)
    return ledger if ledger <= MAX_LEDGER_ID and leaf == leaf_of(ledger) else None


def encode_mark(replicas: tuple[BookieId, ...], ctime_ms: int) -> bytes:
    """Encode a mark. A negative `ctime_ms` is left out."""
    lines = [f"replica: {quote(replica)}\n" for replica in replicas]
    if ctime_ms >= 0:
        lines.append(f"ctime: {ctime_ms}\n")
    return "".join(lines).encode()


def parse_mark(key: str, ledger: LedgerId, value: bytes, version: int) -> UnderreplicationMark:
    """Parse a mark. Raises MalformedRecord for anything else."""
    try:
        message = parse(value)
        ctime = message.integer("ctime")
        return UnderreplicationMark(ledger, tuple(message.strings("replica")), -1 if ctime is None else ctime, version)
    except TextError as error:
        raise MalformedRecord(
            f"mark of ledger {ledger}, {key}: {error}; delete the record, an audit marks anew"
        ) from None


def encode_holder(name: str) -> bytes:
    """Encode the holder of a lock or a vote, which is for display only."""
    return f"bookieId: {quote(name)}\n".encode()


def parse_holder(value: bytes) -> str:
    """Return the holder of a lock or a vote; "" if the record does not name it."""
    try:
        return parse(value).string("bookieId") or ""
    except TextError:
        return ""


def check_layout(key: str, value: bytes) -> None:
    """Raise MalformedRecord unless the tree is of the only known kind, "BASIC" in version 1."""
    try:
        message = parse(value)
        kind, version = message.string("type"), message.integer("version")
    except TextError as error:
        raise MalformedRecord(f"{key}: {error}") from None
    if kind != "BASIC" or version != 1:
        raise MalformedRecord(
            f'{key} says type {kind!r} version {version}: only type "BASIC" version 1 is known; use the software that '
            "made it"
        )


def vote_number(name: str) -> int | None:
    """Return the number that the store gave to a vote; None for a name that is not a vote's."""
    number = name.removeprefix(VOTE_PREFIX)
    if number == name:
        return None
    try:
        return int(number)
    except ValueError:
        return None


def parse_delay(key: str, value: bytes) -> float:
    """Parse the seconds to wait before the ledgers of a lost bookie are copied. Raises MalformedRecord."""
    try:
        seconds = int(value.decode("ascii"))
        if seconds < 0:
            raise ValueError
    except (UnicodeDecodeError, ValueError):
        raise MalformedRecord(
            f"{key} holds {value[:40]!r}, not a number of seconds: set it with `buckram autorecovery delay SECONDS`"
        ) from None
    return float(seconds)


def encode_date(milliseconds: int) -> bytes:
    """Encode the date of a periodic check: protobuf, field 1, a varint."""
    out = bytearray(b"\x08")
    rest = milliseconds
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def parse_date(value: bytes) -> int:
    """Parse the date of a periodic check, in milliseconds; -1 if there is none."""
    if value[:1] != b"\x08":
        return -1
    number = 0
    for shift, byte in enumerate(value[1:11]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number
    return -1
