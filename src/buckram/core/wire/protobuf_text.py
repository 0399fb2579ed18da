"""Protobuf's text format: writes one dialect of it and parses its whole syntax.

It knows no message types: a parsed message is a list of (name, value) pairs in order. Which fields there are
is decided by metadata_codec (version 2 records) and cookie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias


class TextError(ValueError):
    """The text is not in text format; callers turn this into the typed error of their record."""


@dataclass(frozen=True, slots=True)
class Name:
    """A bare word or number: an enum value, an int, true."""

    text: str


Value: TypeAlias = "bytes | Name | Message"


@dataclass(frozen=True, slots=True)
class Message:
    """Fields in the order they were written, repeated ones once per value."""

    fields: tuple[tuple[str, Value], ...]

    def all(self, name: str) -> list[Value]:
        return [value for field, value in self.fields if field == name]

    def _last(self, name: str) -> Value | None:
        values = self.all(name)
        return values[-1] if values else None

    def bytes(self, name: str) -> bytes | None:
        value = self._last(name)
        if value is None or isinstance(value, bytes):
            return value
        raise TextError(f"{name} must be a quoted string")

    def string(self, name: str) -> str | None:
        value = self.bytes(name)
        return None if value is None else utf8(value)

    def integer(self, name: str) -> int | None:
        value = self._last(name)
        return None if value is None else integer(name, value)

    def name(self, name: str) -> str | None:
        value = self._last(name)
        if value is None or isinstance(value, Name):
            return None if value is None else value.text
        raise TextError(f"{name} must be a bare word")

    def messages(self, name: str) -> list[Message]:
        values = self.all(name)
        for value in values:
            if not isinstance(value, Message):
                raise TextError(f"{name} must be a block")
        return [value for value in values if isinstance(value, Message)]

    def strings(self, name: str) -> list[str]:
        values = self.all(name)
        for value in values:
            if not isinstance(value, bytes):
                raise TextError(f"{name} must be a quoted string")
        return [utf8(value) for value in values if isinstance(value, bytes)]


def utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise TextError(f"{body[:40]!r} is not UTF-8") from None


def integer(name: str, value: Value) -> int:
    """Parse an int64: decimal, 0x hexadecimal or 0 octal, perhaps negative. Raises TextError."""
    spelled = value.text.replace(" ", "") if isinstance(value, Name) else ""
    match = _INTEGER.fullmatch(spelled)
    if match is None or len(spelled) > 30:
        raise TextError(f"{name} must be a whole number")
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
    number = int(digits, base) * (-1 if match[1] else 1)
    if not -(1 << 63) <= number < 1 << 63:
        raise TextError(f"{name} = {number} does not fit 64 bits")
    return number


_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_ESCAPES = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x27: "\\'",
    0x5C: "\\\\",
}  # exactly the set that Apache's current writer uses; every other byte outside printable ASCII is octal
_QUOTED = [_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in range(256)]


def quote(value: str | bytes) -> str:
    """Return a string or bytes as a quoted literal."""
    body = value.encode() if isinstance(value, str) else value
    return '"' + "".join([_QUOTED[byte] for byte in body]) + '"'


_TOKEN = re.compile(
    rb"""(?:[\x20\t\r\n\f\v]++|\#[^\n]*+)*+
    (?: (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*|[0-9][A-Za-z0-9_.+]*|\.[0-9][A-Za-z0-9_.+]*)
      | (?P<mark>[{}<>\[\]:,;\-/])
      | (?P<end>\Z) )""",
    re.VERBOSE,
)
_MAX_DEPTH = 32


class _Tokens:
    """Splits the text; one token ahead is visible as `kind` and `token`."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._offset = 0
        self.kind = self.token = ""
        self.next()

    def next(self) -> None:
        match = _TOKEN.match(self._source, self._offset)
        if match is None:
            raise TextError(f"unexpected text {self._source[self._offset : self._offset + 20]!r}")
        self._offset = match.end()
        self.kind = match.lastgroup or ""
        self.token = match[self.kind].decode("latin-1")

    def accept(self, *marks: str) -> str:
        """Take the present token if it is one of these and return it; otherwise return ""."""
        if self.kind != "mark" or self.token not in marks:
            return ""
        taken = self.token
        self.next()
        return taken

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise TextError(f"{mark!r} is missing before {self.token[:20]!r}")


def parse(source: bytes) -> Message:
    """Parse a whole text. Raises TextError if it is not in text format."""
    tokens = _Tokens(source)
    message = _message(tokens, "", 0)
    if tokens.kind != "end":
        raise TextError(f"unexpected {tokens.token[:20]!r}")
    return message


def _message(tokens: _Tokens, closing: str, depth: int) -> Message:
    if depth > _MAX_DEPTH:
        raise TextError(f"blocks are nested more than {_MAX_DEPTH} deep")
    fields: list[tuple[str, Value]] = []
    while tokens.kind != "end" and not (tokens.kind == "mark" and tokens.token == closing):
        name = _field_name(tokens)
        colon = tokens.accept(":")
        if tokens.accept("["):
            while not tokens.accept("]"):
                fields.append((name, _value(tokens, bool(colon), depth)))
                if not tokens.accept(",") and not (tokens.kind == "mark" and tokens.token == "]"):
                    raise TextError(f"',' or ']' is missing before {tokens.token[:20]!r}")
        else:
            fields.append((name, _value(tokens, bool(colon), depth)))
        tokens.accept(",", ";")
    return Message(tuple(fields))


def _field_name(tokens: _Tokens) -> str:
    if tokens.accept("["):  # an extension or an Any type: never one of ours, so its name only has to differ
        name = "["
        while not tokens.accept("]"):
            if tokens.kind in ("end", "string"):
                raise TextError("']' is missing")
            name += tokens.token
            tokens.next()
        return name + "]"
    if tokens.kind != "word":
        raise TextError(f"a field name is missing before {tokens.token[:20]!r}")
    name = tokens.token
    tokens.next()
    return name


def _value(tokens: _Tokens, colon: bool, depth: int) -> Value:
    opening = tokens.accept("{", "<")
    if opening:
        closing = "}" if opening == "{" else ">"
        message = _message(tokens, closing, depth + 1)
        tokens.expect(closing)
        return message
    if not colon:
        raise TextError(f"':' is missing before {tokens.token[:20]!r}")
    if tokens.kind == "string":
        parts = []
        while tokens.kind == "string":  # adjacent literals are one string
            parts.append(_unquote(tokens.token[1:-1]))
            tokens.next()
        return b"".join(parts)
    sign = tokens.accept("-")
    if tokens.kind != "word":
        raise TextError(f"a value is missing before {tokens.token[:20]!r}")
    word = sign + tokens.token
    tokens.next()
    return Name(word)


_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))", re.DOTALL)
_SIMPLE = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}


def _unquote(body: str) -> bytes:
    """Return the bytes of a literal without its escapes; `body` holds one character per byte."""

    def undo(match: re.Match[str]) -> str:
        octal, hexadecimal, short, long, simple = match.groups()
        if octal:
            number = int(octal, 8)
        elif hexadecimal:
            number = int(hexadecimal, 16)
        elif short or long:
            return _code_point(int(short or long, 16))
        else:
            number = _SIMPLE.get(simple, 256)
        if number > 255:
            raise TextError(f"escape {match[0]!r} is not known")
        return chr(number)

    return _ESCAPE.sub(undo, body).encode("latin-1") if "\\" in body else body.encode("latin-1")


def _code_point(number: int) -> str:
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise TextError(f"escape of code point {number:#x} is not a character")
    return chr(number).encode().decode("latin-1")
